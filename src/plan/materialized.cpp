// The baseline: scores, softmax and output in three dispatches over a seqlen_q x seqlen_kv matrix in scratch.
// For comparison only, so never chosen unasked. Heads are taken in pieces whose matrices fit the scratch
// limit.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "baseline.hpp"
#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

// Grid of heads x tiles, which go on in z where y is too short.
bool set_grid(const DeviceCaps& caps, uint64_t heads, uint64_t tiles, std::array<uint64_t, 3>& groups) {
    const uint64_t rows = std::min<uint64_t>(tiles, caps.max_workgroup_count[1]);
    const uint64_t layers = (tiles + rows - 1) / rows;
    if (heads > caps.max_workgroup_count[0] || layers > caps.max_workgroup_count[2]) return false;
    groups = {heads, rows, layers};
    return true;
}

// The pipelines of the three steps.
struct Steps {
    uint32_t scores, softmax, output;
};

Steps add_steps(const TileChoice& tiles, Plan& plan) {
    const Problem& p = plan.problem;
    const bool arguments = needs_arguments(p);
    auto scores = tile_launch<kernels::materialized_scores>(p, {Kernel::materialized_scores, macros::F32},
                                                            tiles, arguments);
    VKATTN_PATCH(scores, query, Region::query);
    VKATTN_PATCH(scores, key, Region::key);
    VKATTN_PATCH(scores, scores, Region::scores);
    scores.reads |= bit(Region::query) | bit(Region::key);
    scores.writes = bit(Region::scores);
    auto softmax = tile_launch<kernels::materialized_softmax>(p, {Kernel::materialized_softmax, macros::F32},
                                                              tiles, arguments);
    VKATTN_PATCH(softmax, scores, Region::scores);
    VKATTN_PATCH(softmax, lse, Region::lse);
    softmax.reads |= bit(Region::scores);
    softmax.writes = bit(Region::scores) | bit(Region::lse);
    auto output = tile_launch<kernels::materialized_output>(p, {Kernel::materialized_output, macros::F32},
                                                            tiles, arguments);
    VKATTN_PATCH(output, weights, Region::scores);
    VKATTN_PATCH(output, value, region_of_value(p));
    VKATTN_PATCH(output, out_rows, Region::out);
    output.reads |= bit(Region::scores) | bit(region_of_value(p));
    output.writes = bit(Region::out);
    return {add_pipeline(plan, scores.pipeline()), add_pipeline(plan, softmax.pipeline()),
            add_pipeline(plan, output.pipeline())};
}

}  // namespace

uint64_t matrix_bytes_of(const Problem& p) {
    const uint64_t row_elements = (uint64_t{p.seqlen_kv} + 3) / 4 * 4;
    return std::max<uint64_t>(16, p.seqlen_q * row_elements * 4);
}

std::string beyond_baseline(const Problem& p, const Options& options) {
    if (p.has_mixed_types()) return "operands in types of their own";
    if (p.dtype != VKATTN_DTYPE_FLOAT32) return std::string("storage in ") + name_of(p.dtype);
    if (p.mask != VKATTN_MASK_NONE) return "mask";
    for (const OptionalArray& array : optional_arrays(p))
        if (array.asked) {
            std::string name = array.name;
            std::ranges::replace(name, '_', ' ');
            return name;
        }
    if (options.num_splits > 1) return "parts of the keys";
    if (options.max_dispatch_flops != 0) return "limit of a dispatch's cost";
    if (options.batch_invariant) return "batch-invariant mode";
    return "";
}

Result<Plan> plan_materialized(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    if (const std::string what = beyond_baseline(problem, options); !what.empty())
        return unsupported("options.kernel", "the baseline has no " + what);
    Result<TileChoice> tiles = choose_tiles(caps, problem, options, KernelKind::tiles);
    if (!tiles) return tiles.failure();
    tiles->pack = false;
    const TileNumbers& n = tiles->numbers;
    Plan plan = begin_plan(problem, *tiles);
    if (problem.empty_output()) return plan;
    if (auto ok = check_baseline_loops(caps, problem, false); !ok) return ok.failure();

    const uint64_t matrix_bytes = matrix_bytes_of(problem);
    const uint64_t left = std::min(scratch_left(caps, options, plan), max_matrix_bytes);
    const uint64_t limit = left / scratch_alignment * scratch_alignment;
    if (matrix_bytes > limit)
        return unsupported(
            "", fmt::format("the scores of one head need {} bytes of scratch, the limit is {}", matrix_bytes,
                            std::min(scratch_limit(caps, options), max_matrix_bytes)));
    const uint64_t heads = uint64_t{problem.batch} * problem.num_heads_q;
    const uint64_t piece = std::min({heads, limit / matrix_bytes, uint64_t{caps.max_workgroup_count[0]}});
    if (heads / piece > max_pieces)
        return unsupported(
            "", fmt::format("{} heads in pieces of {} would take too many dispatches", heads, piece));
    reserve_scratch(plan, Region::scores, piece * matrix_bytes);

    const uint32_t q_tiles = ceil_div(problem.seqlen_q, n.tile_q()),
                   kv_tiles = ceil_div(problem.seqlen_kv, n.tile_kv());
    if (kv_tiles > caps.max_workgroup_count[2])
        return unsupported("problem.seqlen_kv", "too many tiles for the grid");
    const Steps steps = add_steps(*tiles, plan);
    for (uint64_t first = 0; first < heads; first += piece) {
        const uint64_t count = std::min(piece, heads - first);
        std::array<uint64_t, 3> query_grid, row_grid;
        if (!set_grid(caps, count, q_tiles, query_grid) ||
            !set_grid(caps, count, problem.seqlen_q, row_grid) || query_grid[2] > 1)
            return unsupported("problem.seqlen_q", "more query tiles than the device's grid holds");
        Cut cut;
        cut.first[0] = static_cast<uint32_t>(first);
        if (kv_tiles != 0) add_dispatch(plan, steps.scores, {query_grid[0], query_grid[1], kv_tiles}, cut, 0);
        add_dispatch(plan, steps.softmax, row_grid, cut, 0);
        add_dispatch(plan, steps.output, query_grid, cut, 0);
    }
    return plan;
}

}  // namespace vkattn::core
