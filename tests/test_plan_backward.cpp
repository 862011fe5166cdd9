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

// Whether there is a reason to have no plan: a limit that was asked for, or more rows than scratch can tell of.
std::string refusal_flaw(const DeviceCaps& caps, const Problem& p, const core::Failure& why,
                         const Options& o) {
    if (why.status != VKATTN_UNSUPPORTED) return "refused: " + why.field + " " + why.message;
    if (o.max_dispatch_flops != 0 && why.field == "options.max_dispatch_flops") return "";
    const double statistics = 16.0 * p.batch * p.num_heads_q * p.seqlen_q;
    if (statistics + 1024 > double(caps.max_buffer_bytes) &&
        why.message.find("bytes of scratch") != std::string::npos)
        return "";
    return "refused: " + why.field + " " + why.message;
}

struct Counts {
    size_t all = 0, planned = 0, cut = 0;
};

std::string planning_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const Options& o,
                          Counts& counts) {
    const auto plan = make_plan(caps, p, b, o);
    counts.all++;
    if (!plan) return refusal_flaw(caps, p, plan.failure(), o);
    counts.planned++;
    counts.cut += is_cut(*plan);
    if (auto flaw = flaw_of(caps, p, b, *plan, o); !flaw.empty()) return flaw;
    if (plan->dispatches.size() > 1000) return "";  // long to compare
    const auto again = make_plan(caps, p, b, o);
    return again && difference(*plan, *again).empty() ? "" : "not deterministic";
}

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

// Returns true if a problem's tiles of keys alone make tens of thousands of dispatches, but for every sixteenth one:
// such plans take most of the time and differ little between devices.
bool many_keys(const Problem& p, size_t turn) {
    return p.seqlen_kv > 1u << 26 && turn % 16 != 0;
}

// Whether the limit of these features cuts this problem into thousands.
bool many_dispatches(const Problem& p, const Features& f) {
    const double pairs = double(p.batch) * p.num_heads_q * p.seqlen_q * p.seqlen_kv;
    return f.max_dispatch_flops != 0 &&
           pairs * (p.head_dim_qk + p.head_dim_v) * 4 > 1e3 * double(f.max_dispatch_flops);
}

}  // namespace

TEST_CASE("backward: every profile, head dim, shape and layout") {
    Flaws flaws;
    Counts counts;
    size_t turn = 0;
    for (const Profile& device : usable_devices()) {
        turn++;
        for (const HeadDims dims : all_head_dims())
            for (const Shape& shape : all_shapes()) {
                const auto layout = static_cast<Layout>(turn % static_cast<size_t>(Layout::count));
                const uint32_t alignment = turn / static_cast<size_t>(Layout::count) % 2 == 0 ? 4 : 16;
                turn++;
                const Problem p = resolved(make_problem(dims, shape, layout, alignment));
                if ((is_heavy(p) && turn % 64 != 0) || many_keys(p, turn)) continue;
                flaws.add(planning_flaw(device.caps, p, make_backward(p, turn % 3 == 0), {}, counts),
                          device.name + ", " + name_of(layout), p);
            }
    }
    CHECK_GT(counts.planned, counts.all * 8 / 10);  // the others have too many rows
}

TEST_CASE("backward: every feature, shape and device") {
    Flaws flaws;
    Counts counts;
    size_t turn = 0;
    for (const Profile& device : usable_devices())
        for (const Features& f : all_features()) {
            turn++;
            for (const Shape& shape : all_shapes()) {
                turn++;
                if (f.num_splits > 1 || (f.query_offsets && shape.align == VKATTN_ALIGN_OFFSET)) continue;
                const HeadDims dims = all_head_dims()[turn % all_head_dims().size()];
                const auto layout = static_cast<Layout>(turn / 3 % static_cast<size_t>(Layout::count));
                const uint32_t alignment = 2u << turn % 4;
                VkattnProblem given =
                    make_problem(dims, shape, layout, std::max(alignment, f.dtype == 0 ? 4u : 2u), f.dtype);
                set_features(given, f);
                const Problem p = resolved(given);
                if ((is_heavy(p) || many_dispatches(p, f)) && turn % 64 != 0) continue;
                if (many_keys(p, turn)) continue;
                const Backward b = make_backward(p, turn % 2 == 0);
                flaws.add(planning_flaw(device.caps, p, b, options_of(f), counts),
                          fmt::format("{}, {}, {}", device.name, f.name, name_of(layout)), p);
            }
        }
    CHECK_GT(counts.planned, counts.all * 6 / 10);
}

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

TEST_CASE(
    "backward: without a limit, long dispatches rather than none, and short ones where that is possible") {
    constexpr uint32_t giga = 1u << 30;
    size_t turn = 0;
    for (const Profile& device : usable_devices()) {
        const uint64_t second =
            device.caps.type == core::DeviceType::discrete ? 500'000'000'000 : 50'000'000'000;
        for (const Shape& shape : {Shape{1, 16, 16, 4096, 4096}, Shape{1, 8, 1, 32768, 32768, true}}) {
            const Problem p = resolved(make_problem(d128, shape));
            const Backward b = make_backward(p);
            const Plan plan = planned(device.caps, p, b);
            INFO(device.name);
            CHECK_EQ(flaw_of(device.caps, p, b, plan), "");
            for (const auto& d : plan.dispatches) CHECK_LE(d.flops, second);
        }
        if (turn++ % 16 != 0) continue;
        for (const Shape& shape : {Shape{1, 1, 1, 4 * million, giga}, Shape{1, 16, 1, million, giga, true},
                                   Shape{1, 1, 1, 1000, giga}, Shape{1, 8, 1, 4 * million, 1000},
                                   Shape{1, 1, 1, 16 * million, giga, true, 4096}})
            for (const HeadDims dims : {HeadDims{4, 4}, HeadDims{576, 576}}) {
                const Problem p = resolved(make_problem(dims, shape));
                const Backward b = make_backward(p);
                const auto plan = make_plan(device.caps, p, b, {});
                INFO(device.name << ", " << to_text(p));
                if (!plan) CHECK_EQ(refusal_flaw(device.caps, p, plan.failure(), {}), "");
                if (plan) CHECK_EQ(flaw_of(device.caps, p, b, *plan), "");
            }
    }
}

TEST_CASE("backward: every mask shape on large and small grids") {
    Flaws flaws;
    Counts counts;
    DeviceCaps few = smallest_device();
    few.max_workgroup_count = {7, 3, 5};
    for (const DeviceCaps& caps : {few, profile("nvidia_h200"), profile("swiftshader")})
        for (uint32_t shape = 0; shape < static_cast<uint32_t>(MaskShape::count); shape++)
            for (const Shape& s :
                 {Shape{3, 6, 2, 3, 700, true}, Shape{2, 8, 1, 1, 500}, Shape{1, 4, 4, 900, 300},
                  Shape{1, 1, 1, 1, 1}, Shape{1, 2, 1, 70, 1},
                  // Not all of the results are there, or none is.
                  Shape{2, 4, 2, 0, 9}, Shape{2, 4, 2, 9, 0}, Shape{0, 4, 2, 9, 9}, Shape{0, 4, 2, 0, 0}})
                for (const uint64_t limit : {uint64_t{0}, uint64_t{1} << 27}) {
                    const Problem p = masked(d64, s, static_cast<MaskShape>(shape));
                    flaws.add(planning_flaw(caps, p, make_backward(p, true), limited(limit), counts),
                              fmt::format("{}, mask {}", caps.name, shape), p);
                }
    CHECK_GT(counts.planned, 200);
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
