// NaN and infinity in what a row sees never vanish from the forward, and what no row sees changes no bit (README,
// semantics). Each operand of a case gets one element that is not finite; the oracle tells which rows see it.
#include <fmt/format.h>

#include "case_suite.hpp"
#include "interposer.hpp"
#include "nonfinite.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Each kernel with and without bounds, masks, a softcap, splits and packed heads, and with batch_invariant.
constexpr const char* texts[] = {
    "h=2 sq=64 skv=64 causal kernel=tiles",
    "h=2 sq=64 skv=64 causal kernel=tiles batch_invariant",
    "b=2 hq=4 hkv=2 sq=33 skv=57 d=24 kernel=tiles dtype=f16",
    "h=2 sq=57 skv=41 causal kernel=tiles",
    "h=2 sq=41 skv=57 mask=bool mask_shape=41,57 mask_fill=rows kernel=tiles",
    "h=2 sq=41 skv=57 mask=bool mask_shape=41,57 kernel=tiles batch_invariant",
    "h=2 sq=41 skv=57 mask=float mask_shape=41,57 softcap=3 kernel=tiles",
    "b=2 sq=41 skv=57 lengths=57,20 kernel=tiles batch_invariant",
    "b=2 sq=41 skv=57 lengths=20,57 window=9,3 softcap=3 kernel=tiles batch_invariant",
    "sq=1 skv=799 hq=4 hkv=2 kernel=rows splits=3",
    "b=2 sq=3 skv=203 hq=4 hkv=2 mask=float mask_shape=2,1,3,203 mask_fill=banded kernel=rows dtype=bf16",
    "sq=5 skv=203 causal softcap=5 kernel=rows",
    "h=2 sq=41 skv=57 causal kernel=materialized",
    "h=2 sq=57 skv=41 causal kernel=materialized",
};
constexpr const char* matrix_texts[] = {
    "h=2 sq=64 skv=97 d=24 causal kernel=matrix",
    "h=2 sq=97 skv=64 d=24 causal kernel=matrix",
    "h=2 sq=64 skv=97 d=24 causal kernel=matrix batch_invariant",
    "b=2 sq=64 skv=97 d=24 lengths=97,61 kernel=matrix batch_invariant",
    "h=2 sq=41 skv=97 d=24 window=9,30 kernel=matrix_khr",
    "sq=41 skv=97 d=24 mask=bool mask_shape=41,97 kernel=matrix",
    "sq=41 skv=97 d=24 mask=bool mask_shape=41,97 kernel=matrix batch_invariant",
    "sq=41 skv=97 d=24 mask=float mask_shape=41,97 kernel=matrix",
    "sq=41 skv=97 d=24 softcap=3 kernel=matrix",
    // With stale offsets, which GPUs have anyway.
    "h=2 sq=97 skv=64 d=24 causal kernel=matrix tuning=running=0,chunk=0",
    "sq=41 skv=97 d=24 mask=bool mask_shape=41,97 kernel=matrix tuning=running=0,chunk=0",
    "sq=41 skv=97 d=24 mask=float mask_shape=41,97 kernel=matrix tuning=running=0,chunk=0",
    "sq=41 skv=97 d=24 window=9,30 softcap=3 kernel=matrix tuning=running=0,chunk=0",
};

enum class Operand { query, key, value, mask };
const std::string names[] = {"query", "key", "value", "mask"};

struct Injected {
    Operand operand;
    float x;
};
constexpr Injected injections[] = {{Operand::query, not_a_number}, {Operand::key, not_a_number},
                                   {Operand::value, not_a_number}, {Operand::value, infinity},
                                   {Operand::value, -infinity},    {Operand::mask, not_a_number},
                                   {Operand::mask, infinity}};

Outcome run(Device& device, const Job& job, const Inputs& inputs) {
    const Forward forward(device, job.plan, job.c, inputs, Place::end);
    device.runtime().submit(
        [&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, forward.args()); });
    CHECK(forward.damage() == "");
    return forward.outcome();
}

// A row of query and a key, both of the last batch and head.
struct At {
    uint64_t row, key;
};

// The mask's element for the two.
size_t mask_index(const Case& c, const At& at) {
    const VkattnProblem& p = c.problem;
    size_t index = 0;
    for (uint32_t i = 0; i < p.mask_rank; i++) {
        const uint64_t extent = p.mask_extents[i], left = p.mask_rank - i;
        const uint64_t wanted = left == 1 ? at.key : left == 2 ? at.row : extent - 1;
        index = index * extent + std::min(wanted, extent - 1);
    }
    return index;
}

Inputs with_element(const Case& c, Inputs inputs, const Injected& what, const At& at) {
    switch (what.operand) {
        case Operand::query:
            set_element(inputs.query, at.row, what.x);
            break;
        case Operand::key:
            set_element(inputs.key, at.key, what.x);
            break;
        case Operand::value:
            set_element(inputs.value, at.key, what.x);
            break;
        case Operand::mask:
            inputs.mask[mask_index(c, at)] = static_cast<double>(what.x);
            write_mask_image(c, inputs);
            break;
    }
    return inputs;
}

// Rows that must not be finite.
std::vector<bool> reached_rows(const Job& job, const Visibility& visible, const Injected& what,
                               const At& at) {
    const Tensor &q = job.inputs.query, &k = job.inputs.key;
    const size_t own = row_of_last_head(q, at.row), key = row_of_last_head(k, at.key);
    std::vector<bool> reached(visible.rows());
    for (size_t row = 0; row < reached.size(); row++) {
        if (what.operand == Operand::query)
            reached[row] = row == own && !visible.is_empty(row);
        else if (what.operand != Operand::mask)
            reached[row] = visible.sees(row, key);
    }
    if (what.operand != Operand::mask) return reached;
    // Rows that read the element have another lse where it is another number.
    const std::vector<double> query(visible.rows(), 0), keys(k.batch * k.heads * k.seqlen, 0);
    const auto lse_with = [&](double element) {
        Inputs inputs = job.inputs;
        inputs.mask[mask_index(job.c, at)] = element;
        oracle::Problem p = oracle_problem(job.c, inputs);
        p.head_dim_qk = p.head_dim_v = 1;
        return oracle::forward(p, query, keys, keys).lse;
    };
    const auto before = lse_with(0), after = lse_with(5);
    for (size_t row = 0; row < reached.size(); row++) reached[row] = before[row] != after[row];
    return reached;
}

// What another row of its tile may do to a row that does not see what is not finite.
enum class Effect {
    none,
    rounding,  // its offset was set at another tile of keys, so its weights are rounded otherwise
    spreads,   // its out may be NaN too
};

struct Row {
    std::span<const float> out;
    float lse;
};

bool near(const Row& got, const Row& clean, VkattnDtype dtype) {
    const float allowed = dtype == VKATTN_DTYPE_BFLOAT16 ? 0x1p-7f : 0x1p-10f;  // one step of a weight's type
    float largest = 0;
    for (const float x : clean.out) largest = std::max(largest, std::abs(x));
    for (size_t d = 0; d < clean.out.size(); d++)
        if (!(std::abs(got.out[d] - clean.out[d]) <= 2 * allowed * largest)) return false;
    return got.lse == clean.lse || std::abs(got.lse - clean.lse) < 1e-5f;
}

// "" if the row is as the rule wants it.
std::string judge(const Row& got, const Row& clean, VkattnDtype dtype, Operand operand, bool reached,
                  Effect effect) {
    const bool same_lse = got.lse == clean.lse;
    if (!reached) {
        const bool allowed = effect == Effect::rounding  ? near(got, clean, dtype)
                             : effect == Effect::spreads ? same_lse
                                                         : same_lse && std::ranges::equal(got.out, clean.out);
        return allowed ? "" : "a row that does not see it has changed";
    }
    if (operand != Operand::value)
        return std::isnan(got.lse) && is_all_nan(got.out) ? "" : "a row that sees it is not NaN";
    if (is_finite(got.out)) return "out of a row that sees the value is finite";
    return same_lse ? "" : "lse depends on the value";
}

// On matrix units, offsets of all rows of a tile are set where one of them outgrows its own, as NaN does.
Effect effect_on(const Case& c, Operand operand, bool same_head) {
    if (c.batch_invariant || !same_head) return Effect::none;
    if (operand == Operand::value) return Effect::spreads;
    return c.kernel.starts_with("matrix") ? Effect::rounding : Effect::none;
}

void check_case(Device& device, VkattnContext* context, const char* text) {
    const Job job(context, text);
    CAPTURE(job.c.text);
    const Outcome clean = run(device, job, job.inputs);
    const VkattnProblem& p = job.c.problem;
    const Visibility visible(job.c, job.inputs);
    for (const Injected& what : injections) {
        if (what.operand == Operand::mask && p.mask != VKATTN_MASK_FLOAT) continue;
        CAPTURE(names[static_cast<int>(what.operand)]);
        CAPTURE(what.x);
        size_t seen = 0;
        for (const At at : {At{p.seqlen_q / 2, p.seqlen_kv / 2}, {p.seqlen_q - 1u, 3}, {0, 0}}) {
            const Outcome got = run(device, job, with_element(job.c, job.inputs, what, at));
            const std::vector<bool> reached = reached_rows(job, visible, what, at);
            const bool any = std::ranges::find(reached, true) != reached.end();
            const size_t head = visible.head_of(visible.rows() - 1);
            for (size_t row = 0; row < reached.size(); row++) {
                seen += reached[row] ? 1 : 0;
                const bool same_head = any && visible.head_of(row) == head && !visible.is_empty(row);
                const std::string fault =
                    judge({row_of(got.out, row, p.head_dim_v), got.lse[row]},
                          {row_of(clean.out, row, p.head_dim_v), clean.lse[row]}, p.dtype, what.operand,
                          reached[row], effect_on(job.c, what.operand, same_head));
                if (!fault.empty()) {
                    FAIL_CHECK(fmt::format("row {}: {}", row, fault));
                    break;
                }
            }
        }
        CHECK(seen > 0);
    }
}

// The last element of each query row of the last batch and kv head is 1, so that an infinite one of a key makes an
// infinite product with all of them.
Inputs with_infinite_keys(const Job& job, float x, uint64_t first_key, uint64_t end_key) {
    Inputs inputs = job.inputs;
    Tensor &q = inputs.query, &k = inputs.key;
    const uint64_t group = q.heads / k.heads;
    for (uint64_t h = q.heads - group; h < q.heads; h++)
        for (uint64_t i = 0; i < q.seqlen; i++)
            store(q.row(q.batch - 1, h, i) + (q.dim - 1) * element_bytes(q.dtype), 1, q.dtype);
    for (uint64_t j = first_key; j < end_key; j++) set_element(k, j, x);
    return inputs;
}

// Rows that see a product of +inf are NaN; one of -inf weighs nothing, and a row of nothing else is a row without keys.
void check_infinite_products(Device& device, VkattnContext* context, const std::string& text) {
    const Job job(context, text);
    CAPTURE(job.c.text);
    const Visibility visible(job.c, job.inputs);
    const uint64_t keys = job.c.problem.seqlen_kv, at = keys / 2, dim = job.c.problem.head_dim_v;
    const size_t key = row_of_last_head(job.inputs.key, at), head = visible.head_of(visible.rows() - 1);
    const Outcome clean = run(device, job, with_infinite_keys(job, 1, at, at + 1)),
                  high = run(device, job, with_infinite_keys(job, infinity, at, at + 1)),
                  low = run(device, job, with_infinite_keys(job, -infinity, at, at + 1)),
                  none = run(device, job, with_infinite_keys(job, -infinity, 0, keys));
    size_t seen = 0;
    for (size_t row = 0; row < visible.rows(); row++) {
        CAPTURE(row);
        const bool sees = visible.sees(row, key), own = visible.head_of(row) == head;
        seen += sees ? 1 : 0;
        CHECK(std::isnan(high.lse[row]) == sees);
        CHECK(is_all_nan(row_of(high.out, row, dim)) == sees);
        CHECK(!std::isnan(low.lse[row]));
        CHECK(is_finite(row_of(low.out, row, dim)));
        if (sees) CHECK(low.lse[row] < clean.lse[row]);
        if (own) CHECK(none.lse[row] == -infinity);
        for (const float x : row_of(none.out, row, dim))
            if (own) CHECK(x == 0);
    }
    CHECK(seen > 0);
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "what is not finite does not vanish from the forward") {
    for (const char* text : texts) check_case(device, context.get(), text);
}

TEST_CASE_FIXTURE(OnDevice, "what is not finite does not vanish from the forward on matrix units") {
    for (const auto& [dtype, word] :
         {std::pair{VKATTN_DTYPE_FLOAT16, "f16"}, {VKATTN_DTYPE_BFLOAT16, "bf16"}}) {
        if (!device.has_matrix_unit(dtype)) {
            skip(fmt::format("not finite on matrix units: none for {}", word));
            continue;
        }
        for (const char* text : matrix_texts)
            check_case(device, runtime.context(), fmt::format("{} dtype={}", text, word).c_str());
    }
}

TEST_CASE_FIXTURE(Recorded, "infinite products of query and key: NaN above, nothing below") {
    for (const char* text :
         {"h=2 sq=64 skv=64 causal kernel=tiles", "h=2 sq=64 skv=64 causal kernel=tiles batch_invariant",
          "h=2 sq=64 skv=64 kernel=tiles batch_invariant",
          "h=2 sq=41 skv=57 mask=bool mask_shape=41,57 kernel=tiles",
          "h=2 sq=41 skv=57 mask=float mask_shape=41,57 kernel=tiles batch_invariant",
          "sq=1 skv=799 hq=4 hkv=2 kernel=rows splits=3", "h=2 sq=8 skv=57 causal kernel=materialized"})
        check_infinite_products(device, context.get(), text);
}

TEST_CASE_FIXTURE(OnDevice, "infinite products of query and key on matrix units") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return skip("infinite products on matrix units: none");
    for (const char* text : {"h=2 sq=64 skv=97 d=24 causal kernel=matrix dtype=f16",
                             "h=2 sq=64 skv=97 d=24 causal kernel=matrix dtype=f16 batch_invariant",
                             "sq=41 skv=97 d=24 mask=bool mask_shape=41,97 kernel=matrix dtype=f16"})
        check_infinite_products(device, runtime.context(), text);
}
