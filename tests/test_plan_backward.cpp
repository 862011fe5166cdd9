// Plans of vkattn_backward_create: cut and whole, and those of the baseline.
#include <doctest/doctest.h>

#include <algorithm>

#include "plan_flaws.hpp"
#include "plan_pieces.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Backward;

TEST_CASE("backward: loops are cut just where they exceed the limit, and scratch holds what they pass on") {
    const DeviceCaps& caps = profile("lavapipe");
    const Problem p = resolved(make_problem(d64, {1, 4, 1, 700, 900}));
    const Backward b = make_backward(p);
    const Plan whole = planned(caps, p, b);
    CHECK_EQ(flaw_of(caps, p, b, whole), "");
    CHECK_FALSE(is_cut(whole));
    uint64_t most_of_loop = 0;  // of a workgroup
    for (const auto& d : whole.dispatches)
        most_of_loop = std::max(most_of_loop, d.flops / (uint64_t{d.groups[0]} * d.groups[1]));
    const auto cut_at = [&](uint64_t limit, uint64_t scratch) {
        const Options o = limited(limit, scratch);
        const auto plan = make_plan(caps, p, b, o);
        if (!plan) return std::string("refused");
        CHECK_EQ(flaw_of(caps, p, b, *plan, o), "");
        CHECK((scratch == 0 || plan->scratch_bytes <= scratch));
        return std::string(is_cut(*plan) ? "cut" : "whole");
    };
    CHECK_EQ(cut_at(most_of_loop, 0), "whole");
    CHECK_EQ(cut_at(most_of_loop / 2, 0), "cut");
    const uint64_t needed = planned(caps, p, b, limited(most_of_loop / 2)).scratch_bytes;
    CHECK_EQ(cut_at(most_of_loop / 2, needed), "cut");
    CHECK_EQ(cut_at(most_of_loop / 2, needed - 256), "refused");
    CHECK_EQ(cut_at(most_of_loop, whole.scratch_bytes), "whole");
}

TEST_CASE("backward: a gradient's rows far apart need wide addresses") {
    constexpr uint64_t rows_of_gib = uint64_t{1} << 28;
    const DeviceCaps& caps = profile("amd_navi31");
    const Problem p = resolved(make_problem(d64, square(1, 1, 300)));
    VkattnStrides VkattnBackward::*const all[] = {
        &VkattnBackward::dout_strides, &VkattnBackward::dquery_strides, &VkattnBackward::dkey_strides,
        &VkattnBackward::dvalue_strides};
    for (const auto strides : all)
        for (const uint64_t seq : {uint64_t{64}, uint64_t{1} << 20, rows_of_gib}) {
            VkattnBackward given = core::default_backward();
            (given.*strides).seq = seq;
            const Backward b = resolved(p, given);
            const Plan plan = planned(caps, p, b);
            CHECK_EQ(flaw_of(caps, p, b, plan), "");
            for (const auto& pipeline : plan.pipelines)
                if (has_constant(pipeline, "far_rows"))
                    CHECK_EQ(constant(pipeline, "far_rows"), seq == rows_of_gib);
        }
}

TEST_CASE("baseline backward: pieces of whole groups, as many as scratch holds") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const Problem p = resolved(make_problem(d64, {2, 6, 2, 97, 113}));
    const Backward b = make_backward(p);
    const uint64_t matrix = matrix_bytes(p), fixed = planned(caps, p, b).scratch_bytes + 4 * 256 + 4 * 176;
    size_t before = 0;
    for (const uint64_t heads : {12u, 9u, 6u, 5u, 3u}) {
        const uint64_t limit = fixed + 2 * round_up(heads * matrix, 256) + 512;
        const Plan plan = planned(caps, p, b, limited(0, limit, "materialized"));
        INFO(heads);
        CHECK_EQ(flaw_of(caps, p, b, plan, limited(0, limit, "materialized")), "");
        CHECK_LE(plan.scratch_bytes, limit);
        CHECK_GE(plan.dispatches.size(), before);
        before = plan.dispatches.size();
    }
    CHECK_EQ(before, 12 + 1 + 4 * 7);  // the argument blocks, delta, and a kv head a piece
    const auto refused = make_plan(caps, p, b, limited(0, 2 * matrix, "materialized"));
    REQUIRE_FALSE(refused);
    CHECK_NE(refused.failure().message.find("bytes of scratch"), std::string::npos);
}

TEST_CASE("baseline backward: steps are there just when there is something to write") {
    const auto steps = [](const Shape& shape) {
        const Problem p = resolved(make_problem(d64, shape));
        const Backward b = make_backward(p);
        const Plan plan = planned(profile("lavapipe"), p, b, kernel("materialized"));
        CHECK_EQ(flaw_of(profile("lavapipe"), p, b, plan, kernel("materialized")), "");
        return plan.dispatches.size() - count_of(plan, Kind::arguments);
    };
    CHECK_EQ(steps({2, 4, 2, 9, 9}), 8);
    CHECK_EQ(steps({2, 4, 2, 0, 9}), 2);
    CHECK_EQ(steps({2, 4, 2, 9, 0}), 2);
    CHECK_EQ(steps({2, 4, 2, 0, 0}), 0);
    CHECK_EQ(steps({0, 4, 2, 9, 9}), 0);
}
