// Plans of vkattn_backward_create: on every device and many problems, cut and whole.
#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_pieces.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Backward;
using core::Region;

namespace {

Options limited(uint64_t flops, uint64_t scratch = 0) {
    Options o;
    o.max_dispatch_flops = flops;
    o.max_scratch_bytes = scratch;
    return o;
}

Problem masked(HeadDims dims, const Shape& shape, MaskShape mask, VkattnMaskType type = VKATTN_MASK_FLOAT) {
    VkattnProblem p = make_problem(dims, shape);
    set_mask(p, type, mask);
    return resolved(p);
}

size_t count_of(const Plan& plan, Kind kind) {
    return static_cast<size_t>(std::count_if(plan.dispatches.begin(), plan.dispatches.end(),
                                             [&](const auto& d) { return kind_of(plan, d) == kind; }));
}

}  // namespace

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

TEST_CASE("backward: classes of mask tiles, where there are many and scratch has room") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const auto classified = [&](const Shape& shape, const Options& o = {}) {
        const Problem p = masked(d64, shape, MaskShape::all_heads);
        const Plan plan = planned(caps, p, make_backward(p), o);
        CHECK_EQ(flaw_of(caps, p, make_backward(p), plan, o), "");
        return count_of(plan, Kind::classes) == 1;
    };
    CHECK(classified({2, 4, 4, 2048, 2048}));
    CHECK_FALSE(classified({2, 4, 4, 64, 64}));
    CHECK_FALSE(classified({2, 4, 4, 2048, 2048}, limited(0, 1024)));
    // Nor where a loop's accumulators need the room.
    const uint64_t limit = 100'000'000;
    const Problem p = masked(d64, {1, 1, 1, 2048, 2048}, MaskShape::whole);
    const uint64_t all = planned(caps, p, make_backward(p), limited(limit)).scratch_bytes;
    CHECK(classified({1, 1, 1, 2048, 2048}, limited(limit, all)));
    CHECK_FALSE(classified({1, 1, 1, 2048, 2048}, limited(limit, all - 256)));
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
                CHECK_EQ(constant(pipeline, "far_rows"), seq == rows_of_gib);
        }
}
