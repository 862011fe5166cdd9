// Classes of mask tiles, links of a block map's tiles, and how much of the other sequence a tile goes through: what
// forward and backward have in common.
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
    launch.module = module_for(Kernel::mask_classes, p.mask_dtype, caps);
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

// The pass for links sees each of the two sequences as so many rows, in tiles and blocks of so many.
struct Side {
    uint32_t rows, tile, block;

    uint64_t tiles() const { return ceil_div(rows, tile); }
    uint64_t blocks_of_tile() const { return uint64_t{tile} / block + 1; }  // at most
};
struct Sides {
    Side held, walked;
};
Sides sides_of(const Problem& p, const LinkedTiles& t) {
    const uint32_t rows = p.seqlen_q * (t.packed ? p.group_size : 1);
    if (t.holds_keys) return {{p.seqlen_kv, t.held, p.block_keys}, {rows, t.walked, p.block_rows}};
    return {{rows, t.held, p.block_rows}, {p.seqlen_kv, t.walked, p.block_keys}};
}

uint64_t link_bytes(const Sides& s, uint64_t masks) {
    return masks * s.held.tiles() * s.walked.tiles() * 4;
}

// Returns an upper bound of what the pass costs: it reads a byte of each block that a tile touches. That a byte takes
// 16 operations is a guess.
uint64_t link_flops(const Sides& s, uint64_t masks, uint64_t heads_of_tile) {
    return link_bytes(s, masks) / 4 * s.held.blocks_of_tile() * s.walked.blocks_of_tile() * heads_of_tile *
           16;
}

// So many heads and batches have links of their own, and so much is what the links of several kernels take.
struct LinkGrid {
    uint32_t heads;
    uint64_t masks, most_held, most_flops, bytes;
};
LinkGrid link_grid(const Problem& p, std::span<const LinkedTiles> kernels) {
    LinkGrid grid{};
    grid.heads = kernels.front().packed ? p.num_heads_kv : p.block_map_heads;
    grid.masks = uint64_t{grid.heads} * p.block_map_batches;
    for (const LinkedTiles& t : kernels) {
        const Sides s = sides_of(p, t);
        grid.most_held = std::max(grid.most_held, s.held.tiles());
        grid.most_flops = std::max(grid.most_flops, link_flops(s, grid.masks, t.packed ? p.group_size : 1));
        grid.bytes += link_bytes(s, grid.masks);
    }
    return grid;
}

// tile_links.comp for one kernel, whose links lie `begin` bytes behind the beginning of the region.
Launch<kernels::tile_links> links_launch(const DeviceCaps& caps, const Problem& p, const LinkedTiles& t,
                                         uint32_t heads, uint64_t begin) {
    const auto down = static_cast<uint32_t>(vkattn_blocks(p.seqlen_q, p.block_rows));
    const auto across = static_cast<uint32_t>(vkattn_blocks(p.seqlen_kv, p.block_keys));
    Launch<kernels::tile_links> launch;
    launch.module = {Kernel::tile_links, macros::F32};
    launch.constants.threads = caps.threads_up_to(256);  // not measured: the pass is short
    auto& push = launch.push;
    push.num_heads = heads;
    push.map_heads = p.block_map_heads;
    push.blocks = down * across;
    const auto [held, walked] = sides_of(p, t);
    push.rows_to_group = t.packed ? p.group_size : 1;
    push.held_rows = held.rows;
    push.held_tile = held.tile;
    push.held_block = held.block;
    push.held_step = t.holds_keys ? 1 : across;
    push.walked_rows = walked.rows;
    push.walked_tile = walked.tile;
    push.walked_block = walked.block;
    push.walked_step = t.holds_keys ? across : 1;
    push.has_mask = p.mask != VKATTN_MASK_NONE;
    VKATTN_PATCH(launch, block_map, Region::block_map);
    VKATTN_PATCH(launch, links, Region::tile_links, begin);
    launch.reads = bit(Region::block_map);
    launch.writes = bit(Region::tile_links);
    return launch;
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

bool has_scratch(const Plan& plan, Region region) {
    return std::ranges::any_of(plan.scratch, [=](const ScratchRegion& r) { return r.region == region; });
}

uint32_t mask_class_reads(const Plan& plan) {
    return has_scratch(plan, Region::mask_classes) ? bit(Region::mask_classes) : 0;
}

// With slopes, offsets are set from tiles that the map may hide, and where rows are isolated all tiles are searched
// (shaders/lib/matrix_stale_offsets.glsl, matrix_running_maximum.glsl): there each element asks the map. So it does
// with packed heads, whose tiles may have rows of several heads of the map.
bool has_whole_blocks(const Problem& p, std::span<const LinkedTiles> kernels) {
    const auto is_whole = [&](const LinkedTiles& t) {
        const auto [held, walked] = sides_of(p, t);
        return !t.packed && !t.isolates_rows && held.block % held.tile == 0 &&
               walked.block % walked.tile == 0;
    };
    return p.block_map != 0 && p.mask == VKATTN_MASK_NONE && p.slopes == VKATTN_SLOPES_NONE &&
           std::ranges::all_of(kernels, is_whole);
}

void add_tile_links(const DeviceCaps& caps, const Options& options, std::span<const LinkedTiles> kernels,
                    Plan& plan) {
    const Problem& p = plan.problem;
    const bool has_map = p.block_map != 0 && p.batch != 0 && p.seqlen_q != 0 && p.seqlen_kv != 0;
    if (!has_map || !has_kernel(caps, Kernel::tile_links)) return;
    const LinkGrid grid = link_grid(p, kernels);
    const uint64_t room = std::min(default_max_scratch_bytes / 4, scratch_left(caps, options, plan));
    if (grid.masks > caps.max_workgroup_count[0] || grid.most_held > caps.max_workgroup_count[1] ||
        grid.most_flops > dispatch_limit(caps, options) ||
        grid.bytes > room / scratch_alignment * scratch_alignment)
        return;
    const auto set = [&](size_t at, uint32_t value) {
        std::memcpy(plan.arguments.data() + at, &value, sizeof value);
    };
    set(offsetof(ForwardArguments, class_heads), grid.heads);
    set(offsetof(ForwardArguments, class_batches), p.block_map_batches);
    reserve_scratch(plan, Region::tile_links, grid.bytes);
    uint64_t begin = 0;
    for (const LinkedTiles& t : kernels) {
        const Sides s = sides_of(p, t);
        const uint32_t pipeline = add_pipeline(plan, links_launch(caps, p, t, grid.heads, begin).pipeline());
        add_dispatch(plan, pipeline, {grid.masks, s.held.tiles(), 1}, {},
                     link_flops(s, grid.masks, t.packed ? p.group_size : 1));
        if (t.at) plan.argument_patches.push_back({static_cast<uint32_t>(*t.at), Region::tile_links, begin});
        begin += link_bytes(s, grid.masks);
    }
}

}  // namespace vkattn::core
