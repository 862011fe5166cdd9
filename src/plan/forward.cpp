// The forward kernels, `rows` and `matrix_rows` for few query rows, `tiles`, and `matrix` on matrix units: over all
// keys at once, or over splits of them, whose results combine.comp merges.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "classes.hpp"
#include "combine.hpp"
#include "decode.hpp"
#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

constexpr uint64_t max_splits = 65535, max_span_tiles = 65535;

// The forward kernel's grid, and how the keys are cut.
struct Grid {
    uint64_t heads, query_tiles;
    Problem::Keys keys;       // that any row may see
    uint64_t longest = 1;     // tiles of keys that a query tile goes through, at most
    uint64_t span_tiles = 0;  // tiles of keys in a split, at most; 0: the keys are not split
    uint64_t first_split = 0, splits = 1;
    bool fixed_cuts = false;  // splits count from key 0 on, and not from the first one that a query tile sees
};

uint64_t flops_of(const Problem& p, uint64_t rows, uint64_t keys) {
    return 2 * rows * keys * (p.head_dim_qk + p.head_dim_v);
}

// Counts the splits of the keys that keep the device busy.
uint64_t busy_splits(const DeviceCaps& caps, const TileChoice& tiles, const Grid& g, uint64_t all) {
    const uint64_t workgroups = std::max<uint64_t>(1, g.heads * g.query_tiles);
    return std::min(uint64_t{multiprocessors_of(caps)} * tiles.residency / workgroups,
                    all * tiles.tile_kv() / LEAST_KEYS_OF_SPLIT);
}

// The most tiles of keys that a workgroup may walk on a driver that ends loops early.
uint64_t most_tiles(const DeviceCaps& caps, const Problem& p, const TileChoice& tiles) {
    return tiles.matrix ? UINT64_MAX : longest_walk(caps, iterations_of(p, tiles.tile_kv(), false));
}

// Returns the tiles of keys in a split, if rows see the tiles from `first` to `end`; 0 if the keys are not split. No
// split exceeds the limit of a dispatch.
uint64_t choose_span(const DeviceCaps& caps, const Problem& p, const Options& options,
                     const TileChoice& tiles, uint64_t first, uint64_t end, uint64_t splits) {
    const TileChoice& n = tiles;
    const uint64_t affordable = dispatch_limit(caps, options) / flops_of(p, n.tile_q(), n.tile_kv());
    const uint64_t limit = std::max<uint64_t>(1, std::min(affordable, most_tiles(caps, p, tiles)));
    const uint64_t most = std::min(limit, max_span_tiles), all = end - first;
    // A row's keys must be cut at the same places whatever other rows and keys there are.
    if (options.batch_invariant)
        return longest_in_window(p, n.tile_q(), n.tile_kv()) <= limit || first / most == (end - 1) / most
                   ? 0
                   : most;
    const bool too_long = longest_loop(p, n.tile_q(), n.tile_kv(), all) > limit;
    const uint64_t span = splits > 1 ? ceil_div(all, splits) : all;
    if (span >= all && !too_long) return 0;
    return std::min(span, too_long ? most : max_span_tiles);
}

PartStatistics part_statistics(const Problem& p) {
    return {
        .max_sum = true, .natural = has_natural_scores(p), .shift = shifts_rows(p), .sinks = p.sinks != 0};
}

uint64_t rows_of_part(const Problem& p) {
    return uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
}

uint64_t bytes_of_part(const Problem& p) {
    return rows_of_part(p) * (p.head_dim_v * uint64_t{4} + part_statistics(p).bytes());
}

// Returns the number of parts for which scratch has room; 0 if this build has no kernel to merge them.
uint64_t splits_that_fit(const DeviceCaps& caps, const Options& options, const Plan& plan) {
    if (!has_kernel(caps, Kernel::combine)) return 0;
    const uint64_t left = scratch_left(caps, options, plan);
    return left < 2 * scratch_alignment ? 0 : (left - 2 * scratch_alignment) / bytes_of_part(plan.problem);
}

Grid make_grid(const DeviceCaps& caps, const Options& options, const TileChoice& tiles, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileChoice& n = tiles;
    Grid g{};
    g.heads = uint64_t{p.batch} * (tiles.pack ? p.num_heads_kv : p.num_heads_q);
    g.query_tiles = ceil_div(uint64_t{p.seqlen_q} * (tiles.pack ? p.group_size : 1), n.tile_q());
    g.keys = p.visible_keys(0, p.seqlen_q - 1);
    const uint64_t first = g.keys.begin / n.tile_kv(), end = ceil_div(g.keys.end, n.tile_kv());
    g.longest = std::max<uint64_t>(1, longest_loop(p, n.tile_q(), n.tile_kv(), end - first));
    if (first == end) return g;
    g.fixed_cuts = options.batch_invariant;
    const auto cut = [&](uint64_t span) {
        const uint64_t origin = g.fixed_cuts ? 0 : first;
        g.span_tiles = span == 0 ? 0 : std::max<uint64_t>(span, ceil_div(end - origin, max_splits));
        g.first_split = span == 0 || !g.fixed_cuts ? 0 : first / g.span_tiles;
        g.splits = span == 0 ? 1 : ceil_div(end - origin, g.span_tiles) - g.first_split;
        return span == 0 || g.splits <= splits_that_fit(caps, options, plan);
    };
    const bool asked = options.num_splits != 0 || options.batch_invariant;
    const uint64_t splits = asked ? options.num_splits : busy_splits(caps, tiles, g, end - first);
    if (cut(choose_span(caps, p, options, tiles, first, end, splits)) || options.num_splits > 1 ||
        options.batch_invariant)
        return g;
    // If parts that the caller did not ask for do not fit the scratch, only those remain that the limit of a dispatch
    // demands. If these do not fit either, and the limit is the default one, the keys are not split.
    if (!cut(choose_span(caps, p, options, tiles, first, end, 1)) && options.max_dispatch_flops == 0) cut(0);
    return g;
}

// Reserves scratch for the splits' outputs and lse.
Result<bool> reserve_parts(const DeviceCaps& caps, const Options& options, const Grid& g, Plan& plan) {
    const Problem& p = plan.problem;
    if (!has_kernel(caps, Kernel::combine)) return missing_kernel(Kernel::combine);
    if (g.splits > splits_that_fit(caps, options, plan))
        return unsupported(
            "", fmt::format("{} splits of the keys need {} bytes of scratch each, the limit is {}", g.splits,
                            bytes_of_part(p), scratch_limit(caps, options)));
    reserve_scratch(plan, Region::parts, g.splits * rows_of_part(p) * p.head_dim_v * 4);
    reserve_scratch(plan, Region::parts_lse, g.splits * rows_of_part(p) * part_statistics(p).bytes());
    return true;
}

// Lets a launch write the results of a split in place of out and lse. With fixed cuts, splits before that of the first
// visible key do not exist.
template <class K>
void set_results(Launch<K>& launch, const Problem& p, const Grid& g) {
    const bool split = g.span_tiles != 0;
    const uint64_t rows_before = g.first_split * rows_of_part(p);
    launch.constants.is_split = split;
    VKATTN_PATCH(launch, out_rows, split ? Region::parts : Region::out, 0 - rows_before * p.head_dim_v * 4);
    VKATTN_PATCH(launch, lse, split ? Region::parts_lse : Region::lse,
                 0 - rows_before * part_statistics(p).bytes());
    launch.writes = split ? bit(Region::parts) | bit(Region::parts_lse) : bit(Region::out) | bit(Region::lse);
    if (!split) return;
    launch.push.operand_layout[9] = g.fixed_cuts ? 0 : static_cast<uint32_t>(g.splits);
    launch.push.operand_layout[10] = static_cast<uint32_t>(g.span_tiles);
    launch.push.operand_layout[11] = p.batch * p.num_heads_q;
}

// The forward kernel's pipeline.
template <class K>
Pipeline finish_launch(Launch<K> launch, const Grid& g, const Plan& plan) {
    const Problem& p = plan.problem;
    launch.of_tuning_row = true;
    VKATTN_PATCH(launch, query, Region::query);
    VKATTN_PATCH(launch, key, Region::key);
    const Region value = region_of_value(p);
    VKATTN_PATCH(launch, value, value);
    launch.reads |= bit(Region::query) | bit(Region::key) | bit(value) | mask_class_reads(plan);
    if (p.mask != VKATTN_MASK_NONE) launch.reads |= bit(Region::mask);
    set_results(launch, p, g);
    return launch.pipeline();
}

LinkedTiles linked_tiles(const TileChoice& tiles) {
    return {.holds_keys = false,
            .packed = tiles.pack,
            .isolates_rows = tiles.isolates_rows,
            .held = tiles.tile_q(),
            .walked = tiles.tile_kv()};
}

Pipeline forward_pipeline(const DeviceCaps& caps, const TileChoice& tiles, const Grid& g, const Plan& plan) {
    const Problem& p = plan.problem;
    if (tiles.matrix) {
        auto launch = matrix_launch(p, tiles);
        set_links(launch, plan, std::array{linked_tiles(tiles)});
        constexpr size_t of_links = offsetof(push::forward_matrix, operand_layout) + 8;
        if (launch.constants.has_links != 0) launch.patch(of_links, Region::tile_links);
        return finish_launch(launch, g, plan);
    }
    const bool arguments = needs_arguments(p);
    const auto launch = [&]<class K>(K) {
        const Module module = module_for(K::id, p, caps, tiles.dot);
        return finish_launch(tile_launch<K>(p, module, tiles, arguments), g, plan);
    };
    return tiles.numbers.of_rows_kernel() ? launch(kernels::forward_rows{})
                                          : launch(kernels::forward_tiles{});
}

Combine combine_of(const Problem& p, uint64_t splits) {
    VkattnCombine c = default_combine();
    c.dtype = p.out_dtype;
    c.num_parts = static_cast<uint32_t>(splits);
    c.batch = p.batch;
    c.num_heads = p.num_heads_q;
    c.seqlen_q = p.seqlen_q;
    c.head_dim_v = p.head_dim_v;
    const uint64_t rows = p.seqlen_q, dim = p.head_dim_v;
    c.part_stride = uint64_t{p.batch} * p.num_heads_q * rows * dim;
    c.parts_strides = {p.num_heads_q * rows * dim, rows * dim, dim};
    c.out_strides = p.out_strides;
    // Parts begin at multiples of 256 bytes; their rows are head_dim_v floats long.
    c.alignment_bytes = dim % 4 == 0 ? p.alignment_of(3) : p.element_bytes_of(3);
    return Combine{c, p.element_bytes_of(3), 4};
}

Result<Plan> plan_forward(const DeviceCaps& caps, const Problem& problem, const Options& options,
                          KernelKind kind) {
    if (options.batch_invariant && options.num_splits > 1)
        return invalid("options.num_splits",
                       "splits of the keys depend on seqlen_kv, batch_invariant forbids that");
    const bool matrix =
        kind == KernelKind::matrix || kind == KernelKind::matrix_khr || kind == KernelKind::matrix_rows;
    const bool dot = kind == KernelKind::rows_dot || kind == KernelKind::tiles_dot;
    if (problem.has_mixed_types() && dot) return unsupported("", needs_one_type);
    const Result<TileChoice> tiles =
        matrix ? choose_matrix(caps, problem, options, kind) : choose_tiles(caps, problem, options, kind);
    if (!tiles) return tiles.failure();
    const TileChoice& n = *tiles;

    Plan plan = begin_plan(problem, *tiles);
    if (n.matrix) plan.operands = n.matrix->shape.dtype;
    if (n.dot) plan.operands = problem.dtype;
    if (problem.empty_output()) return plan;
    const Grid grid = make_grid(caps, options, *tiles, plan);
    plan.num_splits = static_cast<uint32_t>(grid.splits);
    const uint64_t tiles_of_keys =
        grid.span_tiles != 0 ? std::min(grid.longest, grid.span_tiles) : grid.longest;
    if (const uint64_t most = most_tiles(caps, problem, n); tiles_of_keys > most)
        return loops_too_long("problem.seqlen_kv", tiles_of_keys, most);
    if (grid.span_tiles != 0)
        if (auto ok = reserve_parts(caps, options, grid, plan); !ok) return ok.failure();
    add_mask_classes(caps, options, *tiles, grid.query_tiles, plan);
    if (n.matrix) add_tile_links(caps, options, std::array{linked_tiles(n)}, plan);

    const uint32_t pipeline = add_pipeline(plan, forward_pipeline(caps, *tiles, grid, plan));
    const uint32_t slices = constant_of(plan.pipelines[pipeline], "slices");
    const uint64_t unit = flops_of(problem, n.tile_q(), tiles_of_keys * n.tile_kv());
    const std::array<uint64_t, 3> workgroups{grid.heads * slices, grid.query_tiles, grid.splits};
    if (workgroups[0] > uint64_t{1} << 32)
        return unsupported(plan.operands == problem.dtype ? "" : "options.precision",
                           fmt::format("{} heads of all batches in {} slices pass 2^32", grid.heads, slices));
    const auto boxes =
        within_limit(caps, options, [&](uint64_t limit) { return cut_grid(caps, workgroups, unit, limit); });
    if (!boxes) return boxes.failure();
    for (Box box : *boxes) {
        box.first[2] += grid.first_split;
        add_dispatch(plan, pipeline, box.count, cut_of(box),
                     box.count[0] * box.count[1] * box.count[2] * unit);
    }
    if (grid.span_tiles == 0) return plan;
    const uint64_t limit = options.max_dispatch_flops != 0 ? options.max_dispatch_flops : UINT64_MAX;
    if (auto ok = add_combine(caps, combine_of(problem, grid.splits), part_statistics(problem),
                              !options.batch_invariant, limit, plan);
        !ok)
        return ok.failure();
    return plan;
}

// On matrix units, keys and values that are blocks or single bytes may be decoded first. Where that fails, be it for
// scratch or for a dispatch's limit, they are decoded while they are staged.
Result<Plan> plan_matrix(const DeviceCaps& caps, const Problem& problem, const Options& options,
                         KernelKind kind) {
    const Result<VkattnDtype> operands = operand_type(problem, options);
    if (operands && *operands != VKATTN_DTYPE_FLOAT32)
        if (const auto decoded = decoded_problem(problem, options, *operands)) {
            Result<Plan> plan = plan_forward(caps, *decoded, options, kind);
            if (plan)
                if (const Result<bool> done = decode_first(caps, problem, options, *plan); done && *done)
                    return plan;
        }
    return plan_forward(caps, problem, options, kind);
}

Result<Plan> plan_rows(const DeviceCaps& caps, const Problem& problem, const Options& options,
                       KernelKind kind) {
    // Kernels for few rows sum in another order than the others, which may get the same row in another batch.
    if (options.batch_invariant)
        return unsupported("options.batch_invariant", "the kernel depends on how many rows there are");
    return plan_forward(caps, problem, options, kind);
}

}  // namespace

Result<Plan> plan_forward_rows(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    return plan_rows(caps, problem, options, KernelKind::rows);
}

Result<Plan> plan_forward_rows_dot(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    if (const auto ok = check_dot_products(caps, problem.dtype); !ok) return ok.failure();
    return plan_rows(caps, problem, options, KernelKind::rows_dot);
}

Result<Plan> plan_forward_matrix_rows(const DeviceCaps& caps, const Problem& problem,
                                      const Options& options) {
    if (caps.type == DeviceType::cpu && !is_named(options))
        return unsupported("", "CPUs have no matrix unit, `rows` is faster");
    // H200, D576 with values of 512, N 32,768, batch 8: `rows` takes 0.44 ms with 4 query heads and 0.87 with 8, this
    // kernel 0.75 with up to 16.
    if (std::max(problem.head_dim_qk, problem.head_dim_v) > 256 && !is_named(options) &&
        uint64_t{problem.seqlen_q} * problem.group_size <= 4)
        return unsupported("", "`rows` is faster for up to 4 query rows of more than 256 head dims");
    return plan_rows(caps, problem, options, KernelKind::matrix_rows);
}

Result<Plan> plan_forward_matrix(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    return plan_matrix(caps, problem, options, KernelKind::matrix);
}

Result<Plan> plan_forward_matrix_khr(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    return plan_matrix(caps, problem, options, KernelKind::matrix_khr);
}

Result<Plan> plan_forward_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    return plan_forward(caps, problem, options, KernelKind::tiles);
}

Result<Plan> plan_forward_tiles_dot(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    if (const auto ok = check_dot_products(caps, problem.dtype); !ok) return ok.failure();
    return plan_forward(caps, problem, options, KernelKind::tiles_dot);
}

}  // namespace vkattn::core
