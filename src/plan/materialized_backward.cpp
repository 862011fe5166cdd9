// The baseline's gradients. There are two seqlen_q x seqlen_kv matrices in scratch, which hold P and then dS, six
// products and two passes over the matrices. Heads are taken in pieces of whole groups, because a group's heads share
// the gradients of key and value.
//
//   scores, softmax: P    scores: dP = dout . value^T    gradient: dS = scale * P o (dP - delta)
//   output: dquery = dS . key    transposed: dvalue = P^T . dout, dkey = dS^T . query
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "backward_parts.hpp"
#include "baseline.hpp"
#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

// A step's tensors stand where the forward's do: a problem with their strides and head dims, and an argument block of
// its own behind the backward's.
enum View : uint32_t { view_forward, view_gradients, view_dquery, view_dvalue, view_dkey, num_views };

Problem view_of(const Problem& p, const Backward& b, View view) {
    Problem v = p;
    switch (view) {
        case view_gradients:
            v.query_strides = b.dout_strides;
            v.key_strides = p.value_strides;
            v.head_dim_qk = p.head_dim_v;
            break;
        case view_dquery:
            v.value_strides = p.key_strides;
            v.out_strides = b.dquery_strides;
            v.head_dim_v = p.head_dim_qk;
            break;
        case view_dvalue:
            v.value_strides = b.dout_strides;
            v.out_strides = b.dvalue_strides;
            break;
        case view_dkey:
            v.value_strides = p.query_strides;
            v.out_strides = b.dkey_strides;
            v.head_dim_v = p.head_dim_qk;
            break;
        default:
            break;
    }
    return v;
}

struct Context {
    const DeviceCaps& caps;
    const TileChoice& tiles;
    const Backward& backward;
    bool far_rows;
};

uint64_t block_at(uint64_t view) {
    return view == view_forward
               ? 0
               : sizeof(shared::BackwardArguments) + (view - 1) * sizeof(shared::ForwardArguments);
}

void add_arguments(const Context& c, Plan& plan) {
    std::vector<shared::ForwardArguments> more;
    for (uint32_t view = view_gradients; view < num_views; view++)
        more.push_back(forward_arguments(view_of(plan.problem, c.backward, static_cast<View>(view))));
    add_backward_arguments(c.backward, plan, more);
    using Arguments = shared::ForwardArguments;
    for (uint32_t view = view_gradients; view < num_views; view++) {
        const auto absent = [&](size_t at) {
            plan.argument_patches.push_back({static_cast<uint32_t>(block_at(view) + at), Region::arguments});
        };
        absent(offsetof(Arguments, classes));
        for (const OptionalArray& array : optional_arrays(plan.problem))
            if (array.at) absent(*array.at);
    }
}

// Heads, of whole groups.
struct Piece {
    uint64_t first, count;
};

// A step's launch, without its tensors.
template <class K>
Launch<K> step(const Context& c, const Problem& p, View view) {
    auto launch = tile_launch<K>(view_of(p, c.backward, view), {K::id, macros::F32}, c.tiles, true);
    launch.patches.front().add = block_at(view);  // so far there is no other than the block's
    launch.constants.far_rows = c.far_rows;
    return launch;
}

uint32_t add_matrix_step(const Context& c, View view, Region query, Region key, Region matrix, Plan& plan) {
    auto launch = step<kernels::materialized_scores>(c, plan.problem, view);
    VKATTN_PATCH(launch, query, query);
    VKATTN_PATCH(launch, key, key);
    VKATTN_PATCH(launch, scores, matrix);
    if (view == view_gradients) launch.push.score_scale = 1;
    launch.reads |= bit(query) | bit(key);
    launch.writes = bit(matrix);
    return add_pipeline(plan, launch.pipeline());
}

// Without an address the lse, which is the caller's, is not written.
uint32_t add_softmax_step(const Context& c, Plan& plan) {
    auto launch = step<kernels::materialized_softmax>(c, plan.problem, view_forward);
    VKATTN_PATCH(launch, scores, Region::scores);
    launch.reads |= bit(Region::scores);
    launch.writes = bit(Region::scores);
    return add_pipeline(plan, launch.pipeline());
}

uint32_t add_gradient_step(const Context& c, Plan& plan) {
    auto launch = step<kernels::materialized_gradient>(c, plan.problem, view_forward);
    VKATTN_PATCH(launch, weights, Region::scores);
    VKATTN_PATCH(launch, score_gradients, Region::score_gradients);
    launch.reads |= bit(Region::scores) | bit(Region::score_gradients) | bit(Region::statistics);
    launch.writes = bit(Region::score_gradients);
    return add_pipeline(plan, launch.pipeline());
}

template <class K>
uint32_t add_product_step(const Context& c, View view, Region matrix, Region rows, Region out, Plan& plan) {
    auto launch = step<K>(c, plan.problem, view);
    VKATTN_PATCH(launch, weights, matrix);
    VKATTN_PATCH(launch, value, rows);
    VKATTN_PATCH(launch, out_rows, out);
    launch.reads |= bit(matrix) | bit(rows);
    launch.writes = bit(out);
    return add_pipeline(plan, launch.pipeline());
}

// The pipelines of all steps.
struct BackwardSteps {
    uint32_t scores, weight_gradients, softmax, gradient, dquery, dvalue, dkey;
};

BackwardSteps add_steps(const Context& c, Plan& plan) {
    using kernels::materialized_output, kernels::materialized_transposed;
    BackwardSteps s{};
    s.scores = add_matrix_step(c, view_forward, Region::query, Region::key, Region::scores, plan);
    s.weight_gradients =
        add_matrix_step(c, view_gradients, Region::dout, Region::value, Region::score_gradients, plan);
    s.softmax = add_softmax_step(c, plan);
    s.gradient = add_gradient_step(c, plan);
    s.dquery = add_product_step<materialized_output>(c, view_dquery, Region::score_gradients, Region::key,
                                                     Region::dquery, plan);
    s.dvalue = add_product_step<materialized_transposed>(c, view_dvalue, Region::scores, Region::dout,
                                                         Region::dvalue, plan);
    s.dkey = add_product_step<materialized_transposed>(c, view_dkey, Region::score_gradients, Region::query,
                                                       Region::dkey, plan);
    return s;
}

Cut cut_at(uint64_t head) {
    Cut cut;
    cut.first[0] = static_cast<uint32_t>(head);
    return cut;
}

// P and dS of a piece.
void add_matrices(const Context& c, const BackwardSteps& steps, const Piece& piece, Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.tiles.numbers;
    const std::array<uint64_t, 3> tiles{piece.count, ceil_div(p.seqlen_q, n.tile_q()),
                                        ceil_div(p.seqlen_kv, n.tile_kv())};
    // Rows go on in z where y is too short.
    const uint64_t y = std::min<uint64_t>(p.seqlen_q, c.caps.max_workgroup_count[1]);
    const std::array<uint64_t, 3> rows{piece.count, y, (p.seqlen_q + y - 1) / y};
    const Cut cut = cut_at(piece.first);
    add_dispatch(plan, steps.scores, tiles, cut, 0);
    add_dispatch(plan, steps.weight_gradients, tiles, cut, 0);
    add_dispatch(plan, steps.softmax, rows, cut, 0);
    add_dispatch(plan, steps.gradient, rows, cut, 0);
}

// Adds the products that write a piece's gradients: dquery of its heads, dkey and dvalue of their groups.
void add_products(const Context& c, const BackwardSteps& steps, const Piece& piece, Plan& plan) {
    const Problem& p = plan.problem;
    const uint32_t tile = c.tiles.numbers.tile_q();
    if (p.seqlen_q != 0)
        add_dispatch(plan, steps.dquery, {piece.count, ceil_div(p.seqlen_q, tile), 1}, cut_at(piece.first),
                     0);
    if (p.seqlen_kv == 0) return;
    for (const uint32_t of : {steps.dvalue, steps.dkey})
        add_dispatch(plan, of, {piece.count / p.group_size, ceil_div(p.seqlen_kv, tile), 1},
                     cut_at(piece.first / p.group_size), 0);
}

Result<bool> add_delta(const Context& c, Plan& plan) {
    const Problem& p = plan.problem;
    auto launch = delta_launch(c.caps, p, c.backward, c.tiles);
    launch.constants.far_rows = c.far_rows;
    const auto boxes = cut_grid(
        c.caps, {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, delta_rows(p)), 1}, 1, UINT64_MAX);
    if (!boxes) return boxes.failure();
    const uint32_t pipeline = add_pipeline(plan, launch.pipeline());
    for (const Box& box : *boxes) add_dispatch(plan, pipeline, box.count, cut_of(box), 0);
    return true;
}

Result<bool> check_grids(const Context& c, const Problem& p) {
    const TileNumbers& n = c.tiles.numbers;
    const auto& most = c.caps.max_workgroup_count;
    if (ceil_div(p.seqlen_q, n.tile_q()) > most[1] || ceil_div(p.seqlen_q, most[1]) > most[2])
        return unsupported("problem.seqlen_q", "more query tiles than the device's grid holds");
    if (ceil_div(p.seqlen_kv, n.tile_q()) > most[1] || ceil_div(p.seqlen_kv, n.tile_kv()) > most[2])
        return unsupported("problem.seqlen_kv", "too many tiles for the grid");
    if (p.group_size > most[0])
        return unsupported("problem.num_heads_q", "a group has more heads than the device's grid holds");
    return true;
}

// Heads of a piece: both matrices of each fit what is left of the scratch, for which they are reserved.
Result<uint64_t> reserve_matrices(const Context& c, const Options& options, Plan& plan) {
    const Problem& p = plan.problem;
    const uint64_t matrix_bytes = matrix_bytes_of(p);
    const uint64_t left = std::min(scratch_left(c.caps, options, plan) / 2, max_matrix_bytes);
    const uint64_t limit = left / scratch_alignment * scratch_alignment;
    const uint64_t fit = std::min<uint64_t>(limit / matrix_bytes, c.caps.max_workgroup_count[0]);
    if (fit < p.group_size)
        return unsupported(
            "", fmt::format("two matrices of {} bytes of scratch for each of the {} heads of a group "
                            "exceed the limit of {}",
                            matrix_bytes, p.group_size,
                            std::min(scratch_limit(c.caps, options), max_matrix_bytes)));
    const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
    const uint64_t piece = std::min(heads, fit / p.group_size * p.group_size);
    if (heads / piece > max_pieces)
        return unsupported(
            "", fmt::format("{} heads in pieces of {} would take too many dispatches", heads, piece));
    if (has_keys(p))
        reserve_scratch(plan, Region::scores, piece * matrix_bytes);  // dquery reads the other only
    reserve_scratch(plan, Region::score_gradients, piece * matrix_bytes);
    return piece;
}

std::string beyond(const Problem& p, const Backward& b, const Options& options) {
    if (p.softcap > 0) return "softcap in its backward";
    if (b.dlse != 0) return "gradient of lse";
    return beyond_baseline(p, options);
}

// For products whose rows are of either head dim.
Result<TileChoice> choose_backward_tiles(const DeviceCaps& caps, const Problem& p, const Options& options) {
    Problem widest = p;
    widest.head_dim_v = std::max(p.head_dim_qk, p.head_dim_v);
    Result<TileChoice> tiles = choose_tiles(caps, widest, options, KernelKind::tiles);
    if (tiles) tiles->pack = false;
    return tiles;
}

}  // namespace

Result<Plan> plan_materialized_backward(const DeviceCaps& caps, const Problem& problem,
                                        const Backward& backward, const Options& options) {
    if (const std::string what = beyond(problem, backward, options); !what.empty())
        return unsupported("options.kernel", "the baseline has no " + what);
    const Result<TileChoice> tiles = choose_backward_tiles(caps, problem, options);
    if (!tiles) return tiles.failure();
    Plan plan = begin_plan(problem, *tiles, false);
    plan.backward = backward;
    if (rows_of(problem) == 0 && !has_keys(problem)) return plan;
    if (auto ok = check_baseline_loops(caps, problem, true); !ok) return ok.failure();

    const uint32_t tile = std::max(tiles->numbers.tile_q(), tiles->numbers.tile_kv());
    const Result<bool> far = has_far_rows(caps, problem, backward, tile, tile);
    if (!far) return far.failure();
    const Context c{caps, *tiles, backward, *far};
    for (const auto& ok : {check_statistics(caps, problem), check_grids(c, problem)})
        if (!ok) return ok.failure();
    add_arguments(c, plan);
    const Result<uint64_t> piece = reserve_matrices(c, options, plan);
    if (!piece) return piece.failure();
    if (rows_of(problem) != 0)
        if (auto ok = add_delta(c, plan); !ok) return ok.failure();
    const bool pairs = rows_of(problem) != 0 && has_keys(problem);
    const uint64_t heads = uint64_t{problem.batch} * problem.num_heads_q;
    const BackwardSteps steps = add_steps(c, plan);
    for (uint64_t first = 0; first < heads; first += *piece) {
        const Piece of{first, std::min(*piece, heads - first)};
        if (pairs) add_matrices(c, steps, of, plan);
        add_products(c, steps, of, plan);
    }
    return plan;
}

}  // namespace vkattn::core
