// NaN and infinity that a gradient depends on make it not finite; those that nothing depends on change no bit (README,
// semantics). One element at a time, of each tensor that the backward reads.
#include <fmt/format.h>

#include "backward_run.hpp"
#include "fixture.hpp"
#include "interposer.hpp"
#include "nonfinite.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr const char* texts[] = {
    "h=2 sq=64 skv=64 causal dlse",
    "h=2 sq=64 skv=64 causal batch_invariant dlse",
    "b=2 hq=4 hkv=2 sq=33 skv=57 d=24 dtype=f16",
    "h=2 sq=57 skv=41 causal softcap=0.5 dlse",
    "h=2 sq=57 skv=41 causal batch_invariant",
    "hq=4 hkv=2 sq=41 skv=57 mask=bool mask_shape=41,57 mask_fill=rows dlse",
    "hq=4 hkv=2 sq=41 skv=57 mask=bool mask_shape=41,57 batch_invariant",
    "b=2 h=2 sq=41 skv=57 mask=float mask_shape=2,1,41,57 dlse",
    "b=2 h=2 sq=41 skv=57 mask=float mask_shape=2,2,41,1",
    "b=2 h=2 sq=41 skv=57 mask=float mask_shape=1,1,1,57",
    "b=2 h=2 sq=41 skv=57 scale=30 lengths=20,57 window=9,3 dlse",
    "h=2 sq=97 skv=113 causal max_flops=70000",
    "h=2 sq=23 skv=37 dqk=576 dv=512 causal",
};

// On matrix units, whose operands have 16 bits.
constexpr const char* matrix_texts[] = {
    "h=2 sq=64 skv=97 d=24 causal dlse kernel=matrix dtype=f16",
    "b=2 hq=4 hkv=2 sq=97 skv=64 d=24 causal kernel=matrix dtype=f16",
    "h=2 sq=97 skv=64 d=24 causal kernel=matrix_khr dtype=f16",
    "sq=41 skv=97 d=24 mask=bool mask_shape=97 dlse kernel=matrix dtype=f16",
    "b=2 h=2 sq=41 skv=57 d=24 mask=float mask_shape=2,1,41,57 kernel=matrix dtype=f16",
    "b=2 h=2 sq=64 skv=128 d=24 mask=float mask_shape=1,2,64,128 mask_fill=rows kernel=matrix dtype=f16",
    "h=2 sq=64 skv=128 d=24 mask=float mask_shape=64,128 kernel=matrix dtype=f16 "
    "tuning=kv_paired=1,kv_apart=0",
    "h=2 sq=97 skv=64 d=24 softcap=3 window=9,30 dlse kernel=matrix dtype=f16",
    "b=2 sq=64 skv=97 d=24 lengths=97,61 kernel=matrix dtype=f16",
    "h=2 sq=97 skv=113 d=24 causal max_flops=300000 kernel=matrix dtype=f16",
};

enum class Operand { query, key, value, out, lse, dout, dlse };
const std::string names[] = {"query", "key", "value", "out", "lse", "dout", "dlse"};

struct Injected {
    Operand operand;
    float x;
};
constexpr Injected injections[] = {
    {Operand::query, not_a_number}, {Operand::key, not_a_number},  {Operand::value, not_a_number},
    {Operand::value, infinity},     {Operand::out, not_a_number},  {Operand::out, -infinity},
    {Operand::lse, not_a_number},   {Operand::lse, infinity},      {Operand::dout, not_a_number},
    {Operand::dout, infinity},      {Operand::dlse, not_a_number}, {Operand::dlse, -infinity}};

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

struct Runner {
    Runner(Device& on, VkattnContext* context, const char* text)
        : device(on),
          c(with_possible_backward_limit(context, parse_case(text, "here"))),
          plan(backward_plan_of(context, c)),
          inputs(c),
          visible(c, inputs.forward) {}

    Gradients run(const BackwardInputs& of) const {
        const BackwardMemory memory(device, plan, c, of, Place::end);
        device.runtime().submit(
            [&](VkCommandBuffer commands) { plan.cmd_backward(commands, memory.args()); });
        CHECK(memory.damage() == "");
        return memory.gradients();
    }

    // The inputs with the element, and with the out and lse that a forward makes of it.
    BackwardInputs with_element(const Injected& what, uint64_t row, uint64_t key) const;

    Device& device;
    Case c;
    Plan plan;
    BackwardInputs inputs;
    Visibility visible;
};

BackwardInputs Runner::with_element(const Injected& what, uint64_t row, uint64_t key) const {
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

void check_element(const Runner& r, const Gradients& clean, const Injected& what, uint64_t row, uint64_t key,
                   size_t& seen) {
    const Tensor &q = r.inputs.forward.query, &k = r.inputs.forward.key;
    const size_t own_row = row_of_last_head(q, row), own_key = row_of_last_head(k, key);
    const size_t keys = k.batch * k.heads * k.seqlen;
    const Reached reached = reached_by(what, r.visible, own_row, own_key, keys);
    const Gradients got = r.run(r.with_element(what, row, key));
    const size_t head = k.batch * k.heads - 1;
    const bool hidden = std::ranges::find(reached.query, true) == reached.query.end();
    const bool in_product = what.operand <= Operand::value || what.operand == Operand::dout;
    const bool spreads = in_product && !r.c.batch_invariant && !hidden;
    const auto row_spreads = [&](size_t i) {
        return spreads && r.visible.head_of(i) == head && !r.visible.is_empty(i);
    };
    const auto key_spreads = [&](size_t j) { return spreads && j / k.seqlen == head; };
    CHECK(judge(got.query, clean.query, q.dim, reached.query, row_spreads) == "");
    CHECK(judge(got.key, clean.key, k.dim, reached.key, key_spreads) == "");
    CHECK(judge(got.value, clean.value, r.inputs.forward.value.dim, reached.value, key_spreads) == "");
    if (hidden) CHECK(got.same_bits(clean));
    seen += hidden ? 0 : 1;
    if (!clean.mask.empty() && !hidden) CHECK(!is_finite(got.mask));
}

void check_case(Device& device, VkattnContext* context, const char* text) {
    const Runner r(device, context, text);
    CAPTURE(r.c.text);
    const Gradients clean = r.run(r.inputs);
    CHECK(is_finite(clean.query));
    const VkattnProblem& p = r.c.problem;
    for (const Injected& what : injections) {
        if (what.operand == Operand::dlse && !r.c.dlse) continue;
        CAPTURE(names[static_cast<int>(what.operand)]);
        CAPTURE(what.x);
        size_t seen = 0;
        for (const auto& [row, key] :
             {std::pair{p.seqlen_q / 2, p.seqlen_kv / 2}, {p.seqlen_q - 1, 3u}, {0u, 0u}})
            check_element(r, clean, what, row, key, seen);
        CHECK(seen > 0);
    }
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "what is not finite does not vanish from the backward") {
    for (const char* text : texts) check_case(device, context.get(), text);
}

TEST_CASE_FIXTURE(OnDevice, "what is not finite does not vanish from the backward on matrix units") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return skip("NaN on matrix units: there are none");
    for (const char* text : matrix_texts) check_case(device, device.runtime().context(), text);
}

// Keys with a mask of -2e9 weigh nothing beside those with -1e9, whose lse can tell nothing smaller than 100 apart.
TEST_CASE_FIXTURE(Recorded, "keys that a large mask leaves no weight get no gradient") {
    const Case c = parse_case("sq=8 skv=8 mask=float mask_shape=8,8", "here");
    const Plan plan = backward_plan_of(context.get(), c);
    BackwardInputs inputs(c);
    for (size_t i = 0; i < 64; i++) inputs.forward.mask[i] = i % 8 < 4 ? -1e9 : -2e9;
    write_mask_image(c, inputs.forward);
    const auto dense = [](const Tensor& t) {
        const std::vector<float> x = t.gather(t.image);
        return std::vector<double>(x.begin(), x.end());
    };
    const oracle::Result exact =
        oracle::forward(oracle_problem(c, inputs.forward), dense(inputs.forward.query),
                        dense(inputs.forward.key), dense(inputs.forward.value));
    inputs.out.scatter(std::vector<float>(exact.out.begin(), exact.out.end()));
    inputs.lse.assign(exact.lse.begin(), exact.lse.end());
    const BackwardMemory memory(device, plan, c, inputs, Place::end);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, memory.args()); });
    const Gradients got = memory.gradients();
    for (size_t key = 0; key < 8; key++) {
        double most = 0;
        for (const float x : row_of(got.value, key, 8))
            most = std::max(most, std::abs(static_cast<double>(x)));
        CAPTURE(key);
        if (key < 4)
            CHECK(most > 0.01);
        else
            CHECK(most < 1e-30);
    }
}
