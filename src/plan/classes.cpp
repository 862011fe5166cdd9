// Classes of mask tiles, and how much of the other sequence a tile goes through: what forward and backward have in common.
#include <algorithm>
#include <cstddef>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

using Push = shared::ForwardPush;
using Arguments = shared::ForwardArguments;

// A guess, not measured: below, the pass over the mask should cost more than it saves.
constexpr uint64_t least_tiles_to_classify = 16;

// Numbers with which mask_classes.comp has the tiles of the matrix kernel: multiples of 8 rows and 8 keys.
TileChoice for_classes(TileChoice tiles) {
    if (tiles.matrix) {
        constexpr uint32_t threads = 64, lanes = 8;
        tiles.numbers = {};
        tiles.numbers.threads = threads;
        tiles.numbers.lanes = lanes;
        tiles.numbers.rows = tiles.matrix->tile_q() * lanes / threads;
        tiles.numbers.cols = tiles.matrix->tile_kv / lanes;
        tiles.matrix.reset();
    }
    return tiles;
}

}  // namespace

uint64_t longest_in_window(const Problem& p, uint32_t own, uint32_t other) {
    constexpr int64_t far = int64_t{1} << 40;
    const int64_t right = p.causal != 0 ? 0 : p.window_right;
    if (p.window_left < 0 || right < 0) return UINT64_MAX;
    const int64_t band = std::min(p.window_left, far) + std::min(right, far) + 1;
    return (static_cast<uint64_t>(band) + own - 1) / other + 2;
}

uint64_t longest_loop(const Problem& p, uint32_t own, uint32_t other, uint64_t all) {
    if (p.dynamic_bounds) return std::min(all, longest_in_window(p, own, other));
    const int64_t band = std::max<int64_t>(0, int64_t{p.bound_hi} - p.bound_lo + 1);
    return std::min<uint64_t>(all, ceil_div(static_cast<uint64_t>(band) + own, other) + 1);
}

// The pass has the row's tile shape, but is not of_row: neither its registers nor its shared memory grow with a tile, so
// that a driver which cannot build it for one row can build it for none. Rows would be rejected one after another, and
// with them those of problems that have no mask.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan) {
    const Problem& p = plan.problem;
    const uint64_t key_tiles = ceil_div(p.seqlen_kv, tiles.tile_kv());
    if (p.mask == VKATTN_MASK_NONE || (!tiles.matrix && tiles.numbers.of_rows_kernel()) ||
        query_tiles * key_tiles < least_tiles_to_classify || key_tiles > caps.max_workgroup_count[2] ||
        query_tiles > caps.max_workgroup_count[1])
        return;
    const uint32_t heads = p.mask_strides[1] == 0 ? 1 : tiles.pack ? p.num_heads_kv : p.num_heads_q;
    const uint32_t batches = p.mask_strides[0] == 0 ? 1 : p.batch;
    const uint64_t masks = uint64_t{heads} * batches, all = masks * query_tiles * key_tiles, bytes = all * 4;
    const uint64_t unit = uint64_t{tiles.tile_q()} * tiles.tile_kv() * 4;
    const uint64_t room = std::min(default_max_scratch_bytes / 4,
                                   scratch_left(caps, options, plan) / scratch_alignment * scratch_alignment);
    if (masks > caps.max_workgroup_count[0] || bytes > room || all > dispatch_limit(caps, options) / unit)
        return;
    const auto set = [&](size_t at, uint32_t value) {
        std::memcpy(plan.arguments.data() + at, &value, sizeof value);
    };
    set(offsetof(Arguments, class_heads), heads);
    set(offsetof(Arguments, class_batches), batches);
    Dispatch d =
        forward_dispatch(p, variant_for(Variant::mask_classes_f32, p.dtype, caps), for_classes(tiles));
    d.patches.push_back({offsetof(Push, outp), Region::mask_classes});
    d.reads |= bit(Region::mask);
    d.writes = bit(Region::mask_classes);
    d.specialization[SPEC_POOL_VEC4] = 1;  // it has no use for more
    d.groups = {static_cast<uint32_t>(masks), static_cast<uint32_t>(query_tiles),
                static_cast<uint32_t>(key_tiles)};
    d.flops = all * unit;
    plan.dispatches.push_back(d);
    set(offsetof(Arguments, present), forward_arguments(p).present | PRESENT_CLASSES);
    for (Patch& patch : plan.argument_patches)
        if (patch.at == offsetof(Arguments, classes)) patch.region = Region::mask_classes;
    reserve_scratch(plan, Region::mask_classes, bytes);
}

void use_mask_classes(const Plan& plan, Dispatch& dispatch) {
    for (const ScratchRegion& r : plan.scratch)
        if (r.region == Region::mask_classes) dispatch.reads |= bit(Region::mask_classes);
}

}  // namespace vkattn::core
