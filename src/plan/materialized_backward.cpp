// The baseline's gradients: of two seqlen_q x seqlen_kv matrices in scratch, P and then dS, six products and two passes
// over them. Heads are taken in pieces of whole groups, since a group's heads share the gradients of key and value.
//
//   scores, softmax: P    scores: dP = dout . value^T    gradient: dS = scale * P o (dP - delta)
//   output: dquery = dS . key    transposed: dvalue = P^T . dout, dkey = dS^T . query
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

using Push = shared::ForwardPush;

// A step's tensors stand where the forward's do: a problem with their strides and head dims, and an argument block of
// its own behind the backward's.
enum View : uint32_t { view_forward, view_slopes, view_dquery, view_dvalue, view_dkey, num_views };

Problem view_of(const Problem& p, const Backward& b, View view) {
    Problem v = p;
    switch (view) {
        case view_slopes:
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
    bool wide;
};

uint64_t block_at(uint64_t view) {
    return view == view_forward
               ? 0
               : sizeof(shared::BackwardArguments) + (view - 1) * sizeof(shared::ForwardArguments);
}

void add_arguments(const Context& c, Plan& plan) {
    std::vector<shared::ForwardArguments> more;
    for (uint32_t view = view_slopes; view < num_views; view++)
        more.push_back(forward_arguments(view_of(plan.problem, c.backward, static_cast<View>(view))));
    add_backward_arguments(c.backward, plan, more);
    using Arguments = shared::ForwardArguments;
    for (uint32_t view = view_slopes; view < num_views; view++)
        for (const size_t at : {offsetof(Arguments, classes), offsetof(Arguments, kv_lengths),
                                offsetof(Arguments, query_offsets)})
            plan.argument_patches.push_back({static_cast<uint32_t>(block_at(view) + at), Region::arguments});
}

// Heads, of whole groups.
struct Piece {
    uint64_t first, count;
};

// A step without its grid, which reads all of `tensors` but the last, and writes that.
Dispatch step(const Context& c, const Problem& p, Variant variant, View view, uint64_t first_head,
              std::initializer_list<Patch> tensors) {
    Dispatch d = common_dispatch(view_of(p, c.backward, view), variant, c.tiles, true);
    d.patches.front().add = block_at(view);  // so far there is no other than the block's
    d.specialization[SPEC_WIDE_ROWS] = c.wide;
    VKATTN_SET_PUSH(d, first_head, static_cast<uint32_t>(first_head));
    for (const Patch& tensor : tensors) {
        d.patches.push_back(tensor);
        d.reads |= d.writes;
        d.writes = bit(tensor.region);
    }
    return d;
}

void set_groups(Dispatch& d, uint64_t x, uint64_t y, uint64_t z = 1) {
    d.groups = {static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)};
}

// Rows go on in z where y is too short.
void set_row_groups(const DeviceCaps& caps, Dispatch& d, uint64_t heads, uint64_t rows) {
    const uint64_t y = std::min<uint64_t>(rows, caps.max_workgroup_count[1]);
    set_groups(d, heads, y, (rows + y - 1) / y);
}

// P and dS of a piece.
void add_matrices(const Context& c, const Piece& piece, Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.tiles.numbers;
    const uint32_t q_tiles = ceil_div(p.seqlen_q, n.tile_q()), kv_tiles = ceil_div(p.seqlen_kv, n.tile_kv());
    Dispatch scores = step(c, p, Variant::materialized_scores_f32, view_forward, piece.first,
                           {{offsetof(Push, query), Region::query},
                            {offsetof(Push, key), Region::key},
                            {offsetof(Push, outp), Region::scores}});
    Dispatch slopes = step(c, p, Variant::materialized_scores_f32, view_slopes, piece.first,
                           {{offsetof(Push, query), Region::dout},
                            {offsetof(Push, key), Region::value},
                            {offsetof(Push, outp), Region::slopes}});
    VKATTN_SET_PUSH(slopes, scale_log2, 1.0f);
    // Without an address the lse, which is the caller's, is not written.
    Dispatch softmax = step(c, p, Variant::materialized_softmax_f32, view_forward, piece.first,
                            {{offsetof(Push, outp), Region::scores}});
    softmax.reads |= bit(Region::scores);
    Dispatch gradient =
        step(c, p, Variant::materialized_gradient_f32, view_forward, piece.first,
             {{offsetof(Push, query), Region::scores}, {offsetof(Push, outp), Region::slopes}});
    gradient.reads |= bit(Region::slopes) | bit(Region::statistics);
    set_groups(scores, piece.count, q_tiles, kv_tiles);
    set_groups(slopes, piece.count, q_tiles, kv_tiles);
    set_row_groups(c.caps, softmax, piece.count, p.seqlen_q);
    set_row_groups(c.caps, gradient, piece.count, p.seqlen_q);
    plan.dispatches.insert(plan.dispatches.end(), {scores, slopes, softmax, gradient});
}

// What is written of a piece: dquery of its heads, dkey and dvalue of their groups.
void add_products(const Context& c, const Piece& piece, Plan& plan) {
    const Problem& p = plan.problem;
    const uint32_t tile = c.tiles.numbers.tile_q();
    const auto product = [&](Variant variant, View view, Region matrix, Region rows, Region out) {
        return step(
            c, p, variant, view, piece.first,
            {{offsetof(Push, query), matrix}, {offsetof(Push, value), rows}, {offsetof(Push, outp), out}});
    };
    if (p.seqlen_q != 0) {
        Dispatch dquery = product(Variant::materialized_output_f32, view_dquery, Region::slopes, Region::key,
                                  Region::dquery);
        set_groups(dquery, piece.count, ceil_div(p.seqlen_q, tile));
        plan.dispatches.push_back(dquery);
    }
    if (p.seqlen_kv == 0) return;
    Dispatch dvalue = product(Variant::materialized_transposed_f32, view_dvalue, Region::scores, Region::dout,
                              Region::dvalue);
    Dispatch dkey =
        product(Variant::materialized_transposed_f32, view_dkey, Region::slopes, Region::query, Region::dkey);
    for (Dispatch* d : {&dvalue, &dkey}) {
        set_groups(*d, piece.count / p.group_size, ceil_div(p.seqlen_kv, tile));
        plan.dispatches.push_back(*d);
    }
}

Result<bool> add_delta(const Context& c, Plan& plan) {
    const Problem& p = plan.problem;
    Dispatch d = delta_dispatch(c.caps, p, c.backward, c.tiles);
    d.specialization[SPEC_WIDE_ROWS] = c.wide;
    const auto boxes = cut_grid(
        c.caps, {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, delta_rows(p)), 1}, 1, UINT64_MAX);
    if (!boxes) return boxes.failure();
    for (const Box& box : *boxes) {
        VKATTN_SET_PUSH(d, first_head, static_cast<uint32_t>(box.first[0]));
        VKATTN_SET_PUSH(d, first_tile, static_cast<uint32_t>(box.first[1]));
        set_groups(d, box.count[0], box.count[1], box.count[2]);
        plan.dispatches.push_back(d);
    }
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
    reserve_scratch(plan, Region::slopes, piece * matrix_bytes);
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

    const uint32_t tile = std::max(tiles->numbers.tile_q(), tiles->numbers.tile_kv());
    const Result<bool> wide = find_wide_rows(caps, problem, backward, tile, tile);
    if (!wide) return wide.failure();
    const Context c{caps, *tiles, backward, *wide};
    for (const auto& ok : {check_statistics(caps, problem), check_grids(c, problem)})
        if (!ok) return ok.failure();
    add_arguments(c, plan);
    const Result<uint64_t> piece = reserve_matrices(c, options, plan);
    if (!piece) return piece.failure();
    if (rows_of(problem) != 0)
        if (auto ok = add_delta(c, plan); !ok) return ok.failure();
    const bool pairs = rows_of(problem) != 0 && has_keys(problem);
    const uint64_t heads = uint64_t{problem.batch} * problem.num_heads_q;
    for (uint64_t first = 0; first < heads; first += *piece) {
        const Piece of{first, std::min(*piece, heads - first)};
        if (pairs) add_matrices(c, of, plan);
        add_products(c, of, plan);
    }
    return plan;
}

}  // namespace vkattn::core
