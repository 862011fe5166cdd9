// The limit of a dispatch's cost, and batch invariance.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

Options limited(uint64_t flops) {
    Options o;
    o.max_dispatch_flops = flops;
    return o;
}

uint64_t tile_flops(const Plan& plan) {
    return 2ull * plan.tiles.tile_q * plan.tiles.tile_kv *
           (plan.problem.head_dim_qk + plan.problem.head_dim_v);
}

}  // namespace

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
    return std::tuple(pipeline.module, pipeline.rolled, values);
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
