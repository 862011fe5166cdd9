// The two portable kernels, `rows` for few query rows and `tiles`: over all keys at once, or over parts of them that
// combine.comp merges.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

using Push = shared::ForwardPush;
using Arguments = shared::ForwardArguments;

constexpr uint64_t max_parts = 65535, max_span_tiles = 65535;  // 16 bits each in the push constants
constexpr uint64_t least_keys_of_part = 256;  // below, a part's start and its merge cost more than it saves
constexpr uint64_t least_tiles_to_classify = 16;
constexpr uint64_t most_flops = uint64_t{1} << 62;

// The forward kernel's grid, and how the keys are cut.
struct Grid {
    uint64_t heads, query_tiles;
    Problem::Keys keys;       // that any row may see
    uint64_t span_tiles = 0;  // tiles of keys in a part; 0: one part, not cut
    uint64_t first_part = 0, parts = 1;
};

uint64_t flops_of(const Problem& p, uint64_t rows, uint64_t keys) {
    return 2 * rows * keys * (p.head_dim_qk + p.head_dim_v);
}

// Keys that the longest query tile goes through, in whole tiles.
uint64_t keys_of_tile(const Problem& p, const TileNumbers& n, const Grid& g) {
    uint64_t keys = g.keys.end - g.keys.begin;
    const int64_t band = int64_t{p.bound_hi} - p.bound_lo + 1;
    if (!p.dynamic_bounds)
        keys = std::min<uint64_t>(keys, static_cast<uint64_t>(std::max<int64_t>(0, band)) + n.tile_q());
    return (ceil_div(keys, n.tile_kv()) + 1) * n.tile_kv();
}

// Tiles of keys in a part, of `all` tiles of keys: as many parts as keep the device busy, or as are asked for; and
// no part beyond the limit of a dispatch. 0: not cut.
uint64_t choose_span(const DeviceCaps& caps, const Problem& p, const Options& options,
                     const TileChoice& tiles, const Grid& g, uint64_t all) {
    const uint64_t tile_kv = tiles.numbers.tile_kv();
    // Absolute: what limits the tiles of a part must not depend on how many keys there are.
    const uint64_t limit = dispatch_limit(caps, options) / flops_of(p, tiles.numbers.tile_q(), tile_kv);
    const uint64_t within_limit = limit > 2 ? limit - 1 : 1;
    uint64_t parts = options.num_splits;
    if (parts == 0 && !options.batch_invariant) {
        const uint64_t workgroups = g.heads * g.query_tiles;
        const uint64_t busy = uint64_t{multiprocessors_of(caps)} * tiles.residency;
        parts = std::min(busy / std::max<uint64_t>(1, workgroups), all * tile_kv / least_keys_of_part);
    }
    const uint64_t span = parts > 1 ? ceil_div(all, parts) : all;
    if (span >= all && all <= within_limit) return 0;
    return std::min({std::max<uint64_t>(1, span), within_limit, max_span_tiles});
}

Result<Grid> make_grid(const DeviceCaps& caps, const Problem& p, const Options& options,
                       const TileChoice& tiles) {
    const TileNumbers& n = tiles.numbers;
    Grid g{};
    g.heads = uint64_t{p.batch} * (tiles.pack ? p.num_heads_kv : p.num_heads_q);
    g.query_tiles = ceil_div(uint64_t{p.seqlen_q} * (tiles.pack ? p.group_size : 1), n.tile_q());
    g.keys = p.visible_keys(0, p.seqlen_q - 1);
    g.parts = 1;
    const uint64_t first = g.keys.begin / n.tile_kv(), end = ceil_div(g.keys.end, n.tile_kv());
    if (first == end) return g;
    g.span_tiles = choose_span(caps, p, options, tiles, g, end - first);
    if (g.span_tiles == 0) return g;
    g.span_tiles = std::max<uint64_t>(g.span_tiles, ceil_div(end, max_parts));
    if (g.span_tiles > max_span_tiles)
        return unsupported("problem.seqlen_kv", "too many keys for parts of them");
    g.first_part = first / g.span_tiles;
    g.parts = ceil_div(end, g.span_tiles) - g.first_part;
    return g;
}

uint64_t rows_of_parts(const Problem& p, const Grid& g) {
    return g.parts * p.batch * p.num_heads_q * p.seqlen_q;
}

// The parts' outputs and lse, in scratch.
Result<bool> reserve_parts(const DeviceCaps& caps, const Options& options, const Grid& g, Plan& plan) {
    const Problem& p = plan.problem;
    const uint64_t most =
        std::min(options.max_scratch_bytes != 0 ? options.max_scratch_bytes : default_max_scratch_bytes,
                 caps.max_buffer_bytes);
    const uint64_t rows = rows_of_parts(p, g);
    const uint64_t bytes = rows * (p.head_dim_v + 2) * 4 + 2 * scratch_alignment;
    if (bytes > most - std::min(most, plan.scratch_bytes))
        return unsupported("", fmt::format("{} parts of the keys need {} bytes of scratch, the limit is {}",
                                           g.parts, bytes, most));
    reserve_scratch(plan, Region::parts, rows * p.head_dim_v * 4);
    reserve_scratch(plan, Region::parts_lse, rows * 8);
    return true;
}

// A pass that finds tiles which the mask hides entirely, or not at all. It reads the mask once, where the forward reads
// it once for every head that shares it.
Result<bool> add_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                         const Grid& g, Plan& plan) {
    const Problem& p = plan.problem;
    const uint64_t key_tiles = ceil_div(p.seqlen_kv, tiles.numbers.tile_kv());
    if (p.mask == VKATTN_MASK_NONE || tiles.numbers.of_rows_kernel() ||
        g.query_tiles * key_tiles < least_tiles_to_classify || key_tiles > caps.max_workgroup_count[2] ||
        g.query_tiles > caps.max_workgroup_count[1])
        return true;
    Arguments a;
    std::memcpy(&a, plan.arguments.data(), sizeof a);
    a.class_heads = p.mask_strides[1] == 0 ? 1 : tiles.pack ? p.num_heads_kv : p.num_heads_q;
    a.class_batches = p.mask_strides[0] == 0 ? 1 : p.batch;
    std::memcpy(plan.arguments.data(), &a, sizeof a);
    const uint64_t masks = uint64_t{a.class_heads} * a.class_batches,
                   bytes = masks * g.query_tiles * key_tiles * 4;
    const uint64_t unit = uint64_t{tiles.numbers.tile_q()} * tiles.numbers.tile_kv() * 4;
    const uint64_t all = masks * g.query_tiles * key_tiles;
    if (masks > caps.max_workgroup_count[0] || bytes > default_max_scratch_bytes / 4 ||
        all > dispatch_limit(caps, options) / unit) {
        a.class_heads = a.class_batches = 1;
        std::memcpy(plan.arguments.data(), &a, sizeof a);
        return true;
    }
    Dispatch d = forward_dispatch(p, variant_for(Variant::mask_classes_f32, p.dtype, caps), tiles);
    d.patches.push_back({offsetof(Push, outp), Region::mask_classes});
    d.reads |= bit(Region::mask);
    d.writes = bit(Region::mask_classes);
    d.specialization[SPEC_POOL_VEC4] = 1;  // it has no use for more
    d.groups = {static_cast<uint32_t>(masks), static_cast<uint32_t>(g.query_tiles),
                static_cast<uint32_t>(key_tiles)};
    d.flops = all * unit;
    plan.dispatches.push_back(d);
    plan.argument_patches.push_back({offsetof(Arguments, classes), Region::mask_classes});
    reserve_scratch(plan, Region::mask_classes, bytes);
    return true;
}

// The forward kernel's one dispatch before it is cut.
Dispatch main_dispatch(const DeviceCaps& caps, const Options& options, const TileChoice& tiles, const Grid& g,
                       const Plan& plan) {
    const Problem& p = plan.problem;
    const bool split = g.span_tiles != 0;
    const Variant variant =
        tiles.numbers.of_rows_kernel() ? Variant::forward_rows_f32 : Variant::forward_tiles_f32;
    Dispatch d = forward_dispatch(p, variant_for(variant, p.dtype, caps), tiles);
    d.specialization[SPEC_SPLIT] = split;
    d.specialization[SPEC_INVARIANT] = options.batch_invariant;
    // Parts are numbered from the first key on, but those before the first visible one do not exist.
    const uint64_t rows_before = g.first_part * p.batch * p.num_heads_q * p.seqlen_q;
    d.patches.insert(
        d.patches.end(),
        {{offsetof(Push, query), Region::query},
         {offsetof(Push, key), Region::key},
         {offsetof(Push, value), Region::value},
         {offsetof(Push, outp), split ? Region::parts : Region::out, 0 - rows_before * p.head_dim_v * 4},
         {offsetof(Push, lse), split ? Region::parts_lse : Region::lse, 0 - rows_before * 8}});
    d.reads |= bit(Region::query) | bit(Region::key) | bit(Region::value);
    if (p.mask != VKATTN_MASK_NONE) d.reads |= bit(Region::mask);
    for (const ScratchRegion& r : plan.scratch)
        if (r.region == Region::mask_classes) {
            d.specialization[SPEC_MASK_CLASSES] = 1;
            d.reads |= bit(Region::mask_classes);
        }
    d.writes = split ? bit(Region::parts) | bit(Region::parts_lse) : bit(Region::out) | bit(Region::lse);
    if (split) VKATTN_SET_PUSH(d, out_seq, p.batch * p.num_heads_q);
    return d;
}

Combine combine_of(const Problem& p, uint64_t parts) {
    VkattnCombine c = default_combine();
    c.dtype = p.dtype;
    c.num_parts = static_cast<uint32_t>(parts);
    c.batch = p.batch;
    c.num_heads = p.num_heads_q;
    c.seqlen_q = p.seqlen_q;
    c.head_dim_v = p.head_dim_v;
    const uint64_t rows = p.seqlen_q, dim = p.head_dim_v;
    c.part_stride = uint64_t{p.batch} * p.num_heads_q * rows * dim;
    c.parts_strides = {p.num_heads_q * rows * dim, rows * dim, dim};
    c.out_strides = p.out_strides;
    // Parts begin at multiples of 256 bytes; their rows are head_dim_v floats long.
    c.alignment_bytes = dim % 4 == 0 ? p.alignment_bytes : p.element_bytes;
    return Combine{c, p.element_bytes, 4};
}

Result<Plan> plan_forward(const DeviceCaps& caps, const Problem& problem, const Options& options,
                          bool rows_kernel) {
    if (options.batch_invariant && options.num_splits > 1)
        return invalid("options.num_splits",
                       "parts of the keys depend on seqlen_kv, batch_invariant forbids that");
    const Result<TileChoice> tiles = choose_tiles(caps, problem, options, rows_kernel);
    if (!tiles) return tiles.failure();
    const TileNumbers& n = tiles->numbers;

    Plan plan;
    plan.problem = problem;
    plan.tuning_row = tiles->row;
    plan.tuning = to_text(n);
    plan.tiles = {n.tile_q(), n.tile_kv(), n.threads, tiles->pool_vec4 * 16};
    if (problem.empty_output()) return plan;
    add_arguments(plan);
    const auto grid = make_grid(caps, problem, options, *tiles);
    if (!grid) return grid.failure();
    if (auto ok = add_classes(caps, options, *tiles, *grid, plan); !ok) return ok.failure();
    plan.num_splits = static_cast<uint32_t>(grid->parts);
    if (grid->span_tiles != 0)
        if (auto ok = reserve_parts(caps, options, *grid, plan); !ok) return ok.failure();

    Dispatch dispatch = main_dispatch(caps, options, *tiles, *grid, plan);
    uint64_t keys = keys_of_tile(problem, n, *grid);
    if (grid->span_tiles != 0) keys = std::min(keys, grid->span_tiles * n.tile_kv());
    const uint64_t unit = flops_of(problem, n.tile_q(), keys);
    const std::array<uint64_t, 3> workgroups{grid->heads, grid->query_tiles, grid->parts};
    auto boxes = cut_grid(caps, workgroups, unit, dispatch_limit(caps, options));
    // The default limit is no promise: rather longer dispatches than none.
    for (uint64_t limit = dispatch_limit(caps, options);
         !boxes && options.max_dispatch_flops == 0 && limit < most_flops;)
        boxes = cut_grid(caps, workgroups, unit, limit *= 2);
    if (!boxes) return boxes.failure();
    for (const Box& box : *boxes) {
        VKATTN_SET_PUSH(dispatch, first_head, static_cast<uint32_t>(box.first[0]));
        VKATTN_SET_PUSH(dispatch, first_tile, static_cast<uint32_t>(box.first[1]));
        VKATTN_SET_PUSH(dispatch, splits,
                        static_cast<uint32_t>((grid->first_part + box.first[2]) | grid->span_tiles << 16));
        for (size_t i = 0; i < 3; i++) dispatch.groups[i] = static_cast<uint32_t>(box.count[i]);
        dispatch.flops = box.count[0] * box.count[1] * box.count[2] * unit;
        plan.dispatches.push_back(dispatch);
    }
    if (grid->span_tiles == 0) return plan;
    const auto merge = combine_dispatches(caps, combine_of(problem, grid->parts), true);
    if (!merge) return merge.failure();
    plan.dispatches.insert(plan.dispatches.end(), merge->begin(), merge->end());
    return plan;
}

}  // namespace

Result<Plan> plan_forward_rows(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    // The order in which it sums differs from that of the other kernel, which the same row may meet in another batch.
    if (options.batch_invariant)
        return unsupported("options.batch_invariant", "the kernel depends on how many rows there are");
    return plan_forward(caps, problem, options, true);
}

Result<Plan> plan_forward_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    return plan_forward(caps, problem, options, false);
}

}  // namespace vkattn::core
