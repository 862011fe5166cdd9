// The portable kernel: one dispatch, or several where the device's grid cannot hold all heads of all batches.
#include <algorithm>
#include <cstddef>

#include "kernel.hpp"

namespace vkattn::core {

Result<Plan> plan_forward_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    const Result<TileChoice> tiles = choose_tiles(caps, problem, options);
    if (!tiles) return tiles.failure();
    const TileNumbers& n = tiles->numbers;

    Plan plan;
    plan.problem = problem;
    plan.tuning_row = tiles->row;
    plan.tuning = to_text(n);
    plan.tiles = {n.tile_q(), n.tile_kv(), n.threads, tiles->pool_vec4 * 16};
    if (problem.empty_output()) return plan;
    add_arguments(plan);

    Dispatch dispatch = forward_dispatch(problem, Variant::forward_tiles_f32, *tiles);
    dispatch.patches.insert(dispatch.patches.end(), {{offsetof(shared::ForwardPush, query), Region::query},
                                                     {offsetof(shared::ForwardPush, key), Region::key},
                                                     {offsetof(shared::ForwardPush, value), Region::value},
                                                     {offsetof(shared::ForwardPush, outp), Region::out},
                                                     {offsetof(shared::ForwardPush, lse), Region::lse}});
    dispatch.reads |= bit(Region::query) | bit(Region::key) | bit(Region::value);
    dispatch.writes = bit(Region::out) | bit(Region::lse);
    const uint64_t heads = uint64_t{problem.batch} * problem.num_heads_q;
    const uint64_t piece = std::min<uint64_t>(heads, caps.max_workgroup_count[0]);
    for (uint64_t first = 0; first < heads; first += piece) {
        const auto first_head = static_cast<uint32_t>(first);
        std::memcpy(dispatch.push.data() + offsetof(shared::ForwardPush, first_head), &first_head,
                    sizeof first_head);
        if (!set_grid(caps, std::min(piece, heads - first), ceil_div(problem.seqlen_q, n.tile_q()), dispatch))
            return unsupported("problem.seqlen_q", "more query tiles than the device's grid holds");
        plan.dispatches.push_back(dispatch);
    }
    return plan;
}

}  // namespace vkattn::core
