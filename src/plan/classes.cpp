// Classes of mask tiles, and how much of the other sequence a tile goes through: what forward and backward have in
// common.
#include <algorithm>
#include <cstddef>

#include "classes.hpp"
#include "launch.hpp"

namespace vkattn::core {
namespace {

using shared::ForwardArguments;

// A guess, not measured: below, the pass over the mask should cost more than it saves.
constexpr uint64_t least_tiles_to_classify = 16;

// mask_classes.comp with the tiles of the kernel that uses the classes.
Launch<kernels::mask_classes> classes_launch(const DeviceCaps& caps, const Problem& p,
                                             const TileChoice& tiles) {
    constexpr uint32_t threads_for_matrix = 64;  // not measured: the pass is short
    Launch<kernels::mask_classes> launch;
    launch.module = module_for(Kernel::mask_classes, p.dtype, caps);
    set_problem(launch, p, tiles, true);
    launch.constants.threads = tiles.matrix ? threads_for_matrix : tiles.numbers.threads;
    launch.constants.tile_q = tiles.tile_q();
    launch.constants.tile_kv = tiles.tile_kv();
    VKATTN_PATCH(launch, classes, Region::mask_classes);
    launch.reads |= bit(Region::mask);
    launch.writes = bit(Region::mask_classes);
    return launch;
}

// Number of heads with classes of their own. They are the mask's heads; if a tile has the rows of a group of query
// heads that reads several mask heads, they are the groups.
uint32_t class_heads_of(const Problem& p, bool pack) {
    if (p.mask_strides.head == 0) return 1;
    const bool torn = pack && p.mask_group_size % p.group_size != 0;
    return torn ? p.num_heads_kv : p.num_heads_q / p.mask_group_size;
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

// A block map tells kernels the classes by itself.
//
// The pass has the row's tile shape, but is not of_tuning_row. Neither its registers nor its shared memory grow with a
// tile, so a driver that cannot build it for one row can build it for none. With of_tuning_row all rows would be
// rejected one after another, those of problems without a mask too.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan) {
    const Problem& p = plan.problem;
    const uint64_t key_tiles = ceil_div(p.seqlen_kv, tiles.tile_kv());
    if (!has_kernel(caps, Kernel::mask_classes) || !reads_whole_mask(p) ||
        (!tiles.matrix && tiles.numbers.of_rows_kernel()) ||
        query_tiles * key_tiles < least_tiles_to_classify || key_tiles > caps.max_workgroup_count[2] ||
        query_tiles > caps.max_workgroup_count[1])
        return;
    const uint32_t heads = class_heads_of(p, tiles.pack);
    const uint32_t batches = p.mask_strides.batch == 0 ? 1 : p.batch;
    const uint64_t masks = uint64_t{heads} * batches, all = masks * query_tiles * key_tiles, bytes = all * 4;
    const uint64_t unit = uint64_t{tiles.tile_q()} * tiles.tile_kv() * 4;
    const uint64_t room = std::min(default_max_scratch_bytes / 4,
                                   scratch_left(caps, options, plan) / scratch_alignment * scratch_alignment);
    if (masks > caps.max_workgroup_count[0] || bytes > room || all > dispatch_limit(caps, options) / unit)
        return;
    const auto set = [&](size_t at, uint32_t value) {
        std::memcpy(plan.arguments.data() + at, &value, sizeof value);
    };
    set(offsetof(ForwardArguments, class_heads), heads);
    set(offsetof(ForwardArguments, class_batches), batches);
    const uint32_t pipeline = add_pipeline(plan, classes_launch(caps, p, tiles).pipeline());
    add_dispatch(plan, pipeline, {masks, query_tiles, key_tiles}, {}, all * unit);
    set(offsetof(ForwardArguments, present), forward_arguments(p).present | shared::PRESENT_CLASSES);
    for (Patch& patch : plan.argument_patches)
        if (patch.at == offsetof(ForwardArguments, classes)) patch.region = Region::mask_classes;
    reserve_scratch(plan, Region::mask_classes, bytes);
}

uint32_t mask_class_reads(const Plan& plan) {
    for (const ScratchRegion& r : plan.scratch)
        if (r.region == Region::mask_classes) return bit(Region::mask_classes);
    return 0;
}

}  // namespace vkattn::core
