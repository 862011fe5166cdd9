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
        const core::Tiles tiles = plan_of(caps, p, b, {})->tiles;
        const uint64_t tile =
            (backward_ ? 4ull : 2ull) * tiles.tile_q * tiles.tile_kv * (p.head_dim_qk + p.head_dim_v);
        // To merge many parts can cost more than a small tile.
        const uint64_t merge = backward_ ? 0 : 64ull * 4 * (p.head_dim_v + 64) * p.seqlen_kv / 16;
        for (const uint64_t limit :
             {uint64_t{0}, uint64_t{1}, tile - 1, tile, 2 * tile, 3 * tile + 1, 7 * tile, 40 * tile}) {
            Options o;
            o.max_dispatch_flops = limit;
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
            flaws_.add(count_flaw({caps, p, backward_ ? &b : nullptr, nullptr, *plan, o}), where, p);
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
