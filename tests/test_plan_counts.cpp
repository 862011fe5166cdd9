// Pairs of a row and a key that dispatches of small problems have, counted one by one by the definition of visibility.
#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_pieces.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

uint64_t visible_pairs(const Given& g, const core::Pipeline& pipeline, const core::Dispatch& d) {
    const Problem& p = g.p;
    const bool of_keys = kind_of(pipeline) == Kind::dkey_dvalue;
    const Tile t = tile_of(pipeline);
    const Parts parts = parts_of(g);
    const uint64_t group = group_of(p, pipeline), own = of_keys ? t.kv : t.q, other = of_keys ? t.q : t.kv;
    const uint64_t all = of_keys ? p.seqlen_kv : p.seqlen_q * group,
                   others = of_keys ? p.seqlen_q : p.seqlen_kv;
    const uint64_t heads = of_keys ? p.num_heads_q / p.num_heads_kv : 1, in_head = tiles_of(p.seqlen_q, t.q);
    const bool cut = is_cut(pipeline), split = parts.span != 0;
    const uint64_t from = split ? begin_of(d)[2] * parts.span : 0,
                   to = split ? from + d.groups[2] * parts.span : others;
    uint64_t pairs = 0;
    for (uint64_t y = begin_of(d)[1]; y < begin_of(d)[1] + d.groups[1]; y++) {
        const uint64_t tile = of_keys ? y : tiles_of(all, own) - 1 - y;
        for (uint64_t x = tile * own; x < std::min(tile * own + own, all); x++)
            for (uint64_t h = 0; h < heads; h++)
                for (uint64_t z = from; z < std::min(to, others); z++) {
                    const uint64_t step = h * in_head + z / other;
                    if (cut && (step < d.cut.first_step || step >= d.cut.end_step)) continue;
                    const auto i = static_cast<int64_t>(of_keys ? z : x / group),
                               j = static_cast<int64_t>(of_keys ? x : z);
                    pairs += sees(p, i, j, p.seqlen_kv);
                }
    }
    return pairs * d.groups[0] * (split ? 1 : d.groups[2]);
}

// Every visible pair in just one dispatch of each pipeline, and no more of them than it says that it costs; of a
// forward also not far less.
std::string count_flaw(const Given& g) {
    const Problem& p = g.p;
    uint64_t expected = 0;
    for (int64_t i = 0; i < p.seqlen_q; i++)
        for (int64_t j = 0; j < p.seqlen_kv; j++) expected += sees(p, i, j, p.seqlen_kv);
    expected *= g.heads();
    for (size_t at = 0; at < g.plan.pipelines.size(); at++) {
        const core::Pipeline& pipeline = g.plan.pipelines[at];
        const Kind kind = kind_of(pipeline);
        if (kind != Kind::forward && kind != Kind::dquery && kind != Kind::dkey_dvalue) continue;
        const Tile t = tile_of(pipeline);
        uint64_t all = 0, longest = 0;
        for (uint64_t first = 0; first < p.seqlen_q; first++)
            longest = std::max(longest, key_tiles(p, first, std::min<uint64_t>(first + t.q, p.seqlen_q), t.kv,
                                                  0, parts_of(g).span != 0 ? parts_of(g).span : p.key_limit)
                                            .count());
        for (const core::Dispatch& d : g.plan.dispatches) {
            if (d.pipeline != at) continue;
            const uint64_t pairs = visible_pairs(g, pipeline, d);
            const double cost = cost_of_pair(g, pipeline), flops = double(d.flops);
            const double workgroups = double(d.groups[0]) * d.groups[1] * d.groups[2];
            if (double(pairs) * cost > flops)
                return fmt::format("{} pairs, the dispatch says {}", pairs, d.flops);
            const double tiles = double(parts_of(g).span != 0 ? parts_of(g).span / t.kv : longest + 2);
            if (kind == Kind::forward && flops > workgroups * tiles * double(t.q) * double(t.kv) * cost)
                return "the estimate is far too high";
            all += pairs;
        }
        if (all != expected * t.slices) return fmt::format("{} pairs, not {}", all, expected * t.slices);
    }
    return "";
}

Options limited(uint64_t flops) {
    Options o;
    o.max_dispatch_flops = flops;
    return o;
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

}  // namespace

TEST_CASE("counts: a forward's dispatches have every visible pair once, and no more than they say") {
    Flaws flaws;
    size_t refused = 0, tight = 0;
    for (const char* name : {"nvidia_h200", "lavapipe", "swiftshader", "apple_m1"})
        for (const HeadDims dims : {HeadDims{8, 8}, d64, HeadDims{128, 40}})
            for (const Shape& shape : small_shapes()) {
                const DeviceCaps& caps = profile(name);
                const Problem p = resolved(make_problem(dims, shape));
                const core::Tiles tiles = planned(caps, p).tiles;
                const uint64_t tile = 2ull * tiles.tile_q * tiles.tile_kv * (dims.qk + dims.v);
                // To merge many parts can cost more than a small tile.
                const uint64_t merge = 64ull * 4 * (p.head_dim_v + 64) * p.seqlen_kv / 16;
                for (const uint64_t limit : {uint64_t{0}, uint64_t{1}, tile - 1, tile, 2 * tile, 3 * tile + 1,
                                             7 * tile, 40 * tile}) {
                    const Options o = limited(limit);
                    const auto plan = make_plan(caps, p, o);
                    const std::string where = fmt::format("{}, limit {}, tile {}", name, limit, tile);
                    refused += !plan;
                    tight += plan && limit != 0 && limit < 4 * tile;
                    if (!plan) {
                        flaws.add(plan.failure().field == "options.max_dispatch_flops"
                                      ? ""
                                      : plan.failure().message,
                                  where, p);
                        flaws.add(limit < std::max(tile, merge) ? "" : "refused, though a tile fits", where,
                                  p);
                        continue;
                    }
                    flaws.add(flaw_of(caps, p, *plan, o), where, p);
                    flaws.add(count_flaw({caps, p, nullptr, nullptr, *plan, o}), where, p);
                }
            }
    CHECK_GT(refused, 0);
    CHECK_GT(tight, 100);
}

TEST_CASE(
    "counts: each pass of a backward has every visible pair once, and no more than its dispatches say") {
    Flaws flaws;
    size_t refused = 0, cut = 0;
    for (const char* name : {"nvidia_h200", "lavapipe", "apple_m1"})
        for (const HeadDims dims : {HeadDims{8, 8}, HeadDims{128, 40}})
            for (const Shape& shape : small_shapes()) {
                const DeviceCaps& caps = profile(name);
                const Problem p = resolved(make_problem(dims, shape));
                const core::Backward b = make_backward(p);
                const core::Tiles tiles = planned(caps, p, b).tiles;
                const uint64_t step = 4ull * tiles.tile_q * tiles.tile_kv * (dims.qk + dims.v);
                for (const uint64_t limit :
                     {uint64_t{0}, uint64_t{1}, step - 1, step, 2 * step + 1, 5 * step}) {
                    const Options o = limited(limit);
                    const auto plan = make_plan(caps, p, b, o);
                    const std::string where = fmt::format("{}, limit {}, step {}", name, limit, step);
                    refused += !plan;
                    if (!plan) {
                        flaws.add(limit < step && plan.failure().field == "options.max_dispatch_flops"
                                      ? ""
                                      : "refused: " + plan.failure().message,
                                  where, p);
                        continue;
                    }
                    cut += is_cut(*plan);
                    flaws.add(flaw_of(caps, p, b, *plan, o), where, p);
                    flaws.add(count_flaw({caps, p, &b, nullptr, *plan, o}), where, p);
                }
            }
    CHECK_GT(refused, 0);
    CHECK_GT(cut, 50);
}
