// Plans of the baseline's backward.
#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_pieces.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Backward;

namespace {

Options baseline(uint64_t scratch = 0) {
    Options o = kernel("materialized");
    o.max_scratch_bytes = scratch;
    return o;
}

// Whether there is a reason not to plan: scratch or grids, which the message must name.
bool has_obstacle(const core::Failure& why) {
    return why.status == VKATTN_UNSUPPORTED && (why.message.find("bytes of scratch") != std::string::npos ||
                                                why.message.find("grid") != std::string::npos ||
                                                why.message.find("too many dispatches") != std::string::npos);
}

std::string refusal(const Problem& p, const Backward& b, const Options& o) {
    const auto plan = make_plan(profile("nvidia_h200"), p, b, o);
    return plan ? "planned" : plan.failure().field + ": " + plan.failure().message;
}

}  // namespace

TEST_CASE("baseline backward: every profile, head dim, shape and layout") {
    Flaws flaws;
    size_t turn = 0, all = 0, planned = 0;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : all_head_dims())
            for (const Shape& shape : all_shapes()) {
                const auto layout = static_cast<Layout>(turn % static_cast<size_t>(Layout::count));
                const Problem p = resolved(make_problem(dims, shape, layout, turn % 2 == 0 ? 4 : 16));
                turn++;
                if (is_heavy(p) && turn % 64 != 0) continue;
                const Backward b = make_backward(p);
                const auto plan = make_plan(device.caps, p, b, baseline());
                all++;
                planned += static_cast<bool>(plan);
                if (plan)
                    flaws.add(flaw_of(device.caps, p, b, *plan, baseline()), device.name, p);
                else
                    flaws.add(has_obstacle(plan.failure()) ? "" : plan.failure().message, device.name, p);
            }
    CHECK_GT(planned, all / 2);
}

TEST_CASE("baseline backward: pieces of whole groups, as many as scratch holds") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const Problem p = resolved(make_problem(d64, {2, 6, 2, 97, 113}));
    const Backward b = make_backward(p);
    const uint64_t matrix = matrix_bytes(p), fixed = planned(caps, p, b).scratch_bytes + 4 * 256 + 4 * 176;
    size_t before = 0;
    for (const uint64_t heads : {12u, 9u, 6u, 5u, 3u}) {
        const uint64_t limit = fixed + 2 * round_up(heads * matrix, 256) + 512;
        const Plan plan = planned(caps, p, b, baseline(limit));
        INFO(heads);
        CHECK_EQ(flaw_of(caps, p, b, plan, baseline(limit)), "");
        CHECK_LE(plan.scratch_bytes, limit);
        CHECK_GE(plan.dispatches.size(), before);
        before = plan.dispatches.size();
    }
    CHECK_EQ(before, 1 + 4 * 7);  // delta, and a kv head a piece
    CHECK_NE(refusal(p, b, baseline(2 * matrix)).find("bytes of scratch"), std::string::npos);
}

TEST_CASE("baseline backward: steps are there just when there is something to write") {
    const auto steps = [](const Shape& shape) {
        const Problem p = resolved(make_problem(d64, shape));
        const Backward b = make_backward(p);
        const Plan plan = planned(profile("lavapipe"), p, b, baseline());
        CHECK_EQ(flaw_of(profile("lavapipe"), p, b, plan, baseline()), "");
        return plan.dispatches.size();
    };
    CHECK_EQ(steps({2, 4, 2, 9, 9}), 8);
    CHECK_EQ(steps({2, 4, 2, 0, 9}), 2);
    CHECK_EQ(steps({2, 4, 2, 9, 0}), 2);
    CHECK_EQ(steps({2, 4, 2, 0, 0}), 0);
    CHECK_EQ(steps({0, 4, 2, 9, 9}), 0);
}

TEST_CASE("baseline backward: what it does not do is refused by name") {
    const VkattnProblem plain = make_problem(d64, {2, 4, 2, 97, 113});
    const auto with = [&](void (*change)(VkattnProblem&, Options&), bool dlse = false) {
        VkattnProblem given = plain;
        Options o = baseline();
        change(given, o);
        const Problem p = resolved(given);
        return refusal(p, make_backward(p, dlse), o);
    };
    const auto none = [](VkattnProblem&, Options&) {};
    const std::string no = "options.kernel: the baseline has no ";
    CHECK_EQ(with(none), "planned");
    CHECK_EQ(with(none, true), no + "gradient of lse");
    CHECK_EQ(with([](VkattnProblem& p, Options&) { p.softcap = 3; }), no + "softcap in its backward");
    CHECK_EQ(with([](VkattnProblem& p, Options&) { p.kv_lengths = 1; }), no + "kv lengths");
    CHECK_EQ(with([](VkattnProblem& p, Options&) { p.align = VKATTN_ALIGN_OFFSETS; }),
             no + "offsets per batch");
    CHECK_EQ(with([](VkattnProblem& p, Options&) { set_mask(p, VKATTN_MASK_BOOL, MaskShape::whole); }),
             no + "mask");
    CHECK_EQ(with([](VkattnProblem&, Options& o) { o.batch_invariant = true; }), no + "batch-invariant mode");
    CHECK_EQ(with([](VkattnProblem&, Options& o) { o.max_dispatch_flops = 1; }),
             no + "limit of a dispatch's cost");
    CHECK_EQ(with([](VkattnProblem& p, Options&) { p.dtype = VKATTN_DTYPE_FLOAT16; }),
             no + "storage in float16");
}
