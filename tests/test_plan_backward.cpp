// Plans of vkattn_backward_create: on every device and many problems, cut and whole.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

size_t barriers_of(const Plan& plan) {
    return static_cast<size_t>(std::count_if(plan.dispatches.begin(), plan.dispatches.end(),
                                             [](const auto& d) { return d.barrier_before; }));
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

namespace {

// Problems of all sizes, most of them small enough that rare branches meet.
class Fuzz {
  public:
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
    bool one_in(uint32_t n) { return below(n) == 0; }
    template <class T>
    const T& of(const std::vector<T>& all) {
        return all[below(static_cast<uint32_t>(all.size()))];
    }

    uint32_t length() { return below(1u << (1 + below(17))); }

    Problem problem() {
        const uint32_t heads = 1 + below(4), group = one_in(2) ? 1 : 1 + below(9);
        Shape s{below(4), heads * group, heads, length(), length(), one_in(2)};
        if (one_in(3)) s.window_left = below(300);
        if (one_in(3)) s.window_right = below(300);
        s.align = static_cast<VkattnAlign>(below(4));
        s.query_offset = int64_t{below(5000)} - 2500;
        const auto dtype = static_cast<VkattnDtype>(below(3));
        const uint32_t unit = dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
        const auto layout = static_cast<Layout>(below(static_cast<uint32_t>(Layout::count)));
        VkattnProblem p = make_problem({1 + below(300), 1 + below(300)}, s, layout, unit << below(3), dtype);
        if (one_in(2))
            set_mask(p, one_in(3) ? VKATTN_MASK_BOOL : VKATTN_MASK_FLOAT,
                     static_cast<MaskShape>(below(static_cast<uint32_t>(MaskShape::count))));
        p.kv_lengths = one_in(3);
        if (one_in(4)) p.softcap = 30;
        return resolved(p);
    }

    Options options() {
        Options o;
        if (one_in(2)) o.max_dispatch_flops = uint64_t{1} << (18 + below(20));
        if (one_in(3)) o.max_scratch_bytes = uint64_t{1} << (8 + below(22));
        o.batch_invariant = one_in(4);
        o.num_splits = below(2);
        return o;
    }

  private:
    std::mt19937 engine_{20230717};
};

}  // namespace

TEST_CASE("backward: problems and options at random") {
    Flaws flaws;
    Fuzz fuzz;
    Counts counts;
    for (size_t i = 0; i < 3000; i++) {
        const Profile& device = fuzz.of(usable_devices());
        const Problem p = fuzz.problem();
        const Options o = fuzz.options();
        const Backward b = make_backward(p, fuzz.one_in(2));
        flaws.add(planning_flaw(device.caps, p, b, o, counts),
                  fmt::format("problem {}, {}, limit {}", i, device.name, o.max_dispatch_flops), p);
    }
    CHECK_GT(counts.planned, counts.all * 6 / 10);
    CHECK_GT(counts.cut, counts.all / 50);
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

TEST_CASE("backward: passes are there just when there is something to write") {
    using Kinds = std::vector<Kind>;
    const auto kinds = [](const Problem& p) {
        for (const char* name : {"lavapipe", "nvidia_h200"}) {
            const Plan plan = planned(profile(name), p, make_backward(p));
            CHECK_EQ(flaw_of(profile(name), p, make_backward(p), plan), "");
        }
        Kinds seen;
        const Plan plan = planned(profile("lavapipe"), p, make_backward(p));
        for (const auto& d : plan.dispatches) seen.push_back(kind_of(plan, d));
        return seen;
    };
    const auto plain = [&](const Shape& shape) { return kinds(resolved(make_problem(d64, shape))); };
    const Kinds all{Kind::delta, Kind::dquery, Kind::dkey_dvalue, Kind::dbias};
    CHECK(plain({2, 4, 2, 9, 9}) == Kinds{Kind::delta, Kind::dquery, Kind::dkey_dvalue});
    CHECK(plain({2, 4, 2, 0, 9}) == Kinds{Kind::dkey_dvalue});
    CHECK(plain({2, 4, 2, 9, 0}) == Kinds{Kind::delta, Kind::dquery});
    CHECK(plain({2, 4, 2, 0, 0}).empty());
    CHECK(plain({0, 4, 2, 9, 9}).empty());
    const auto with = [&](const Shape& shape, MaskShape mask) { return kinds(masked(d64, shape, mask)); };
    CHECK(with({2, 4, 2, 9, 9}, MaskShape::whole) == all);
    CHECK(with({2, 4, 2, 0, 9}, MaskShape::whole) == Kinds{Kind::dkey_dvalue});
    CHECK(with({2, 4, 2, 0, 9}, MaskShape::keys) == Kinds{Kind::dkey_dvalue, Kind::dbias});
    CHECK(with({2, 4, 2, 9, 0}, MaskShape::whole) == Kinds{Kind::delta, Kind::dquery});
    CHECK(with({2, 4, 2, 9, 0}, MaskShape::queries) == Kinds{Kind::delta, Kind::dquery, Kind::dbias});
    CHECK(with({0, 4, 2, 9, 9}, MaskShape::shared) == Kinds{Kind::dbias});
    CHECK(with({0, 4, 2, 0, 0}, MaskShape::one) == Kinds{Kind::dbias});
    CHECK(kinds(masked(d64, {2, 4, 2, 9, 9}, MaskShape::whole, VKATTN_MASK_BOOL)) ==
          Kinds{Kind::delta, Kind::dquery, Kind::dkey_dvalue});
}

TEST_CASE("backward: every mask shape on large and small grids") {
    Flaws flaws;
    Counts counts;
    DeviceCaps few = smallest_device();
    few.max_workgroup_count = {7, 3, 5};
    for (const DeviceCaps& caps : {few, profile("nvidia_h200"), profile("swiftshader")})
        for (uint32_t shape = 0; shape < static_cast<uint32_t>(MaskShape::count); shape++)
            for (const Shape& s : {Shape{3, 6, 2, 3, 700, true}, Shape{2, 8, 1, 1, 500},
                                   Shape{1, 4, 4, 900, 300}, Shape{1, 1, 1, 1, 1}, Shape{1, 2, 1, 70, 1}})
                for (const uint64_t limit : {uint64_t{0}, uint64_t{1} << 27}) {
                    const Problem p = masked(d64, s, static_cast<MaskShape>(shape));
                    flaws.add(planning_flaw(caps, p, make_backward(p, true), limited(limit), counts),
                              fmt::format("{}, mask {}", caps.name, shape), p);
                }
    CHECK_GT(counts.planned, 200);
}

TEST_CASE("backward: one workgroup sums dbias over the query heads of a mask head") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const auto dbias = [&](MaskShape shape) {
        const Problem p = masked(d64, {2, 12, 4, 256, 256}, shape);
        const Plan plan = planned(caps, p, make_backward(p));
        const auto d = std::find_if(plan.dispatches.begin(), plan.dispatches.end(),
                                    [&](const auto& x) { return kind_of(plan, x) == Kind::dbias; });
        REQUIRE(d != plan.dispatches.end());
        return std::pair{d->groups[0], d->flops};
    };
    const auto [all, flops] = dbias(MaskShape::whole);
    const auto [few, same] = dbias(MaskShape::few_heads);  // 4 mask heads
    CHECK_EQ(all, 24);
    CHECK_EQ(few, 8);
    CHECK_EQ(same, flops);
}

TEST_CASE("backward: delta, then dquery, then what needs the rows' factors: two barriers") {
    for (const Profile& device : usable_devices()) {
        const Problem p = masked(d64, {2, 4, 2, 300, 500}, MaskShape::all_batches);
        const Plan plan = planned(device.caps, p, make_backward(p));
        INFO(device.name);
        CHECK_EQ(barriers_of(plan), 2);
        const auto is = [&](Kind kind) {
            return std::find_if(plan.dispatches.begin(), plan.dispatches.end(),
                                [&](const auto& d) { return kind_of(plan, d) == kind; });
        };
        CHECK(is(Kind::dquery)->barrier_before);
        CHECK(is(Kind::dkey_dvalue)->barrier_before);
        CHECK_FALSE(is(Kind::dbias)->barrier_before);
        CHECK_FALSE(is(Kind::delta)->barrier_before);
    }
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

namespace {

// What decides which pipelines are built.
auto built(const Plan& plan) {
    std::set<std::tuple<core::Module, bool, core::ConstantValues>> all;
    for (const auto& pipeline : plan.pipelines)
        all.emplace(pipeline.module, pipeline.rolled, pipeline.constants);
    return all;
}

}  // namespace

TEST_CASE("backward: constants depend on neither lengths nor counts") {
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : all_head_dims()) {
            const Problem first = resolved(make_problem(dims, square(1, 1, 1000)));
            const Plan plan = planned(device.caps, first, make_backward(first));
            for (const Shape& shape :
                 {Shape{3, 6, 2, 597, 1025, true}, Shape{1, 8, 1, 1025, 97, false, 16, 3},
                  Shape{70000, 1, 1, 30, 7}, Shape{1, 1, 1, 6553, 1}}) {
                const Problem p = resolved(make_problem(dims, shape, Layout::bshd));
                const Plan other = planned(device.caps, p, make_backward(p));
                flaws.add(built(plan) == built(other) ? "" : "constants", device.name, p);
                flaws.add(plan.tuning_row == other.tuning_row ? "" : "row", device.name, p);
            }
        }
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

TEST_CASE("backward: describe says in JSON what the plan holds") {
    const Problem p = masked(d64, {2, 4, 2, 97, 203}, MaskShape::whole);
    const Plan plan = planned(profile("intel_dg2"), p, make_backward(p));
    const auto json = nlohmann::json::parse(core::describe(plan));
    CHECK_EQ(json.at("kernel"), "tiles");
    CHECK_EQ(json.at("tuning_row"), plan.tuning_row);
    CHECK_EQ(json.at("tuning"), plan.tuning);
    CHECK_EQ(json.at("scratch_bytes"), plan.scratch_bytes);
    REQUIRE_EQ(json.at("dispatches").size(), plan.dispatches.size());
    for (size_t i = 0; i < plan.dispatches.size(); i++)
        CHECK_EQ(json.at("dispatches").at(i).at("variant"), name_of(pipeline_of(plan, plan.dispatches[i])));
    CHECK_EQ(json.at("refused").size(), 4);
    CHECK_EQ(json.at("refused").at("tiles_dot"), "its products are of 16-bit types, not float32");
    CHECK_EQ(json.at("refused").at("matrix"),
             "float32 in means float32 arithmetic, unless options.precision says otherwise");
    CHECK_EQ(json.at("refused").at("matrix_khr"), "only by name: for comparison");
    CHECK_EQ(json.at("refused").at("materialized"), "only by name: for comparison");
}
