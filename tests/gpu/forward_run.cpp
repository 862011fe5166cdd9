#include "forward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "arrays.hpp"
#include "case_plan.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {
namespace {

constexpr uint32_t second_poison = 0xffffffff;  // NaN, too

std::vector<double> as_double(const std::vector<float>& x) {
    return {x.begin(), x.end()};
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
    std::vector<float> x(bytes.size() / sizeof(float));
    if (!x.empty()) std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::string compare(const char* name, std::span<const float> got, std::span<const double> exact,
                    std::span<const float> naive, oracle::StorageType storage) {
    const oracle::Bound bound = oracle::check(got, exact, naive, storage);
    if (bound.ok) return "";
    return fmt::format("{}[{}] = {}, the oracle has {}: the error {:.3g} exceeds {:.3g}", name, bound.worst,
                       got[bound.worst], exact[bound.worst], bound.measured, bound.allowed);
}

// Log-sum-exps of rows whose only visible scores stand at the lowest float: the library clamps such scores before it
// changes their base, so that no bit of lse is promised but that the row is not taken for an empty one.
constexpr double clamped_lse = -1e37;
// Rows with scores this large are compared on their own, lest their rounding loosens the others' bound.
constexpr double large_lse = 1e4;

std::string compare_lse(const Outcome& outcome, const Expected& expected) {
    std::vector<float> got[2], naive[2];
    std::vector<double> exact[2];
    for (size_t i = 0; i < outcome.lse.size(); i++) {
        const double x = expected.exact.lse[i];
        if (std::isfinite(x) && x < clamped_lse) {
            if (!std::isfinite(outcome.lse[i]) || static_cast<double>(outcome.lse[i]) > clamped_lse / 2)
                return fmt::format("lse[{}] = {}, the oracle has {}", i, outcome.lse[i], x);
            continue;
        }
        const size_t group = std::isfinite(x) && std::fabs(x) > large_lse ? 1 : 0;
        got[group].push_back(outcome.lse[i]);
        naive[group].push_back(expected.naive.lse[i]);
        exact[group].push_back(x);
    }
    for (size_t group : {0u, 1u}) {
        const char* const name = group == 0 ? "lse" : "lse, of those beyond 1e4,";
        const std::string what =
            compare(name, got[group], exact[group], naive[group], oracle::StorageType::float32);
        if (!what.empty()) return what;
    }
    return "";
}

}  // namespace

oracle::StorageType operands_of(const Case& c) {
    if (c.precision == VKATTN_PRECISION_STORAGE) return storage_of(c.problem.dtype);
    return c.precision == VKATTN_PRECISION_FLOAT16 ? oracle::StorageType::float16
                                                   : oracle::StorageType::bfloat16;
}

Expected expect(const Case& c, const Inputs& inputs) {
    const auto q = as_double(inputs.query.gather(inputs.query.image)),
               k = as_double(inputs.key.gather(inputs.key.image)),
               v = as_double(inputs.value.gather(inputs.value.image));
    const oracle::Problem p = oracle_problem(c, inputs);
    const oracle::StorageType storage = storage_of(c.problem.dtype), operands = operands_of(c);
    return {oracle::forward(p, q, k, v), oracle::naive_forward(p, q, k, v, storage, operands), storage};
}

bool Outcome::same_bits(const Outcome& other) const {
    return same(out, other.out) && same(lse, other.lse);
}

std::string compare(const Outcome& outcome, const Expected& expected) {
    const std::string out =
        compare("out", outcome.out, expected.exact.out, expected.naive.out, expected.storage);
    return out.empty() ? compare_lse(outcome, expected) : out;
}

Forward::Forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs, Place place,
                 uint32_t old_content)
    : out_layout_(tensor_of(c, 3)), old_content_(old_content) {
    const uint32_t element = element_bytes(c.problem.dtype);
    const auto add_tensor = [&](const char* name, const Tensor& tensor) {
        return add_input(device, name, tensor.image, place, alignment_of(c, tensor));
    };
    const auto add = [&](const char* name, std::span<const std::byte> content, uint32_t alignment_bytes) {
        return add_input(device, name, content, place, alignment_bytes);
    };
    args_.query = add_tensor("query", inputs.query);
    args_.key = add_tensor("key", inputs.key);
    args_.value = add_tensor("value", inputs.value);
    if (c.problem.mask != VKATTN_MASK_NONE)
        args_.mask = add("mask", inputs.mask_image, c.problem.mask == VKATTN_MASK_BOOL ? 1 : element);
    add_arrays(c, args_, [&](const char* name, auto content) { return add(name, content, array_alignment); });
    out_ = Guarded(device, out_layout_.image.size(), place, alignment_of(c, out_layout_));
    lse_count_ = c.lse ? uint64_t{c.problem.batch} * c.problem.num_heads_q * c.problem.seqlen_q : 0;
    lse_ = Guarded(device, lse_count_ * sizeof(float), place);
    const VkattnScratch scratch = plan.scratch();
    scratch_ = Guarded(device, scratch.size_bytes, place, static_cast<uint32_t>(scratch.alignment_bytes));
    poison();
    args_.out = out_.address();
    if (c.lse) args_.lse = lse_.address();
    if (scratch.size_bytes == 0) return;
    args_.scratch_buffer = scratch_.buffer();
    args_.scratch_offset = scratch_.offset_bytes();
    args_.scratch_address = scratch_.address();
}

VkDeviceAddress Forward::add_input(Device& device, const char* name, std::span<const std::byte> content,
                                   Place place, uint32_t alignment_bytes) {
    inputs_.push_back(
        {name, Guarded(device, content.size(), place, alignment_bytes), {content.begin(), content.end()}});
    Guarded& memory = inputs_.back().memory;
    memory.write(content);
    memory.protect();
    return memory.address();
}

void Forward::poison() {
    for (Guarded* memory : {&out_, &lse_, &scratch_}) memory->fill(old_content_);
}

Outcome Forward::outcome() const {
    return {out_layout_.gather(out_.read()), floats_of(lse_.read())};
}

std::string Forward::damage() const {
    for (const Input& input : inputs_)
        if (!input.memory.intact() || input.memory.read() != input.content)
            return fmt::format("{} was written to", input.name);
    for (const auto& [name, memory] : {std::pair{"out", &out_}, {"lse", &lse_}, {"scratch", &scratch_}})
        if (!memory->intact()) return fmt::format("memory beside {} was written to", name);
    const std::vector<std::byte> content = out_.read();
    const std::vector<bool> covered = out_layout_.covered();
    std::byte old[sizeof old_content_];
    std::memcpy(old, &old_content_, sizeof old);
    for (size_t i = 0; i < content.size(); i++)
        if (!covered[i] && content[i] != old[i % sizeof old])
            return fmt::format("padding of out was written to, at byte {}", i);
    return "";
}

Plan plan_of(VkattnContext* context, const Case& c) {
    return Plan(context, c.problem, c.options());
}

// The batch-invariance tests need five doublings on an H200.
constexpr int most_doublings = 10;

void raise_limit(Case& c, const std::function<void(const Case&)>& plan) {
    const uint64_t asked = c.max_dispatch_flops;
    for (int doubled = 0;; doubled++) {
        try {
            plan(c);
            break;
        } catch (const Error& e) {
            if (e.field() != "options.max_dispatch_flops" || doubled == most_doublings) throw;
            c.max_dispatch_flops *= 2;
        }
    }
    if (c.max_dispatch_flops != asked)
        fmt::print("note: a workgroup of this device costs more than max_flops={}, so it is {}: {}\n", asked,
                   c.max_dispatch_flops, c.text);
}

Case with_possible_limit(VkattnContext* context, Case c) {
    raise_limit(c, [&](const Case& with_limit) { plan_of(context, with_limit); });
    return c;
}

std::string uncut(VkattnContext* context, const Case& c, bool backward) {
    if (c.max_dispatch_flops == 0) return "";
    Case free = c;
    free.max_dispatch_flops = 0;
    const auto cut = core_plan_of(context->caps, c, backward),
               whole = core_plan_of(context->caps, free, backward);
    if (!cut || !whole || cut->dispatches.size() != whole->dispatches.size()) return "";
    return fmt::format("max_flops={}, the least that this device allows, cuts nothing", c.max_dispatch_flops);
}

Job::Job(VkattnContext* context, const std::string& text)
    : c(with_possible_limit(context, parse_case(text, "here"))),
      plan(plan_of(context, c)),
      inputs(make_inputs(c)),
      expected(expect(c, inputs)) {}

void check_right(const Job& job, const Forward& forward) {
    CAPTURE(job.c.text);
    CHECK(forward.damage() == "");
    CHECK(compare(forward.outcome(), job.expected) == "");
}

Report run_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    Plan plan;
    Case c = given;
    try {
        c = with_possible_limit(context, given);
        plan = plan_of(context, c);
    } catch (const Error& e) {
        // Only a tuning that was asked for may be beyond the device.
        if (e.status() == VKATTN_UNSUPPORTED && !c.tuning.empty())
            report.skipped = e.what();
        else
            report.failures.emplace_back(e.what());
        return report;
    }
    report.segments = plan.segments();
    report.skipped = uncut(context, c, false);
    // Hidden content must not matter, whatever it is.
    const Inputs inputs[] = {make_inputs(c, Poison::alternating), make_inputs(c, Poison::finite)};
    const Expected expected = expect(c, inputs[0]);
    std::optional<Outcome> first;
    for (const Place place : places) {
        const bool at_start = place == Place::start;
        const std::string at = fmt::format("at the {}: ", name_of(place));
        const Forward forward(device, plan, c, inputs[at_start ? 0 : 1], place,
                              at_start ? poison_word : second_poison);
        device.runtime().submit(
            [&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
        const Outcome outcome = forward.outcome();
        for (const std::string& what : {forward.damage(), compare(outcome, expected)})
            if (!what.empty()) report.failures.push_back(at + what);
        if (first && !first->same_bits(outcome))
            report.failures.push_back(at + "other bits than at the start");
        first = outcome;
    }
    return report;
}

namespace {

// Which device has the pipelines of a key; stays so for the life of the process.
int home_of(const std::string& key) {
    static std::map<std::string, int> homes;
    return homes.try_emplace(key, static_cast<int>(homes.size() % 2)).first->second;
}

// Somebody who looks for a fault sets VKATTN_TEST_ONLY=TEXT. Then only cases with this text run, and each is named
// before it does, because a guard page may end the process.
std::atomic<bool> saw_wanted_case = false;

bool is_wanted(const Case& c) {
    const char* const only = std::getenv("VKATTN_TEST_ONLY");
    if (only == nullptr) return true;
    const bool wanted = c.text.find(only) != std::string::npos;
    if (wanted) std::fprintf(stderr, "%s: %s\n", c.where.c_str(), c.text.c_str());
    if (wanted) saw_wanted_case = true;
    return wanted;
}

const bool text_is_checked = at_end_of_run([]() -> std::string {
    const char* const only = std::getenv("VKATTN_TEST_ONLY");
    if (only == nullptr || saw_wanted_case) return "";
    return fmt::format("no case with the text of VKATTN_TEST_ONLY was run: {}", only);
});

// With --abort-after doctest is to stop at the first failure, but hears of none before all cases of a section have run.
bool is_enough(const Report& report) {
    static std::atomic<bool> failed = false;
    if (!report.failures.empty()) failed = true;
    return failed && doctest::getContextOptions()->abort_after > 0;
}

// On CPUs the planner leaves float16 to `tiles`. The cases that GPUs run on matrix units are run there once more,
// with the kernel for these by name.
std::vector<Case> with_matrix_cases(std::vector<Case> cases) {
    Device& device = Device::get();
    const core::DeviceCaps& caps = device.runtime().context()->caps;
    if (caps.type != core::DeviceType::cpu || !device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return cases;
    for (size_t i = 0, given = cases.size(); i < given; i++) {
        Case c = cases[i];
        if (c.kernel != "auto" || !c.tuning.empty() || c.problem.dtype != VKATTN_DTYPE_FLOAT16) continue;
        c.kernel = "matrix";
        c.text += " kernel=matrix";
        Case without_limit = c;  // which run_case raises
        without_limit.max_dispatch_flops = 0;
        if (core_plan_of(caps, without_limit, false)) cases.push_back(c);
    }
    return cases;
}

// One device's share of the cases.
void run_share(int index, const std::vector<Case>& cases, const std::vector<int>& homes, RunCase run,
               Features features, std::vector<Report>& reports) {
    Device& device = Device::get(index);
    for (size_t i = 0; i < cases.size(); i++) {
        if (homes[i] != index) continue;
        if (!is_wanted(cases[i])) continue;
        const bool needs_more =
            cases[i].kernel.starts_with("matrix") || cases[i].precision != VKATTN_PRECISION_STORAGE;
        const bool all_features =
            features == Features::by_device ? index != 0 || needs_more : features == Features::all;
        VkattnContext* const context = all_features ? device.runtime().context() : shared_context().get();
        try {
            reports[i] = run(device, context, cases[i]);
        } catch (const std::exception& e) {
            reports[i].failures.emplace_back(e.what());
        }
        for (const std::string& message : device.take_messages())
            reports[i].failures.push_back("validation: " + message);
        if (is_enough(reports[i])) return;
    }
}

}  // namespace

std::vector<Report> run_cases(const std::vector<Case>& given, RunCase run, Features features) {
    Device::get();
    const bool may_use_matrices = run == run_case && features == Features::by_device;
    const std::vector<Case> cases = may_use_matrices ? with_matrix_cases(given) : given;
    std::vector<Report> reports(cases.size());
    std::vector<int> homes;
    // The context without features is of the first device.
    for (const Case& c : cases) homes.push_back(features == Features::none ? 0 : home_of(c.pipeline_key()));
    std::thread other([&] { run_share(1, cases, homes, run, features, reports); });
    run_share(0, cases, homes, run, features, reports);
    other.join();
    for (size_t i = 0; i < cases.size(); i++) {
        const std::string name = fmt::format("{}: {}", cases[i].where, cases[i].text);
        if (!reports[i].skipped.empty()) skip(name + ": " + reports[i].skipped);
        for (const std::string& failure : reports[i].failures) FAIL_CHECK(name << "\n    " << failure);
        CHECK(reports[i].failures.empty());
    }
    return reports;
}

}  // namespace vkattn::test
