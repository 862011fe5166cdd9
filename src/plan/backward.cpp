// The backward: row statistics, then dquery, then dkey and dvalue, then the gradient of the mask; each recomputes the
// tiles that it needs. A workgroup whose loop would cost too much is spread over several dispatches, which pass its
// accumulators on through scratch.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

using Push = shared::ForwardPush;
using Arguments = shared::BackwardArguments;

// All that the passes plan by.
struct Context {
    const DeviceCaps& caps;
    const Options& options;
    const TileChoice& tiles;
    const Backward& backward;
    uint64_t limit;  // of a dispatch's cost

    const TileNumbers& numbers() const { return tiles.numbers; }
};

// A pass before it is cut: workgroups (heads, tiles, slices or what the kernel says), each with a loop of at most `longest` steps out of `steps` that are
// numbered from 0 on.
struct Pass {
    Dispatch dispatch;
    std::array<uint64_t, 3> grid;
    uint64_t steps, longest;
    uint64_t step_flops;
    uint64_t saved_bytes = 0;  // accumulators of all workgroups; 0: its loop cannot be cut
};

void set_span(Dispatch& d, uint64_t first, uint64_t end, uint64_t steps) {
    VKATTN_SET_PUSH(d, out_batch, static_cast<uint32_t>(first));
    VKATTN_SET_PUSH(d, out_head, static_cast<uint32_t>(end));
    VKATTN_SET_PUSH(d, out_seq, (first == 0 ? SPAN_FIRST : 0) | (end >= steps ? SPAN_LAST : 0));
}

// What exceeds 64 bits exceeds every limit as well.
uint64_t product(uint64_t a, uint64_t b) {
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// How a pass is cut: its grid into boxes, each workgroup's loop into spans of so many steps.
struct Cut {
    std::vector<Box> boxes;
    uint64_t span, unit;  // unit: what a workgroup may cost in a span
    bool loops = false;   // there is more than one span
};

// Steps of a workgroup's loop that a dispatch may have; all of them unless accumulators can be kept in between.
uint64_t span_of(const Context& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    const uint64_t most = std::max<uint64_t>(1, limit / pass.step_flops);
    const bool can_be_cut = pass.saved_bytes != 0 && pass.steps <= UINT32_MAX &&
                            pass.saved_bytes <= scratch_left(c.caps, c.options, plan);
    return pass.longest > most && can_be_cut ? most : std::max<uint64_t>(1, pass.steps);
}

// So that no dispatch costs more than the limit.
Result<Cut> cut_within(const Context& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    Cut cut;
    cut.span = span_of(c, pass, plan, limit);
    cut.loops = cut.span < pass.steps;
    cut.unit = product(std::min(cut.span, std::max<uint64_t>(1, pass.longest)), pass.step_flops);
    auto boxes = cut_grid(c.caps, pass.grid, cut.unit, limit);
    if (!boxes) return boxes.failure();
    // Of cut loops, which cost more than half the limit, each is a dispatch: slices of dquery, which keep their sums of P in
    // one place, take turns.
    cut.boxes = std::move(*boxes);
    const uint64_t spans = cut.loops ? (pass.steps + cut.span - 1) / cut.span : 1;
    if (spans > max_boxes / std::max<size_t>(1, cut.boxes.size()))
        return unsupported("options.max_dispatch_flops",
                           fmt::format("this would take {} dispatches, at most {} are made",
                                       spans * cut.boxes.size(), max_boxes));
    return cut;
}

// The default limit is no promise: rather longer dispatches than none.
Result<Cut> cut_pass(const Context& c, const Pass& pass, const Plan& plan) {
    auto cut = cut_within(c, pass, plan, c.limit);
    for (uint64_t limit = c.limit; !cut && c.options.max_dispatch_flops == 0 && limit < uint64_t{1} << 62;)
        cut = cut_within(c, pass, plan, limit *= 2);
    return cut;
}

void add_pass(const Pass& pass, const Cut& cut, Plan& plan) {
    Dispatch d = pass.dispatch;
    d.specialization[SPEC_SAVED] = cut.loops;
    if (cut.loops) {
        d.reads |= bit(Region::saved);
        d.writes |= bit(Region::saved);
    }
    for (const Box& box : cut.boxes) {
        VKATTN_SET_PUSH(d, first_head, static_cast<uint32_t>(box.first[0]));
        VKATTN_SET_PUSH(d, first_tile, static_cast<uint32_t>(box.first[1]));
        VKATTN_SET_PUSH(d, splits, static_cast<uint32_t>(box.first[2]));
        for (size_t i = 0; i < 3; i++) d.groups[i] = static_cast<uint32_t>(box.count[i]);
        d.flops = box.count[0] * box.count[1] * box.count[2] * cut.unit;
        for (uint64_t first = 0; first == 0 || first < pass.steps; first += cut.span) {
            if (cut.loops) set_span(d, first, std::min(pass.steps, first + cut.span), pass.steps);
            plan.dispatches.push_back(d);
        }
    }
}

Dispatch backward_dispatch(const Context& c, const Plan& plan, Variant float32) {
    const Problem& p = plan.problem;
    Dispatch d = common_dispatch(p, variant_for(float32, p.dtype, c.caps), c.tiles, true);
    d.specialization[SPEC_DLSE] = c.backward.dlse != 0;
    return d;
}

// One that recomputes tiles.
Dispatch tile_dispatch(const Context& c, const Plan& plan, Variant float32) {
    Dispatch d = backward_dispatch(c, plan, float32);
    d.of_row = true;
    d.patches.insert(d.patches.end(), {{offsetof(Push, query), Region::query},
                                       {offsetof(Push, key), Region::key},
                                       {offsetof(Push, value), Region::value}});
    for (const Region r : {Region::query, Region::key, Region::value, Region::dout}) d.reads |= bit(r);
    if (rows_of(plan.problem) != 0) d.reads |= bit(Region::statistics);
    if (plan.problem.mask != VKATTN_MASK_NONE) d.reads |= bit(Region::mask);
    use_mask_classes(plan, d);
    return d;
}

Pass delta_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    Pass pass{delta_dispatch(c.caps, p, c.backward, c.tiles), {}, 1, 1, 0};
    const uint32_t rows = delta_rows(p);
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, rows), 1};
    pass.step_flops = uint64_t{rows} * 2 * p.head_dim_v;
    return pass;
}

Pass query_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    Pass pass{tile_dispatch(c, plan, Variant::backward_query_f32), {}, 0, 0, 0};
    pass.dispatch.writes = bit(Region::dquery) | bit(Region::statistics);
    pass.dispatch.specialization[SPEC_SLICES] = n.q_slices;
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, n.tile_q()), n.q_slices};
    pass.steps = ceil_div(p.visible_keys(0, p.seqlen_q - 1).end, n.tile_kv());
    pass.longest = longest_loop(p, n.tile_q(), n.tile_kv(), pass.steps);
    pass.step_flops = uint64_t{n.tile_q()} * n.tile_kv() * 2 *
                      (p.head_dim_qk + p.head_dim_v + ceil_div(p.head_dim_qk, n.q_slices));
    const uint32_t saved_vec4 = POOL_V_STRIDE(p.head_dim_qk, n.lanes * n.q_slices);
    pass.saved_bytes = product(rows_of(p), uint64_t{16} * saved_vec4);
    return pass;
}

Pass key_value_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    Pass pass{tile_dispatch(c, plan, Variant::backward_key_value_f32), {}, 0, 0, 0};
    pass.dispatch.writes = bit(Region::dkey) | bit(Region::dvalue);
    pass.dispatch.specialization[SPEC_SLICES] = n.kv_slices;
    pass.grid = {uint64_t{p.batch} * p.num_heads_kv, ceil_div(p.seqlen_kv, n.tile_kv()), n.kv_slices};
    const uint64_t query_tiles = ceil_div(p.seqlen_q, n.tile_q());
    pass.steps = p.group_size * query_tiles;
    pass.longest = p.group_size * longest_loop(p, n.tile_kv(), n.tile_q(), query_tiles);
    const uint32_t dims = p.head_dim_qk + p.head_dim_v;
    const uint32_t summed =  // in a slice of dkey, which costs more than one of dvalue
        n.kv_slices == 1 ? dims : ceil_div(std::max(p.head_dim_qk, p.head_dim_v), n.kv_slices / 2);
    pass.step_flops = uint64_t{n.tile_q()} * n.tile_kv() * 2 * (dims + summed);
    pass.saved_bytes =
        product(uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv, uint64_t{16} * saved_kv_vec4(n, p));
    return pass;
}

// One workgroup sums what shares a tile of the mask, so that its loop cannot be cut.
Pass mask_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    const auto& extents = c.backward.dbias_extents;
    Pass pass{tile_dispatch(c, plan, Variant::backward_mask_f32), {}, 0, 0, 0};
    Dispatch& d = pass.dispatch;
    d.reads |= bit(Region::lse);
    if (c.backward.dlse != 0) d.reads |= bit(Region::dlse);
    d.writes = bit(Region::dbias);
    const uint64_t query_tiles = ceil_div(p.seqlen_q, n.tile_q());
    pass.grid = {extents[0] * extents[1], extents[2] == 1 ? 1 : query_tiles,
                 ceil_div(extents[3], n.tile_kv())};
    const uint64_t shared = (extents[0] == 1 ? p.batch : 1) * uint64_t{extents[1] == 1 ? p.num_heads_q : 1};
    const uint64_t seeing =  // where no tile is recomputed, rows count that see nothing, too
        p.mask_per_key ? longest_loop(p, n.tile_kv(), n.tile_q(), query_tiles) : query_tiles;
    pass.steps = pass.longest = shared * (extents[2] == 1 ? seeing : 1);
    const uint64_t tile = uint64_t{n.tile_q()} * n.tile_kv();
    pass.step_flops = p.mask_per_key ? tile * 2 * (p.head_dim_qk + p.head_dim_v) : n.tile_q();
    return pass;
}

std::vector<Pass> make_passes(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    std::vector<Pass> passes;
    if (rows_of(p) != 0) {
        passes.push_back(delta_pass(c, plan));
        passes.push_back(query_pass(c, plan));
    }
    if (has_keys(p)) passes.push_back(key_value_pass(c, plan));
    if (c.backward.has_bias()) passes.push_back(mask_pass(c, plan));
    return passes;
}

Result<bool> add_passes(const Context& c, bool wide, Plan& plan) {
    std::vector<Pass> passes = make_passes(c, plan);
    std::vector<Cut> cuts;
    uint64_t saved = 0;  // passes follow each other, so that they share it
    for (Pass& pass : passes) {
        pass.dispatch.specialization[SPEC_WIDE_ROWS] = wide;
        auto cut = cut_pass(c, pass, plan);
        if (!cut) return cut.failure();
        if (cut->loops) saved = std::max(saved, pass.saved_bytes);
        cuts.push_back(std::move(*cut));
    }
    if (saved != 0) {
        reserve_scratch(plan, Region::saved, saved);
        plan.argument_patches.push_back({offsetof(Arguments, saved), Region::saved});
    }
    for (size_t i = 0; i < passes.size(); i++) add_pass(passes[i], cuts[i], plan);
    return true;
}

}  // namespace

Result<Plan> plan_backward_tiles(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                                 const Options& options) {
    const Result<TileChoice> tiles = choose_tiles(caps, problem, options, KernelKind::backward);
    if (!tiles) return tiles.failure();
    const Context c{caps, options, *tiles, backward, dispatch_limit(caps, options)};
    const TileNumbers& n = tiles->numbers;
    const Result<bool> wide = find_wide_rows(caps, problem, backward, n.tile_q(), n.tile_kv());
    if (!wide) return wide.failure();

    Plan plan = begin_plan(problem, *tiles, false);
    plan.backward = backward;
    if (rows_of(problem) == 0 && !has_keys(problem) && !backward.has_bias()) return plan;
    if (auto ok = check_statistics(caps, problem); !ok) return ok.failure();
    add_backward_arguments(backward, plan);
    Plan classified = plan;
    if (!problem.empty_output())
        add_mask_classes(caps, options, *tiles, ceil_div(problem.seqlen_q, n.tile_q()), classified);
    if (add_passes(c, *wide, classified)) return classified;
    // Classes only save work: they give way where accumulators need their scratch.
    if (auto ok = add_passes(c, *wide, plan); !ok) return ok.failure();
    return plan;
}

}  // namespace vkattn::core
