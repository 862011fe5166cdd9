// Runs cases with `nonfinite`: NaN and infinity in what a row sees never vanish, and what no row sees changes no bit
// (docs/semantics.md). Each operand of the case gets one element that is not finite, at three places; the oracle tells
// which rows see it.
#include <fmt/format.h>
#include <bit>

#include <algorithm>
#include <cmath>
#include <functional>

#include "backward_run.hpp"
#include "nonfinite.hpp"

namespace vkattn::test {
namespace {

// Calls check(row, key), which says whether some row sees the element there, for three places.
void check_places(const VkattnProblem& p, Report& report,
                  const std::function<bool(uint64_t, uint64_t)>& check) {
    bool seen = false;
    for (const auto& [row, key] :
         {std::pair{p.seqlen_q / 2, p.seqlen_kv / 2}, {p.seqlen_q - 1, 3u}, {0u, 0u}}) {
        seen = check(row, key) || seen;
        if (!report.failures.empty()) return;
    }
    if (!seen) report.failures.emplace_back("no row sees any of the elements that are not finite");
}

// A case and what it runs in; run() says in the report what was damaged.
template <class Memory, class Given>
struct Runner {
    auto run(const Given& of) const {
        const auto [result, damage] = Memory(device, plan, c, of).run(plan);
        if (!damage.empty()) report.failures.push_back(damage);
        return result;
    }
    Device& device;
    Report& report;
    const Case& c;
    const Plan& plan;
    Given inputs;
    Visibility visible;
};

namespace of_forward {

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
    Tensor* const tensors[] = {&inputs.query, &inputs.key, &inputs.value};
    if (what.operand == Operand::mask) {
        inputs.mask[mask_index(c, at)] = static_cast<double>(what.x);
        write_mask_image(c, inputs);
    } else {
        set_element(*tensors[static_cast<int>(what.operand)],
                    what.operand == Operand::query ? at.row : at.key, what.x);
    }
    return inputs;
}

// Rows that must not be finite.
std::vector<bool> reached_rows(const Case& c, const Inputs& clean, const Visibility& visible,
                               const Injected& what, const At& at) {
    const Tensor &q = clean.query, &k = clean.key;
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
        Inputs inputs = clean;
        inputs.mask[mask_index(c, at)] = element;
        oracle::Problem p = oracle_problem(c, inputs);
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

struct ForwardRunner : Runner<Forward, Inputs> {
    // Returns whether some row sees the element.
    bool check(const Outcome& clean, const Injected& what, const At& at) const;
};

bool ForwardRunner::check(const Outcome& clean, const Injected& what, const At& at) const {
    const VkattnProblem& p = c.problem;
    const Outcome got = run(with_element(c, inputs, what, at));
    const std::vector<bool> reached = reached_rows(c, inputs, visible, what, at);
    const bool any = std::ranges::find(reached, true) != reached.end();
    const size_t head = visible.head_of(visible.rows() - 1);
    for (size_t row = 0; row < reached.size(); row++) {
        const bool same_head = any && visible.head_of(row) == head && !visible.is_empty(row);
        const std::string fault = judge({row_of(got.out, row, p.head_dim_v), got.lse[row]},
                                        {row_of(clean.out, row, p.head_dim_v), clean.lse[row]}, p.dtype,
                                        what.operand, reached[row], effect_on(c, what.operand, same_head));
        if (fault.empty()) continue;
        report.failures.push_back(fmt::format("{} in {}, of row {} or key {}: row {} of all: {}", what.x,
                                              names[static_cast<int>(what.operand)], at.row, at.key, row,
                                              fault));
        break;
    }
    return any;
}

}  // namespace of_forward

namespace of_backward {

enum class Operand { query, key, value, out, lse, dout, dlse };
const std::string names[] = {"query", "key", "value", "out", "lse", "dout", "dlse"};

struct Injected {
    Operand operand;
    float x;
};
// Rounding to bfloat16 by adding to its bits would make a number of this NaN.
const float lowest_nan = std::bit_cast<float>(0xffffffffu);
const Injected injections[] = {
    {Operand::query, not_a_number}, {Operand::key, not_a_number},  {Operand::value, not_a_number},
    {Operand::value, infinity},     {Operand::out, not_a_number},  {Operand::out, -infinity},
    {Operand::lse, lowest_nan},     {Operand::lse, infinity},      {Operand::dout, not_a_number},
    {Operand::dout, infinity},      {Operand::dlse, not_a_number}, {Operand::dlse, lowest_nan},
    {Operand::dlse, -infinity}};

// Which gradients are not finite: rows of dquery, and keys of dkey and dvalue.
struct Reached {
    std::vector<bool> query, key, value;
};

// The rows whose statistics or products the element enters.
std::vector<size_t> rows_touched(const Injected& what, const Visibility& visible, size_t row, size_t key) {
    std::vector<size_t> rows;
    for (size_t i = 0; i < visible.rows(); i++) {
        const bool of_key = what.operand == Operand::key || what.operand == Operand::value;
        if (of_key ? visible.sees(i, key) : i == row && !visible.is_empty(i)) rows.push_back(i);
    }
    return rows;
}

Reached reached_by(const Injected& what, const Visibility& visible, size_t row, size_t key, size_t keys) {
    Reached reached{std::vector<bool>(visible.rows()), std::vector<bool>(keys), std::vector<bool>(keys)};
    const bool in_weights =
        what.operand == Operand::query || what.operand == Operand::key || what.operand == Operand::lse;
    for (const size_t i : rows_touched(what, visible, row, key)) {
        reached.query[i] = true;
        for (size_t j = 0; j < keys; j++) {
            if (!visible.sees(i, j)) continue;
            reached.key[j] = true;
            if (in_weights || what.operand == Operand::dout) reached.value[j] = true;
        }
    }
    return reached;
}

struct BackwardRunner : Runner<BackwardMemory, BackwardInputs> {
    // Returns whether some row sees the element.
    bool check(const Gradients& clean, const Injected& what, uint64_t row, uint64_t key) const;
    // The inputs with the element, and with the out and lse that a forward makes of it.
    BackwardInputs with_element(const Injected& what, uint64_t row, uint64_t key) const;
};

BackwardInputs BackwardRunner::with_element(const Injected& what, uint64_t row, uint64_t key) const {
    BackwardInputs given = inputs;
    Tensor* const tensors[] = {
        &given.forward.query, &given.forward.key, &given.forward.value, &given.out, nullptr, &given.dout};
    const size_t own_row = row_of_last_head(inputs.forward.query, row);
    if (what.operand == Operand::lse)
        given.lse[own_row] = what.x;
    else if (what.operand == Operand::dlse)
        given.dlse[own_row] = what.x;
    else
        set_element(*tensors[static_cast<int>(what.operand)],
                    what.operand == Operand::key || what.operand == Operand::value ? key : row, what.x);
    if (what.operand > Operand::value) return given;
    std::vector<float> out = given.out.gather(given.out.image);
    for (const size_t i : rows_touched(what, visible, own_row, row_of_last_head(inputs.forward.key, key))) {
        std::fill_n(out.begin() + static_cast<ptrdiff_t>(i * given.out.dim), given.out.dim, not_a_number);
        if (what.operand != Operand::value) given.lse[i] = not_a_number;
    }
    given.out.scatter(out);
    return given;
}

// "" if rows that are reached are not finite, and others unchanged; or, in a head where NaN spreads, anything.
std::string judge(const std::vector<float>& got, const std::vector<float>& clean, size_t dim,
                  const std::vector<bool>& reached, const std::function<bool(size_t)>& spreads) {
    for (size_t row = 0; row < reached.size(); row++) {
        const auto own = row_of(got, row, dim);
        if (reached[row] && is_finite(own)) return fmt::format("row {} is finite", row);
        if (!reached[row] && !spreads(row) && !std::ranges::equal(own, row_of(clean, row, dim)))
            return fmt::format("row {} has changed", row);
    }
    return "";
}

bool BackwardRunner::check(const Gradients& clean, const Injected& what, uint64_t row, uint64_t key) const {
    const Tensor &q = inputs.forward.query, &k = inputs.forward.key;
    const size_t own_row = row_of_last_head(q, row), own_key = row_of_last_head(k, key);
    const size_t keys = k.batch * k.heads * k.seqlen;
    const Reached reached = reached_by(what, visible, own_row, own_key, keys);
    const Gradients got = run(with_element(what, row, key));
    const size_t head = k.batch * k.heads - 1;
    const bool hidden = std::ranges::find(reached.query, true) == reached.query.end();
    const bool in_product = what.operand <= Operand::value || what.operand == Operand::dout;
    const bool spreads = in_product && !c.batch_invariant && !hidden;
    const auto row_spreads = [&](size_t i) {
        return spreads && visible.head_of(i) == head && !visible.is_empty(i);
    };
    const auto key_spreads = [&](size_t j) { return spreads && j / k.seqlen == head; };
    const std::string flaws[] = {
        judge(got.query, clean.query, q.dim, reached.query, row_spreads),
        judge(got.key, clean.key, k.dim, reached.key, key_spreads),
        judge(got.value, clean.value, inputs.forward.value.dim, reached.value, key_spreads),
        hidden && !got.same_bits(clean) ? "what no row sees has changed something" : "",
        !clean.mask.empty() && !hidden && is_finite(got.mask) ? "it is finite" : ""};
    constexpr const char* gradients[] = {"dquery", "dkey", "dvalue", "gradients", "dbias"};
    for (size_t i = 0; i < std::size(flaws); i++)
        if (!flaws[i].empty())
            report.failures.push_back(fmt::format("{} in {}, of row {} or key {}: {}: {}", what.x,
                                                  names[static_cast<int>(what.operand)], row, key,
                                                  gradients[i], flaws[i]));
    return !hidden;
}

}  // namespace of_backward
}  // namespace

Report run_nonfinite_case(Device& device, VkattnContext* context, const Case& given) {
    using namespace of_forward;
    Report report;
    Case c = given;
    Plan plan;
    if (!is_planned(report, context, c, plan)) return report;
    const Inputs inputs = make_inputs(c);
    const ForwardRunner runner{{device, report, c, plan, inputs, Visibility(c, inputs)}};
    const Outcome clean = runner.run(inputs);
    if (!is_finite(clean.out)) report.failures.emplace_back("out is not finite though all inputs are");
    for (const Injected& what : injections)
        if (report.failures.empty() && (what.operand != Operand::mask || c.problem.mask == VKATTN_MASK_FLOAT))
            check_places(c.problem, report, [&](uint64_t row, uint64_t key) {
                return runner.check(clean, what, {row, key});
            });
    return report;
}

Report run_nonfinite_backward_case(Device& device, VkattnContext* context, const Case& given) {
    using namespace of_backward;
    Report report;
    Case c = given;
    Plan plan;
    if (!is_planned_backward(report, context, c, plan)) return report;
    const BackwardInputs inputs(c);
    const BackwardRunner runner{{device, report, c, plan, inputs, Visibility(c, inputs.forward)}};
    const Gradients clean = runner.run(inputs);
    if (!is_finite(clean.query)) report.failures.emplace_back("dquery is not finite though all inputs are");
    for (const Injected& what : injections)
        if (report.failures.empty() && (what.operand != Operand::dlse || c.dlse))
            check_places(c.problem, report,
                         [&](uint64_t row, uint64_t key) { return runner.check(clean, what, row, key); });
    return report;
}

}  // namespace vkattn::test
