// The planner over any device, problem and options: a refusal has its reason; a plan passes every check of
// tests/plan_checks.hpp, is the same when it is made again, and describes itself in JSON.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "device_tests/probe.hpp"
#include "inputs.hpp"
#include "plan/matrix.hpp"
#include "plan_checks.hpp"

using namespace vkattn;
using core::DeviceCaps;
using core::Plan;
using fuzz::check;

namespace {

// Plans of more dispatches take long to check, and are like others. There are boxes of a few grids in a plan, each of
// which may be cut into 2^16.
constexpr size_t many = 300, most = 16 << 16;

template <class Make, class Flaw>
void fuzz_plan(const Make& make, const Flaw& flaw) {
    core::Result<Plan> plan = make();
    if (!plan) return fuzz::check_failure(plan.failure());
    if (fuzz::has_planted_fault() && !plan->dispatches.empty()) plan->dispatches.back().groups[0]++;
    check(plan->dispatches.size() <= most, "too many dispatches");
    if (plan->dispatches.size() > many) return;
    fuzz::check_flaw(flaw(*plan));
    const core::Result<Plan> again = make();
    check(static_cast<bool>(again), "refused when asked again");
    fuzz::check_flaw(test::difference(*plan, *again));
    const auto json = nlohmann::json::parse(core::describe(*plan), nullptr, false);
    check(json.is_object() && json.contains("kernel") && json["dispatches"].size() == plan->dispatches.size(),
          "no description");
}

void fuzz_combine(fuzz::Bytes& bytes, const DeviceCaps& caps) {
    const auto c = core::resolve(fuzz::combine_of(bytes));
    if (!c) return;
    fuzz_plan([&] { return core::make_plan(caps, *c); },
              [&](const Plan& plan) { return test::flaw_of(caps, *c, plan); });
}

// What a device answers to the probe, into its matrix shapes.
void fuzz_probe(fuzz::Bytes& bytes, DeviceCaps& caps) {
    if (core::why_no_matrices(caps, "")) return;
    const Plan plan = core::probe_plan(caps);
    check(plan.dispatches.size() <= caps.matrices.size(), "more probes than shapes");
    std::vector<std::byte> results(core::probe_size(caps));
    const auto given = bytes.ConsumeBytes<uint8_t>(results.size());
    std::ranges::transform(given, results.begin(), [](uint8_t byte) { return std::byte{byte}; });
    core::note_probe(caps, results.data());
}

void fuzz_attention(fuzz::Bytes& bytes, DeviceCaps& caps) {
    const bool backward = bytes.ConsumeBool();
    core::Options options = fuzz::options_of(bytes);
    const auto p = core::resolve(fuzz::problem_of(bytes));
    if (!p) return;
    if (!backward) {
        fuzz::turn_products(bytes, caps, options);
        return fuzz_plan([&] { return core::make_plan(caps, *p, options); },
                         [&](const Plan& plan) { return test::flaw_of(caps, *p, plan, options); });
    }
    const auto b = core::resolve(*p, fuzz::backward_of(bytes, *p));
    if (!b) return;
    fuzz::turn_products(bytes, caps, options);
    fuzz_plan([&] { return core::make_plan(caps, *p, *b, options); },
              [&](const Plan& plan) { return test::flaw_of(caps, *p, *b, plan, options); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz::Bytes bytes(data, size);
    DeviceCaps caps = fuzz::device_of(bytes);
    if (bytes.one_in(8)) fuzz_probe(bytes, caps);
    if (bytes.one_in(8))
        fuzz_combine(bytes, caps);
    else
        fuzz_attention(bytes, caps);
    return 0;
}
