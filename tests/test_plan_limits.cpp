// What dispatches cost: the limit that a caller sets, the device's own, and the pairs of a row and a key that they
// have. Also batch invariance, which says where keys may be cut.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "plan/cuts.hpp"
#include "plan/launch.hpp"
#include "plan/loops.hpp"
#include "plan/quirks.hpp"
#include "plan_flaws.hpp"
#include "plan_pieces.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

uint64_t tile_flops(const Plan& plan) {
    return 2ull * plan.tiles.tile_q * plan.tiles.tile_kv *
           (plan.problem.head_dim_qk + plan.problem.head_dim_v);
}

// Debian 12's lavapipe, and the one that the profile is of.
DeviceCaps lavapipe_of(std::string_view driver_info) {
    DeviceCaps caps = profile("lavapipe");
    caps.mesa_version = core::mesa_version_in(driver_info);
    return caps;
}

// Iterations of a workgroup's loops, from its tiles: at least one for each key that its rows are multiplied with, and
// for each chunk of head dims.
uint64_t least_iterations(const Plan& plan, uint64_t keys) {
    const uint64_t chunks = (plan.problem.head_dim_qk + 15) / 16;
    return plan.kernel == "rows" ? 2 * keys : keys + keys / plan.tiles.tile_kv * chunks * 16;
}

}  // namespace

TEST_CASE("limit: where a driver ends loops early, no workgroup walks far, or the problem is refused") {
    const DeviceCaps old = lavapipe_of("Mesa 22.3.6 (LLVM 15.0.6)"),
                     sound = lavapipe_of("Mesa 25.0.7-2+deb13u1 (LLVM 19.1.7)");
    CHECK(core::quirk_loops_end_early(old));
    CHECK_FALSE(core::quirk_loops_end_early(sound));
    CHECK_FALSE(core::quirk_loops_end_early(profile("lavapipe")));
    for (const HeadDims dims : {HeadDims{4, 4}, {64, 64}, {256, 256}, {576, 576}})
        for (const uint32_t rows : {1u, 40u})
            for (const bool invariant : {false, true}) {
                INFO(dims.v << " dims, " << rows << " rows, " << invariant);
                Options o;
                o.batch_invariant = invariant;
                const Problem p = resolved(make_problem(dims, {1, 1, 1, rows, 200000}));
                const Plan plan = planned(old, p, o);
                CHECK_EQ(flaw_of(old, p, plan, o), "");
                CHECK_GT(plan.num_splits, 2);
                CHECK_LE(least_iterations(plan, 200000 / (plan.num_splits - 1)), 40000);
                CHECK_LT(planned(sound, p, o).num_splits, plan.num_splits);
            }
    // It is the same by hand, and what is short is as on other drivers.
    Options one;
    one.num_splits = 1;
    const Problem p = resolved(make_problem(d64, {1, 1, 1, 1, 200000}));
    CHECK_GT(planned(old, p, one).num_splits, 2);
    CHECK_EQ(planned(sound, p, one).num_splits, 1);
    const Problem few = resolved(make_problem(d64, {1, 1, 1, 1, 500}));
    CHECK_EQ(core::describe(planned(old, few, one)), core::describe(planned(sound, few, one)));
}

TEST_CASE(
    "limit: where a driver ends loops early, the backward's loops are cut, and what cannot be is refused") {
    const DeviceCaps old = lavapipe_of("Mesa 22.3.6 (LLVM 15.0.6)"), sound = profile("lavapipe");
    for (const HeadDims dims : {HeadDims{8, 8}, {128, 128}, {576, 512}}) {
        INFO(dims.v);
        const Problem p = resolved(make_problem(dims, {2, 4, 2, 3000, 5000}));
        const core::Backward b = make_backward(p);
        const auto plan = make_plan(old, p, b, {});
        REQUIRE(plan);
        CHECK_EQ(flaw_of(old, p, b, *plan), "");
        CHECK_GT(plan->dispatches.size(), make_plan(sound, p, b, {})->dispatches.size());
        // A step is a tile of keys or of queries.
        const uint64_t rows = std::min(plan->tiles.tile_q, plan->tiles.tile_kv);
        for (const core::Dispatch& d : plan->dispatches) {
            if (d.cut.first_step == 0) continue;
            CHECK_EQ(d.groups[2], 1);  // slices take turns
            CHECK_LE(core::iterations_of(p, (d.cut.end_step - d.cut.first_step) * rows, true), 65535);
        }
    }
    const auto refusal = [&](const auto& plan, const char* field) {
        REQUIRE_FALSE(plan);
        CHECK_EQ(plan.failure().field, field);
        CHECK_EQ(plan.failure().message.find(core::loops_end_early), 0);
    };
    Options o;
    o.max_scratch_bytes = 1 << 20;
    const Problem p = resolved(make_problem(d128, {1, 1, 1, 20000, 40000}));
    refusal(make_plan(old, p, make_backward(p), o), "problem.seqlen_kv");
    VkattnProblem masked = make_problem(d64, {1, 1, 1, 30000, 64});
    set_mask(masked, VKATTN_MASK_FLOAT, MaskShape::keys);
    const Problem biased = resolved(masked);
    refusal(make_plan(old, biased, make_backward(biased), {}), "problem.seqlen_q");
    o.kernel = "materialized";
    o.max_scratch_bytes = 0;
    const Problem wide = resolved(make_problem(d64, {1, 1, 1, 8, 2000000}));
    refusal(make_plan(old, wide, o), "problem.seqlen_kv");
}

TEST_CASE("limit: of the most dispatches that a plan may have, each takes few bytes") {
    static_assert(sizeof(core::Dispatch) <= 64);
    DeviceCaps caps = smallest_device();
    caps.max_workgroup_count = {1, 1, 1};
    const auto problem = [](uint32_t seqlen_q) {
        return resolved(make_problem(d64, {1, 256, 256, seqlen_q, 100}));
    };
    const uint32_t tile_q = planned(smallest_device(), problem(1000)).tiles.tile_q;
    const Problem p = problem(256 * tile_q);
    const Plan plan = planned(caps, p);
    CHECK_EQ(plan.dispatches.size(), 65536);
    CHECK_EQ(plan.pipelines.size(), 1);
    CHECK_LE(plan.dispatches.size() * sizeof plan.dispatches[0], 65536 * 64);
    CHECK_EQ(flaw_of(caps, p, plan), "");
    CHECK_FALSE(make_plan(caps, problem(256 * tile_q + 1), {}));
}

TEST_CASE("limit: a narrow window over many keys needs no parts") {
    for (const Profile& device : usable_devices())
        for (const bool invariant : {false, true})
            for (const VkattnAlign align : {VKATTN_ALIGN_BOTTOM_RIGHT, VKATTN_ALIGN_OFFSETS}) {
                Options o = limited(1'000'000'000);
                o.batch_invariant = invariant;
                const Problem p =
                    resolved(make_problem(d64, {1, 1, 1, 1u << 21, 1u << 26, true, 128, -1, align}));
                const auto plan = make_plan(device.caps, p, o);
                INFO(device.name);
                REQUIRE(plan);
                CHECK_EQ(flaw_of(device.caps, p, *plan, o), "");
                CHECK_EQ(plan->num_splits, 1);
            }
}

namespace {

Options invariant(uint64_t flops = 0) {
    Options o = limited(flops);
    o.batch_invariant = true;
    return o;
}

// What may differ: how rows are addressed. is_split too, for one part that holds all keys combines to itself.
auto arithmetic_of(const core::Pipeline& pipeline) {
    Values values = constants_of(pipeline);
    for (const char* name : {"packed_heads", "far_rows", "has_arguments", "is_split"})
        if (values.erase(name) != 1) throw std::runtime_error(std::string("no constant ") + name);
    return std::pair(pipeline.module, values);
}

const core::Pipeline& forward_of(const Plan& plan) {
    for (const auto& pipeline : plan.pipelines)
        if (kind_of(pipeline) == Kind::forward) return pipeline;
    throw std::runtime_error("no forward pipeline");
}

}  // namespace

TEST_CASE("invariance: the same numbers for any lengths, batch, heads") {
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : all_head_dims()) {
            const Plan first =
                planned(device.caps, resolved(make_problem(dims, {1, 1, 1, 1, 4096})), invariant());
            for (const Shape& shape :
                 {Shape{7, 1, 1, 1, 4096}, Shape{1, 32, 1, 1, 4096}, Shape{1, 4, 4, 3, 4096},
                  Shape{2, 8, 2, 97, 4096}, Shape{1, 8, 8, 5000, 4096}, Shape{1, 1, 1, 1, 100'000},
                  Shape{1, 32, 8, 1, 7}}) {
                const Problem p = resolved(make_problem(dims, shape, Layout::bshd));
                const Plan other = planned(device.caps, p, invariant());
                flaws.add(flaw_of(device.caps, p, other, invariant()), device.name, p);
                flaws.add(
                    other.tuning == first.tuning && other.tuning_row == first.tuning_row ? "" : "tuning",
                    device.name, p);
                flaws.add(
                    arithmetic_of(forward_of(other)) == arithmetic_of(forward_of(first)) ? "" : "constants",
                    device.name, p);
                flaws.add(other.num_splits == 1 ? "" : "parts, though the limit is far", device.name, p);
            }
        }
}

namespace {

// Where the plan cuts the keys begin .. end-1 of a row, of all the places where it could.
std::vector<uint64_t> cuts_of(const Parts& m, uint64_t begin, uint64_t end) {
    std::vector<uint64_t> cuts;
    if (m.span == 0) return cuts;
    for (uint64_t at = (begin / m.span + 1) * m.span; at < end; at += m.span) cuts.push_back(at);
    return cuts;
}

}  // namespace

TEST_CASE("invariance: a row's keys are cut at the same places whatever else is in the problem") {
    using Row = std::tuple<int64_t, uint64_t, uint64_t>;  // window, first key, last key
    for (const char* name : {"nvidia_h200", "lavapipe", "apple_m1"})
        for (const uint64_t limit_tiles : {1u, 2u, 5u, 8u, 40u}) {
            const DeviceCaps& caps = profile(name);
            const uint64_t tile =
                tile_flops(planned(caps, resolved(make_problem(d64, square(1, 1, 1))), invariant()));
            std::map<Row, std::vector<uint64_t>> seen;
            std::map<uint64_t, size_t> spans;
            size_t planned_count = 0;
            Flaws flaws;
            for (const int64_t window : {-1, 0, 100, 700})
                for (const uint32_t heads : {1u, 8u})
                    for (const uint32_t q : {1u, 60u, 333u})
                        for (const uint32_t kv : {33u, 300u, 999u, 1500u})
                            for (const int64_t offset : {0, 500, 1400}) {
                                const Shape shape{
                                    1, heads, 1, q, kv, true, window, -1, VKATTN_ALIGN_OFFSET, offset};
                                const Problem p = resolved(make_problem(d64, shape));
                                const Options o = invariant(limit_tiles * tile);
                                const auto plan = make_plan(caps, p, o);
                                if (!plan) continue;
                                planned_count++;
                                flaws.add(flaw_of(caps, p, *plan, o), name, p);
                                const Parts m = parts_of({caps, p, nullptr, nullptr, *plan, o});
                                if (m.span != 0) spans[m.span]++;
                                for (const int64_t i : {0u, q / 2, q - 1}) {
                                    const int64_t at = i + offset, end = std::min<int64_t>(at + 1, kv),
                                                  begin = window < 0 ? 0 : std::max<int64_t>(0, at - window);
                                    if (begin >= end) continue;
                                    const Row row{window, begin, end};
                                    const auto cuts =
                                        cuts_of(m, static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
                                    const auto [known, is_new] = seen.try_emplace(row, cuts);
                                    flaws.add(is_new || known->second == cuts
                                                  ? ""
                                                  : fmt::format("keys {} .. {} cut differently", begin, end),
                                              name, p);
                                }
                            }
            INFO(name << ", " << limit_tiles << " tiles");
            CHECK_LE(spans.size(), 1);
            CHECK_GE(planned_count, 150);
        }
}

// Drivers kill dispatches that run for seconds. Without a limit of the caller's, no dispatch of a problem with up to a
// million keys is estimated above the default for its device, unless the plan would have more dispatches than it may.
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

// Pairs of a row and a key that dispatches of small problems have, counted one by one by the definition of visibility.
namespace {

// Counts the visible places of some rows and keys. Each place is looked at once; sums of all before it are kept.
class Pairs {
  public:
    explicit Pairs(const Problem& p) : width_(p.seqlen_kv + 1), before_((p.seqlen_q + 1) * width_) {
        for (uint64_t i = 0; i < p.seqlen_q; i++)
            for (uint64_t j = 0; j < p.seqlen_kv; j++)
                before_[(i + 1) * width_ + j + 1] =
                    before(i, j + 1) + before(i + 1, j) - before(i, j) +
                    sees(p, static_cast<int64_t>(i), static_cast<int64_t>(j), p.seqlen_kv);
    }
    // Returns how many there are in rows i0 .. i1-1 and keys j0 .. j1-1.
    uint64_t in(uint64_t i0, uint64_t i1, uint64_t j0, uint64_t j1) const {
        if (i0 >= i1 || j0 >= j1) return 0;
        return before(i1, j1) - before(i0, j1) - before(i1, j0) + before(i0, j0);
    }

  private:
    uint64_t before(uint64_t i, uint64_t j) const { return before_[i * width_ + j]; }

    uint64_t width_;
    std::vector<uint64_t> before_;
};

uint64_t visible_pairs(const Problem& p, const Pairs& visible, const core::Pipeline& pipeline,
                       const Parts& parts, const core::Dispatch& d) {
    const bool of_keys = kind_of(pipeline) == Kind::dkey_dvalue, split = parts.span != 0;
    const Tile t = tile_of(pipeline);
    const uint64_t group = group_of(p, pipeline), own = of_keys ? t.kv : t.q, other = of_keys ? t.q : t.kv;
    const uint64_t all = of_keys ? p.seqlen_kv : p.seqlen_q * group,
                   others = of_keys ? p.seqlen_q : p.seqlen_kv;
    const uint64_t heads = of_keys ? p.num_heads_q / p.num_heads_kv : 1, in_head = tiles_of(p.seqlen_q, t.q);
    const bool cut = is_cut(pipeline);
    // The keys that a query tile goes through in this dispatch, which may have some of the parts.
    const auto keys_of = [&](uint64_t y) {
        if (!split) return Tiles{0, others};
        uint64_t origin = 0, share = parts.span;
        if (!parts.fixed_cuts) {
            const uint64_t first = (tiles_of(all, own) - 1 - y) * own, end = std::min(first + own, all);
            const Tiles tiles = key_tiles(p, first / group, (end - 1) / group + 1, other, 0, p.key_limit);
            origin = tiles.begin * other;
            share = parts.shared_tiles(tiles.count(), other) * other;
        }
        const uint64_t from = origin + begin_of(d)[2] * share;
        return Tiles{std::min(from, others), std::min(others, from + d.groups[2] * share)};
    };
    uint64_t pairs = 0;
    for (uint64_t h = 0; h < heads; h++) {
        for (uint64_t y = begin_of(d)[1]; y < begin_of(d)[1] + d.groups[1]; y++) {
            const auto [from, to] = keys_of(y);
            if (from >= to) continue;
            // Steps are numbered head * in_head + tile. A dispatch may have some of them.
            const auto place = [&](uint64_t step) {
                return std::clamp(step > h * in_head ? (step - h * in_head) * other : 0, from, to);
            };
            const uint64_t begin = cut ? place(d.cut.first_step) : from,
                           end = cut ? place(d.cut.end_step) : to;
            const uint64_t tile = of_keys ? y : tiles_of(all, own) - 1 - y;
            for (uint64_t x = tile * own; x < std::min(tile * own + own, all); x++)
                pairs += of_keys ? visible.in(begin, end, x, x + 1)
                                 : visible.in(x / group, x / group + 1, begin, end);
        }
    }
    return pairs * d.groups[0] * (split ? 1 : d.groups[2]);
}

// Every visible pair in just one dispatch of each pipeline, and no more of them than it says that it costs; of a
// forward also not far less.
std::string count_flaw(const Given& g, const Pairs& visible) {
    const Problem& p = g.p;
    const Parts parts = parts_of(g);
    const uint64_t expected = g.heads() * visible.in(0, p.seqlen_q, 0, p.seqlen_kv);
    for (size_t at = 0; at < g.plan.pipelines.size(); at++) {
        const core::Pipeline& pipeline = g.plan.pipelines[at];
        const Kind kind = kind_of(pipeline);
        if (kind != Kind::forward && kind != Kind::dquery && kind != Kind::dkey_dvalue) continue;
        const Tile t = tile_of(pipeline);
        const double cost = cost_of_pair(g, pipeline);
        uint64_t all = 0, longest = 0;
        for (uint64_t first = 0; first < p.seqlen_q; first++)
            longest = std::max(longest, key_tiles(p, first, std::min<uint64_t>(first + t.q, p.seqlen_q), t.kv,
                                                  0, parts.span != 0 ? parts.span : p.key_limit)
                                            .count());
        const double tiles = double(parts.span != 0 ? parts.span / t.kv : longest + 2);
        for (const core::Dispatch& d : g.plan.dispatches) {
            if (d.pipeline != at) continue;
            const uint64_t pairs = visible_pairs(p, visible, pipeline, parts, d);
            const double flops = double(d.flops);
            const double workgroups = double(d.groups[0]) * d.groups[1] * d.groups[2];
            if (double(pairs) * cost > flops)
                return fmt::format("{} pairs, the dispatch says {}", pairs, d.flops);
            if (kind == Kind::forward && flops > workgroups * tiles * double(t.q) * double(t.kv) * cost)
                return "the estimate is far too high";
            all += pairs;
        }
        if (all != expected * t.slices) return fmt::format("{} pairs, not {}", all, expected * t.slices);
    }
    return "";
}

const std::vector<Shape>& small_shapes() {
    static const std::vector<Shape> shapes{
        {1, 1, 1, 1, 1},
        {1, 2, 1, 1, 300},
        {2, 4, 2, 5, 500, true},
        {1, 3, 1, 300, 150, true},
        {1, 1, 1, 300, 300, true},
        {1, 2, 2, 100, 600, true, 40},
        {1, 1, 1, 350, 350, false, 10, 20},
        {1, 4, 2, 200, 233, true, -1, -1, VKATTN_ALIGN_TOP_LEFT},
        {3, 1, 1, 70, 333, true, -1, -1, VKATTN_ALIGN_OFFSET, -30},
        {1, 1, 1, 70, 333, false, 0, 0, VKATTN_ALIGN_OFFSET, 400},
    };
    return shapes;
}

// Plans with limits of a few tiles, of a forward or its backward.
class Counted {
  public:
    explicit Counted(bool backward) : backward_(backward) {}

    void add(const std::string& device, const Problem& p) {
        const DeviceCaps& caps = profile(device);
        const core::Backward b = make_backward(p);
        const Pairs visible(p);
        const core::Tiles tiles = plan_of(caps, p, b, {})->tiles;
        const uint64_t tile =
            (backward_ ? 4ull : 2ull) * tiles.tile_q * tiles.tile_kv * (p.head_dim_qk + p.head_dim_v);
        // To merge many parts can cost more than a small tile.
        const uint64_t merge = backward_ ? 0 : 64ull * 4 * (p.head_dim_v + 64) * p.seqlen_kv / 16;
        for (const uint64_t limit :
             {uint64_t{0}, uint64_t{1}, tile - 1, tile, 2 * tile, 3 * tile + 1, 7 * tile, 40 * tile}) {
            const Options o = limited(limit);
            const auto plan = plan_of(caps, p, b, o);
            const std::string where = fmt::format("{}, limit {}, tile {}", device, limit, tile);
            if (!plan) {
                refused++;
                const bool fits = limit == 0 || limit >= std::max(tile, merge);
                const bool by_limit = plan.failure().field == "options.max_dispatch_flops";
                flaws_.add(fits || !by_limit ? "refused: " + plan.failure().message : "", where, p);
                continue;
            }
            cut += backward_ ? is_cut(*plan) : limit != 0 && limit < 4 * tile;
            flaws_.add(backward_ ? flaw_of(caps, p, b, *plan, o) : flaw_of(caps, p, *plan, o), where, p);
            flaws_.add(count_flaw({caps, p, backward_ ? &b : nullptr, nullptr, *plan, o}, visible), where, p);
        }
    }
    size_t refused = 0, cut = 0;

  private:
    core::Result<Plan> plan_of(const DeviceCaps& caps, const Problem& p, const core::Backward& b,
                               const Options& o) const {
        return backward_ ? make_plan(caps, p, b, o) : make_plan(caps, p, o);
    }

    bool backward_;
    Flaws flaws_;
};

}  // namespace

TEST_CASE("counts: dispatches have every visible pair once, and no more of them than they say") {
    for (const bool backward : {false, true}) {
        Counted counted(backward);
        for (const char* name : {"nvidia_h200", "lavapipe", "swiftshader", "apple_m1"})
            for (const HeadDims dims : {HeadDims{8, 8}, d64, HeadDims{128, 40}})
                for (const Shape& shape : small_shapes())
                    counted.add(name, resolved(make_problem(dims, shape)));
        CHECK_GT(counted.refused, 0);
        CHECK_GT(counted.cut, 50);
    }
}
