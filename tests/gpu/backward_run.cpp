#include "backward_run.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "arrays.hpp"

namespace vkattn::test {
namespace {

constexpr const char* names[] = {"dquery", "dkey", "dvalue"};

std::vector<double> dense(const Tensor& t) {
    return as_double(t.gather(t.image));
}

// Those of an input that an output cannot have, since its elements would share addresses.
bool broadcasts(const VkattnStrides& s) {
    return s.batch == 0 || s.head == 0 || s.seq == 0;
}

// A gradient lies as its tensor does, where that is possible.
Tensor gradient_tensor(const Case& c, int tensor) {
    Case own = c;
    VkattnStrides* const all[] = {&own.problem.query_strides, &own.problem.key_strides,
                                  &own.problem.value_strides};
    const VkattnBackward b = backward_of(c);
    const VkattnStrides strides[] = {b.dquery_strides, b.dkey_strides, b.dvalue_strides};
    *all[tensor] = strides[tensor];
    return tensor_of(own, tensor);
}

std::vector<float> normals(size_t count, uint32_t seed, VkattnDtype dtype) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    std::vector<float> x(count);
    for (float& value : x) value = static_cast<float>(rounded(normal(engine), dtype));
    return x;
}

uint64_t mask_count(const VkattnProblem& p) {
    uint64_t count = p.mask_rank == 0 ? 0 : 1;
    for (uint32_t i = 0; i < p.mask_rank; i++) count *= p.mask_extents[i];
    return count;
}

// Where scores are large or made of rounded operands, their rounding is felt in P, and out and lse must be of the same
// P: delta is rowsum(P o dP) then, which the oracle's out does not give, and P sums to 1. So the device's own forward
// runs first, as it does for every user.
void use_own_forward(Device& device, VkattnContext* context, Case c, const std::string& kernel,
                     std::span<BackwardInputs> all) {
    c.tuning.clear();  // it is of the backward's kernel
    // Few rows have a kernel that does not round.
    if (c.precision != VKATTN_PRECISION_STORAGE) c.kernel = kernel;
    const Plan plan = plan_of(context, with_possible_limit(context, c));
    const Forward forward(device, plan, c, all[0].forward, Place::end);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
    const Outcome outcome = forward.outcome();
    for (BackwardInputs& inputs : all) {
        inputs.out.scatter(outcome.out);
        inputs.lse = outcome.lse;
    }
}

}  // namespace

VkattnBackward backward_of(const Case& c) {
    VkattnBackward b = backward();
    b.dlse = c.dlse;
    b.dbias = c.dbias && c.problem.mask == VKATTN_MASK_FLOAT && mask_count(c.problem) != 0;
    b.dout_strides = c.problem.out_strides;
    const auto like = [](const VkattnStrides& s, VkattnStrides& to) {
        if (!broadcasts(s)) to = s;
    };
    like(c.problem.query_strides, b.dquery_strides);
    like(c.problem.key_strides, b.dkey_strides);
    like(c.problem.value_strides, b.dvalue_strides);
    return b;
}

BackwardInputs::BackwardInputs(const Case& c, Poison poison)
    : forward(make_inputs(c, poison)), out(tensor_of(c, 3, poison)), dout(tensor_of(c, 3, poison)) {
    const oracle::Result exact = oracle::forward(oracle_problem(c, forward), dense(forward.query),
                                                 dense(forward.key), dense(forward.value));
    out.scatter(std::vector<float>(exact.out.begin(), exact.out.end()));
    for (const double x : exact.lse) lse.push_back(static_cast<float>(x));
    dout.scatter(normals(exact.out.size(), c.seed * 4 + 17, c.problem.dtype));
    if (c.dlse) dlse = normals(lse.size(), c.seed * 4 + 18, VKATTN_DTYPE_FLOAT32);
}

ExpectedGradients expect_gradients(const Case& c, const BackwardInputs& inputs) {
    const Inputs& f = inputs.forward;
    const auto q = dense(f.query), k = dense(f.key), v = dense(f.value), dout = dense(inputs.dout);
    const auto dlse = as_double(inputs.dlse);
    const oracle::Problem p = oracle_problem(c, f);
    const oracle::StorageType storage = storage_of(c.problem.dtype);
    return {oracle::backward(p, q, k, v, dout, dlse),
            oracle::naive_backward(p, q, k, v, dout, dlse, storage, operands_of(c)), storage};
}

bool Gradients::same_bits(const Gradients& other) const {
    return equal_bits(query, other.query) && equal_bits(key, other.key) && equal_bits(value, other.value) &&
           equal_bits(mask, other.mask);
}

Verdict judge(const Gradients& got, const ExpectedGradients& expected) {
    const auto& [exact, naive, storage] = expected;
    Verdict verdict;
    verdict.add("dquery", got.extents[0], got.query, exact.query, naive.query, storage);
    verdict.add("dkey", got.extents[1], got.key, exact.key, naive.key, storage);
    verdict.add("dvalue", got.extents[2], got.value, exact.value, naive.value, storage);
    const uint64_t elements[] = {got.mask.size()};
    if (!got.mask.empty()) verdict.add("dbias", elements, got.mask, exact.mask, naive.mask, storage);
    return verdict;
}

std::string compare(const Gradients& got, const ExpectedGradients& expected) {
    return judge(got, expected).failure;
}

BackwardMemory::BackwardMemory(Device& device, const Plan& plan, const Case& c, const BackwardInputs& inputs,
                               Place place, uint32_t old_content)
    : dtype_(c.problem.dtype), old_content_(old_content) {
    const VkattnProblem& p = c.problem;
    const uint32_t element = element_bytes(p.dtype);
    const auto add_tensor = [&](const char* name, const Tensor& tensor) {
        return add(device, name, tensor.image, place, alignment_of(c, tensor));
    };
    const auto bytes_of = [](const auto& values) { return std::as_bytes(std::span(values)); };
    args_.query = add_tensor("query", inputs.forward.query);
    args_.key = add_tensor("key", inputs.forward.key);
    args_.value = add_tensor("value", inputs.forward.value);
    args_.out = add_tensor("out", inputs.out);
    args_.dout = add_tensor("dout", inputs.dout);
    args_.lse = add(device, "lse", bytes_of(inputs.lse), place, 4);
    if (c.dlse) args_.dlse = add(device, "dlse", bytes_of(inputs.dlse), place, 4);
    if (p.mask != VKATTN_MASK_NONE)
        args_.mask =
            add(device, "mask", inputs.forward.mask_image, place, p.mask == VKATTN_MASK_BOOL ? 1 : element);
    add_arrays(c, args_, [&](const char* name, auto content) {
        return add(device, name, content, place, array_alignment);
    });
    VkDeviceAddress* const addresses[] = {&args_.dquery, &args_.dkey, &args_.dvalue};
    for (int t = 0; t < 3; t++) {
        layouts_[t] = gradient_tensor(c, t);
        outputs_[t] = Guarded(device, layouts_[t].image.size(), place, alignment_of(c, layouts_[t]));
        outputs_[t].fill(old_content);
        *addresses[t] = outputs_[t].address();
    }
    dbias_elements_ = backward_of(c).dbias != 0 ? mask_count(p) : 0;
    dbias_ = Guarded(device, dbias_elements_ * element, place, element);
    dbias_.fill(old_content);
    args_.dbias = dbias_.address();
    const VkattnScratch scratch = plan.scratch();
    scratch_ = Guarded(device, scratch.size_bytes, place, static_cast<uint32_t>(scratch.alignment_bytes));
    scratch_.fill(old_content);
    args_.scratch_buffer = scratch_.buffer();
    args_.scratch_offset = scratch_.offset_bytes();
    args_.scratch_address = scratch_.address();
}

VkDeviceAddress BackwardMemory::add(Device& device, const char* name, std::span<const std::byte> content,
                                    Place place, uint32_t alignment_bytes) {
    inputs_.push_back(
        {name, Guarded(device, content.size(), place, alignment_bytes), {content.begin(), content.end()}});
    Guarded& memory = inputs_.back().memory;
    memory.write(content);
    memory.protect();
    return memory.address();
}

Gradients BackwardMemory::gradients() const {
    Gradients g{layouts_[0].gather(outputs_[0].read()),
                layouts_[1].gather(outputs_[1].read()),
                layouts_[2].gather(outputs_[2].read()),
                {},
                {}};
    for (int t = 0; t < 3; t++)
        g.extents[t] = {layouts_[t].batch, layouts_[t].heads, layouts_[t].seqlen, layouts_[t].dim};
    const std::vector<std::byte> bias = dbias_.read();
    for (uint64_t i = 0; i < dbias_elements_; i++)
        g.mask.push_back(load(bias.data() + i * element_bytes(dtype_), dtype_));
    return g;
}

std::string BackwardMemory::damage() const {
    for (const Input& input : inputs_)
        if (!input.memory.intact() || input.memory.read() != input.content)
            return fmt::format("{} was written to", input.name);
    if (!dbias_.intact() || !scratch_.intact()) return "memory beside dbias or scratch was written to";
    std::byte old[sizeof old_content_];
    std::memcpy(old, &old_content_, sizeof old);
    for (int t = 0; t < 3; t++) {
        if (!outputs_[t].intact()) return fmt::format("memory beside {} was written to", names[t]);
        const std::vector<std::byte> content = outputs_[t].read();
        const std::vector<bool> covered = layouts_[t].covered();
        for (size_t i = 0; i < content.size(); i++)
            if (!covered[i] && content[i] != old[i % sizeof old])
                return fmt::format("padding of {} was written to, at byte {}", names[t], i);
    }
    return "";
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
    const auto make = [&](Case& limited, Plan& made) {
        limited = with_possible_backward_limit(context, limited);
        made = backward_plan_of(context, limited);
    };
    if (!is_planned(report, c, plan, make)) return report;
    report.skipped = uncut(context, c, true);
    // Hidden content must not matter, whatever it is. Kernels on matrix units begin again where it is not finite.
    BackwardInputs inputs[] = {BackwardInputs(c, Poison::alternating), BackwardInputs(c, Poison::finite)};
    if (c.values != Values::normal || c.mask_fill == MaskFill::far || c.precision != VKATTN_PRECISION_STORAGE)
        use_own_forward(device, context, c, report.kernel, inputs);
    const ExpectedGradients expected = expect_gradients(c, inputs[0]);
    std::optional<Gradients> first;
    for (const Place place : places) {
        const bool at_start = place == Place::start;
        const std::string at = fmt::format("at the {}: ", name_of(place));
        const BackwardMemory memory(device, plan, c, inputs[at_start ? 0 : 1], place,
                                    at_start ? poison_word : second_poison);
        device.runtime().submit(
            [&](VkCommandBuffer commands) { plan.cmd_backward(commands, memory.args()); });
        const Gradients got = memory.gradients();
        report.add(at, memory.damage(), judge(got, expected));
        if (first && !first->same_bits(got)) report.failures.push_back(at + "other bits than at the start");
        first = got;
    }
    return report;
}

}  // namespace vkattn::test
