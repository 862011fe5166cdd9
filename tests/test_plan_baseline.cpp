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

std::string refusal(const Problem& p, const Backward& b, const Options& o) {
    const auto plan = make_plan(profile("nvidia_h200"), p, b, o);
    return plan ? "planned" : plan.failure().field + ": " + plan.failure().message;
}

}  // namespace

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
