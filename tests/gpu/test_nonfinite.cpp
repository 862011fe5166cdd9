// NaN and infinity in what a row sees never vanish (DESIGN.md section 3). Each operand of a case gets one element that is
// not finite, and the rows that see it are told from the others by the oracle, which attends with values that are 1 at
// one key and 0 elsewhere.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "forward_run.hpp"
#include "interposer.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

// The kernels with and without bounds, masks, a softcap, splits and packed heads.
constexpr const char* texts[] = {
    "h=2 sq=64 skv=64 causal kernel=tiles",
    "b=2 hq=4 hkv=2 sq=33 skv=57 d=24 kernel=tiles dtype=f16",
    "h=2 sq=41 skv=57 mask=bool mask_shape=41,57 mask_fill=rows kernel=tiles",
    "h=2 sq=41 skv=57 mask=float mask_shape=41,57 softcap=3 kernel=tiles",
    "sq=1 skv=799 hq=4 hkv=2 kernel=rows splits=3",
    "b=2 sq=3 skv=203 hq=4 hkv=2 mask=float mask_shape=2,1,3,203 mask_fill=banded kernel=rows dtype=bf16",
    "sq=5 skv=203 causal softcap=5 kernel=rows",
};

// Which rows (batch, num_heads_q, seqlen_q) see the key j of batch b and kv head h.
std::vector<bool> rows_that_see(const Case& c, const Inputs& inputs, uint64_t b, uint64_t h, uint64_t j) {
    oracle::Problem p = oracle_problem(c, inputs);
    p.head_dim_qk = p.head_dim_v = 1;
    const std::vector<double> query(p.batch * p.num_heads_q * p.seqlen_q, 0);
    std::vector<double> key(p.batch * p.num_heads_kv * p.seqlen_kv, 0), value = key;
    value[(b * p.num_heads_kv + h) * p.seqlen_kv + j] = 1;
    std::vector<bool> sees;
    for (const double x : oracle::forward(p, query, key, value).out) sees.push_back(x != 0);
    return sees;
}

Outcome run(Device& device, const Job& job, const Inputs& inputs) {
    const Forward forward(device, job.plan, job.c, inputs, Place::end);
    device.runtime().submit(
        [&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, forward.args()); });
    CHECK(forward.damage() == "");
    return forward.outcome();
}

enum class Operand { query, key, value };

struct Injected {
    Operand operand;
    float x;
};

// Inputs with x at one element of row `at` of the last batch and head of an operand.
Inputs with_element(const Job& job, const Injected& what, uint64_t at) {
    Inputs inputs = job.inputs;
    Tensor& t = what.operand == Operand::query ? inputs.query
                : what.operand == Operand::key ? inputs.key
                                               : inputs.value;
    store(t.row(t.batch - 1, t.heads - 1, at) + (t.dim - 1) * element_bytes(t.dtype), what.x, t.dtype);
    return inputs;
}

struct Row {
    std::span<const float> out, clean_out;
    float lse, clean_lse;
};

Row row_of(const Outcome& got, const Outcome& clean, size_t row, size_t dim) {
    return {std::span(got.out).subspan(row * dim, dim), std::span(clean.out).subspan(row * dim, dim),
            got.lse[row], clean.lse[row]};
}

bool is_all_nan(const Row& r) {
    return std::isnan(r.lse) && std::ranges::all_of(r.out, [](float x) { return std::isnan(x); });
}

bool is_unchanged(const Row& r) {
    return r.lse == r.clean_lse && std::ranges::equal(r.out, r.clean_out);
}

// "" if the row is as the rule wants it.
std::string judge(const Row& r, const Injected& what, bool sees, bool same_head) {
    if (what.operand == Operand::value) {
        if (!sees) return same_head || is_unchanged(r) ? "" : "a row of another head has changed";
        if (std::isfinite(r.out.back())) return "out of a row that sees the value is finite";
        return r.lse == r.clean_lse ? "" : "lse depends on the value";
    }
    if (!sees) return is_unchanged(r) ? "" : "a row that does not see it has changed";
    return is_all_nan(r) ? "" : "a row that sees it is not NaN";
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "what is not finite does not vanish from the forward") {
    for (const char* text : texts) {
        const Job job(context.get(), text);
        CAPTURE(job.c.text);
        const Outcome clean = run(device, job, job.inputs);
        const VkattnProblem& p = job.c.problem;
        for (const Injected what : {Injected{Operand::query, nan},
                                    {Operand::key, nan},
                                    {Operand::value, nan},
                                    {Operand::value, infinity},
                                    {Operand::value, -infinity}}) {
            const bool of_query = what.operand == Operand::query;
            const uint64_t at = (of_query ? p.seqlen_q : p.seqlen_kv) / 2;
            const Outcome got = run(device, job, with_element(job, what, at));
            const std::vector<bool> sees =
                of_query ? std::vector<bool>()
                         : rows_that_see(job.c, job.inputs, p.batch - 1, p.num_heads_kv - 1, at);
            size_t seen = 0;
            for (size_t row = 0; row < clean.lse.size(); row++) {
                const size_t head = row / p.seqlen_q;
                const bool own =
                    head / (p.num_heads_q / p.num_heads_kv) == uint64_t{p.batch} * p.num_heads_kv - 1;
                const bool is_row = of_query && row == (clean.lse.size() / p.seqlen_q - 1) * p.seqlen_q + at;
                const bool empty = clean.lse[row] == -infinity;
                const bool row_sees = of_query ? is_row && !empty : sees[row];
                seen += row_sees ? 1 : 0;
                const std::string fault = judge(row_of(got, clean, row, p.head_dim_v), what, row_sees, own);
                if (fault.empty()) continue;
                FAIL_CHECK(fmt::format("operand {}, element {}: row {}: {}", static_cast<int>(what.operand),
                                       what.x, row, fault));
                break;
            }
            CHECK(seen > 0);
        }
    }
}
