// Drivers kill dispatches that run for seconds. Without a limit of the caller's, no dispatch of a problem with up to a
// million keys is estimated above the default for its device, unless the plan would have more dispatches than it may.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "plan/kernel.hpp"
#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

const std::vector<Shape>& long_shapes() {
    static const std::vector<Shape> shapes{
        {1, 1, 1, 1, million},
        {1, 32, 8, 1, million},
        {64, 32, 8, 1, 1u << 17},
        {1, 8, 8, 128, million, true},
        {1, 32, 8, 8192, 1u << 17, true},
        {2, 16, 2, 4096, million, true, 4096, -1},
        {1, 1, 1, million, million, true},
        {1, 2, 1, million, million, true, 1000, -1},
        {1, 1, 1, million, 4096},
        {1, 1, 1, million, million, false, -1, -1, VKATTN_ALIGN_OFFSETS},
    };
    return shapes;
}

struct Most {
    size_t plans = 0, dispatches = 0;
    double part_of_limit = 0;
};

// "" if no dispatch costs more than the device's limit.
std::string watchdog_flaw(const DeviceCaps& caps, const Plan& plan, Most& most) {
    const uint64_t limit = core::dispatch_limit(caps, {});
    double all = 0;
    uint64_t longest = 0;
    for (const core::Dispatch& d : plan.dispatches) {
        all += static_cast<double>(d.flops);
        longest = std::max(longest, d.flops);
    }
    most.plans++;
    most.dispatches = std::max(most.dispatches, plan.dispatches.size());
    // Half: cuts do not come out even.
    if (all > static_cast<double>(limit) * core::max_boxes / 2) return "";
    most.part_of_limit =
        std::max(most.part_of_limit, static_cast<double>(longest) / static_cast<double>(limit));
    return longest <= limit ? "" : fmt::format("a dispatch costs {}, the limit is {}", longest, limit);
}

}  // namespace

TEST_CASE("watchdog: no dispatch of up to a million keys is estimated above the device's limit") {
    Flaws flaws;
    Most most;
    for (const auto* devices : {&usable_devices(), &matrix_devices()})
        for (const Profile& device : *devices)
            for (const HeadDims dims : {d64, d128, HeadDims{256, 256}, HeadDims{576, 512}})
                for (const Shape& shape : long_shapes())
                    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16}) {
                        const Problem p = resolved(make_problem(dims, shape, Layout::contiguous, 16, dtype));
                        const auto forward = make_plan(device.caps, p, {});
                        REQUIRE(forward);
                        flaws.add(watchdog_flaw(device.caps, *forward, most), device.name + " forward", p);
                        const auto backward = make_plan(device.caps, p, make_backward(p), {});
                        if (!backward)
                            continue;  // the rows' statistics may exceed an allocation of the device
                        flaws.add(watchdog_flaw(device.caps, *backward, most), device.name + " backward", p);
                    }
    MESSAGE(fmt::format("{} plans, up to {} dispatches, the longest {:.2f} of its limit", most.plans,
                        most.dispatches, most.part_of_limit));
    CHECK_GT(most.plans, 1000);
    CHECK_GT(most.part_of_limit, 0.5);
}

TEST_CASE("watchdog: the largest problems have long dispatches rather than no plan") {
    constexpr uint32_t most_rows = VKATTN_MAX_SEQLEN, giga = 1u << 30;
    for (size_t i = 0; i < usable_devices().size(); i++) {
        const DeviceCaps& caps = usable_devices()[i].caps;
        // About a second.
        CHECK_LE(core::dispatch_limit(caps, {}),
                 caps.type == core::DeviceType::discrete ? 500'000'000'000 : 50'000'000'000);
        if (i % 8 != 0) continue;
        for (const Shape& shape :
             {Shape{1, 1, 1, most_rows, most_rows}, Shape{1, 64, 64, most_rows, most_rows, true},
              Shape{1, 1, 1, most_rows, most_rows, true, 4096}})
            planned(caps, resolved(make_problem({576, 576}, shape)));
        for (const Shape& shape : {Shape{1, 1, 1, 4 * million, giga}, Shape{1, 16, 1, million, giga, true},
                                   Shape{1, 1, 1, 1000, giga}, Shape{1, 8, 1, 4 * million, 1000},
                                   Shape{1, 1, 1, 16 * million, giga, true, 4096}})
            for (const HeadDims dims : {HeadDims{4, 4}, HeadDims{576, 576}}) {
                const Problem p = resolved(make_problem(dims, shape));
                const core::Backward b = make_backward(p);
                INFO(caps.name << ", " << to_text(p));
                CHECK_EQ(flaw_of(caps, p, b, planned(caps, p, b)), "");
            }
    }
}

TEST_CASE("watchdog: masks and features do not hide work from the estimate") {
    Flaws flaws;
    Most most;
    for (const Profile& device : matrix_devices())
        for (const Features& features : all_features()) {
            VkattnProblem given =
                make_problem(d128, {1, 4, 2, 8192, 1u << 17}, Layout::contiguous, 16, features.dtype);
            set_features(given, features);
            const Problem p = resolved(given);
            core::Options options = options_of(features);
            options.max_dispatch_flops = 0;
            const auto plan = make_plan(device.caps, p, options);
            if (!plan) continue;
            flaws.add(watchdog_flaw(device.caps, *plan, most), device.name + " " + features.name, p);
        }
    CHECK_GT(most.plans, 100);
}
