#include "backward_run.hpp"

#include <fmt/format.h>

#include <cmath>
#include <random>

namespace vkattn::test {
namespace {

constexpr const char* names[] = {"dquery", "dkey", "dvalue"};

std::vector<float> normals(size_t count, uint32_t seed, VkattnDtype dtype) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    std::vector<float> x(count);
    for (float& value : x) value = static_cast<float>(rounded(normal(engine), dtype));
    return x;
}

// Where scores are large or made of rounded operands, their rounding is felt in P, and out and lse must be of the same
// P: delta is rowsum(P o dP) then, which the oracle's out does not give, and P sums to 1. So the device's own forward
// runs first, as it does for every user.
void use_own_forward(Device& device, VkattnContext* context, Case c, const std::string& kernel,
                     std::span<BackwardInputs> all) {
    c.tuning.clear();  // it is of the backward's kernel
    // Few rows may have a kernel that does not round.
    if (c.precision != VKATTN_PRECISION_STORAGE) c.kernel = kernel;
    const Plan plan = plan_of(context, with_possible_limit(context, c));
    const Outcome outcome = Forward(device, plan, c, all[0].forward).run(plan).result;
    for (BackwardInputs& inputs : all) {
        inputs.out.scatter(outcome.out);
        inputs.lse = outcome.lse;
    }
}

}  // namespace

Tensor gradient_tensor(const Case& c, int tensor, Poison poison) {
    Case own = c;
    const VkattnBackward b = backward_of(c);
    const VkattnStrides strides[] = {b.dquery_strides, b.dkey_strides, b.dvalue_strides, b.dout_strides};
    strides_of(own.problem, tensor) = strides[tensor];
    return tensor_of(own, tensor, poison);
}

BackwardInputs::BackwardInputs(const Case& c, Poison poison)
    : forward(make_inputs(c, poison)), out(tensor_of(c, 3, poison)), dout(gradient_tensor(c, 3, poison)) {
    const oracle::Result exact = oracle::forward(oracle_problem(c, forward), dense(forward.query),
                                                 dense(forward.key), dense(forward.value));
    out.scatter(std::vector<float>(exact.out.begin(), exact.out.end()));
    for (const double x : exact.lse) lse.push_back(static_cast<float>(x));
    dout.scatter(normals(exact.out.size(), c.seed * 4 + 17, dtype_of(c.problem, 3)));
    if (c.dlse) dlse = normals(lse.size(), c.seed * 4 + 18, VKATTN_DTYPE_FLOAT32);
}

ExpectedGradients expect_gradients(const Case& c, const BackwardInputs& inputs) {
    const Inputs& f = inputs.forward;
    const auto q = dense(f.query), k = dense(f.key), v = dense(f.value), dout = dense(inputs.dout);
    const auto dlse = as_double(inputs.dlse);
    const oracle::Problem p = oracle_problem(c, f);
    const auto type = [&](int tensor) { return storage_of(dtype_of(c.problem, tensor)); };
    const oracle::StorageTypes storage(type(3), type(0), type(1), type(2),
                                       storage_of(mask_dtype_of(c.problem)));
    // The kernels for operands of several types multiply in float32 and round no operand.
    const bool is_one_type = type(0) == type(1) && type(0) == type(2) && type(0) == type(3) &&
                             (c.problem.mask != VKATTN_MASK_FLOAT || type(0) == storage.mask);
    const oracle::StorageType operands = is_one_type ? operands_of(c) : oracle::StorageType::float32;
    return {oracle::backward(p, q, k, v, dout, dlse),
            oracle::naive_backward(p, q, k, v, dout, dlse, storage, operands), storage};
}

std::string Gradients::difference(const Gradients& before) const {
    const uint64_t elements[] = {mask.size()}, heads[] = {sinks.size()};
    for (const std::string& of_one : {difference_of("dquery", extents[0], query, before.query),
                                      difference_of("dkey", extents[1], key, before.key),
                                      difference_of("dvalue", extents[2], value, before.value),
                                      difference_of("dbias", elements, mask, before.mask),
                                      difference_of("dsinks", heads, sinks, before.sinks)})
        if (!of_one.empty()) return of_one;
    return "";
}

Verdict judge(const Gradients& got, const ExpectedGradients& expected) {
    const auto& [exact, naive, storage] = expected;
    Verdict verdict;
    verdict.add("dquery", got.extents[0], got.query, exact.query, naive.query, storage.query);
    verdict.add("dkey", got.extents[1], got.key, exact.key, naive.key, storage.key);
    verdict.add("dvalue", got.extents[2], got.value, exact.value, naive.value, storage.value);
    const uint64_t elements[] = {got.mask.size()};
    if (!got.mask.empty()) verdict.add("dbias", elements, got.mask, exact.mask, naive.mask, storage.mask);
    const uint64_t heads[] = {got.sinks.size()};
    if (!got.sinks.empty())
        verdict.add("dsinks", heads, got.sinks, exact.sinks, naive.sinks,
                    storage.out);  // by way of out
    return verdict;
}

std::string compare(const Gradients& got, const ExpectedGradients& expected) {
    return judge(got, expected).failure;
}

BackwardMemory::BackwardMemory(Device& device, const Plan& plan, const Case& c, const BackwardInputs& inputs,
                               Place place, uint32_t old_content)
    : RunMemory(device, place, old_content), dtype_(mask_dtype_of(c.problem)) {
    const auto bytes_of = [](const auto& values) { return std::as_bytes(std::span(values)); };
    add_inputs(c, inputs.forward, args_);
    args_.out = input("out", inputs.out.image, alignment_of(c, inputs.out));
    args_.dout = input("dout", inputs.dout.image, alignment_of(c, inputs.dout));
    args_.lse = input("lse", bytes_of(inputs.lse));
    if (c.dlse) args_.dlse = input("dlse", bytes_of(inputs.dlse));
    VkDeviceAddress* const addresses[] = {&args_.dquery, &args_.dkey, &args_.dvalue};
    for (int t = 0; t < 3; t++) {
        layouts_[t] = gradient_tensor(c, t);
        *addresses[t] = output(names[t], layouts_[t], alignment_of(c, layouts_[t]));
    }
    const uint64_t dbias_elements = backward_of(c).dbias != 0 ? mask_count(c.problem) : 0;
    args_.dbias = output("dbias", dbias_elements * element_bytes(dtype_), element_bytes(dtype_));
    args_.dsinks = output("dsinks", backward_of(c).dsinks != 0 ? c.problem.num_heads_q * 4 : 0, 4);
    add_scratch(plan, args_);
}

Gradients BackwardMemory::outcome() const {
    Gradients g;
    std::vector<float>* const dense[] = {&g.query, &g.key, &g.value};
    for (int t = 0; t < 3; t++) {
        const Tensor& layout = layouts_[t];
        *dense[t] = layout.gather(content(names[t]));
        g.extents[t] = {layout.batch, layout.heads, layout.seqlen, layout.dim};
    }
    const std::vector<std::byte> bias = content("dbias");
    for (size_t at = 0; at < bias.size(); at += element_bytes(dtype_))
        g.mask.push_back(load(bias.data() + at, dtype_));
    const std::vector<std::byte> sinks = content("dsinks");
    for (size_t at = 0; at < sinks.size(); at += 4)
        g.sinks.push_back(load(sinks.data() + at, VKATTN_DTYPE_FLOAT32));
    return g;
}

Ran<Gradients> BackwardMemory::run(const Plan& plan) const {
    device().runtime().submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, args_); });
    return {outcome(), damage()};
}

Plan backward_plan_of(VkattnContext* context, const Case& c) {
    VkattnOptions options = c.options();
    options.num_splits = 0;  // of the forward alone
    return Plan(context, c.problem, backward_of(c), options);
}

Case with_possible_backward_limit(VkattnContext* context, Case c) {
    raise_limit(c, [&](const Case& with_limit) { backward_plan_of(context, with_limit); });
    return c;
}

bool is_planned_backward(Report& report, VkattnContext* context, Case& c, Plan& plan) {
    const auto make = [&](Case& limited, Plan& made) {
        limited = with_possible_backward_limit(context, limited);
        made = backward_plan_of(context, limited);
    };
    return is_planned(report, c, plan, make);
}

Report run_backward_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    if (given.far != Far::none) {
        report.failures.emplace_back("far is of forward cases");
        return report;
    }
    if (given.company != 0 || given.num_parts != 1) {
        report.failures.emplace_back("company is of forward cases, and parts are of combines");
        return report;
    }
    if (given.nonfinite) return run_nonfinite_backward_case(device, context, given);
    Plan plan;
    Case c = given;
    if (!is_planned_backward(report, context, c, plan)) return report;
    report.skipped = uncut(context, c, true);
    // Hidden content must not matter, whatever it is. Kernels on matrix units begin again where it is not finite.
    BackwardInputs inputs[] = {BackwardInputs(c, Poison::alternating), BackwardInputs(c, Poison::finite)};
    if (c.values != Values::normal || c.mask_fill == MaskFill::far ||
        c.precision != VKATTN_PRECISION_STORAGE || std::fabs(c.problem.softmax_scale) >= 1000)
        use_own_forward(device, context, c, report.kernel, inputs);
    run_at_places(report, expect_gradients(c, inputs[0]), [&](Place place) {
        const bool at_start = place == Place::start;
        return BackwardMemory(device, plan, c, inputs[at_start ? 0 : 1], place,
                              at_start ? poison_word : second_poison)
            .run(plan);
    });
    return report;
}

}  // namespace vkattn::test
