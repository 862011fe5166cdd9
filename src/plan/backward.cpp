// The backward: row statistics, then dquery, then dkey and dvalue, then the gradient of the mask; each recomputes the
// tiles that it needs. A workgroup whose loop would cost too much is spread over several dispatches, which pass its
// accumulators on through scratch.
#include <algorithm>
#include <cstddef>
#include <functional>

#include <fmt/format.h>

#include "launch.hpp"

namespace vkattn::core {
namespace {

using Arguments = shared::BackwardArguments;

// All that the passes plan by.
struct Context {
    const DeviceCaps& caps;
    const Options& options;
    const TileChoice& tiles;
    const Backward& backward;
    bool far_rows;  // the constant of that name, of all passes

    const TileNumbers& numbers() const { return tiles.numbers; }
};

// A pass before it is cut: workgroups (heads, tiles, slices or what the kernel says), each with a loop of at most
// `longest` steps out of `steps` that are numbered from 0 on.
struct Pass {
    std::array<uint64_t, 3> grid{};
    uint64_t steps = 1, longest = 1;
    uint64_t step_flops = 0;
    uint64_t kept_bytes =
        0;  // accumulators of all workgroups, kept between dispatches; 0: its loop cannot be cut
    // The pipeline; `resumed`: of a loop that is cut.
    std::function<Pipeline(bool resumed)> pipeline;
};

// A product that exceeds 64 bits exceeds every limit as well.
uint64_t product(uint64_t a, uint64_t b) {
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// How a pass is cut: its grid into boxes, each workgroup's loop into spans of so many steps.
struct PassCut {
    std::vector<Box> boxes;
    uint64_t span, unit;  // unit: what a workgroup may cost in a span
    bool loops = false;   // there is more than one span
};

// Steps of a workgroup's loop that a dispatch may have; all of them unless accumulators can be kept in between.
uint64_t span_of(const Context& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    const uint64_t most = std::max<uint64_t>(1, limit / pass.step_flops);
    const bool can_be_cut = pass.kept_bytes != 0 && pass.steps <= UINT32_MAX &&
                            pass.kept_bytes <= scratch_left(c.caps, c.options, plan);
    return pass.longest > most && can_be_cut ? most : std::max<uint64_t>(1, pass.steps);
}

// Cuts a pass so that no dispatch costs more than the limit.
Result<PassCut> cut_within(const Context& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    PassCut cut;
    cut.span = span_of(c, pass, plan, limit);
    cut.loops = cut.span < pass.steps;
    cut.unit = product(std::min(cut.span, std::max<uint64_t>(1, pass.longest)), pass.step_flops);
    auto boxes = cut_grid(c.caps, pass.grid, cut.unit, limit);
    if (!boxes) return boxes.failure();
    // Each cut loop is a dispatch of its own, because it costs more than half the limit: slices of dquery, which keep
    // their sums of P in one place, take turns.
    cut.boxes = std::move(*boxes);
    const uint64_t spans = cut.loops ? (pass.steps + cut.span - 1) / cut.span : 1;
    if (spans > max_boxes / std::max<size_t>(1, cut.boxes.size()))
        return unsupported("options.max_dispatch_flops",
                           fmt::format("this would take {} dispatches, at most {} are made",
                                       spans * cut.boxes.size(), max_boxes));
    return cut;
}

Result<PassCut> cut_pass(const Context& c, const Pass& pass, const Plan& plan) {
    return within_limit(c.caps, c.options, [&](uint64_t limit) { return cut_within(c, pass, plan, limit); });
}

void add_pass(const Pass& pass, const PassCut& cut, Plan& plan) {
    const uint32_t pipeline = add_pipeline(plan, pass.pipeline(cut.loops));
    for (const Box& box : cut.boxes) {
        Cut of_box = cut_of(box);
        const uint64_t flops = box.count[0] * box.count[1] * box.count[2] * cut.unit;
        for (uint64_t first = 0; first == 0 || first < pass.steps; first += cut.span) {
            if (cut.loops) {
                of_box.first_step = static_cast<uint32_t>(first);
                of_box.end_step = static_cast<uint32_t>(std::min(pass.steps, first + cut.span));
            }
            add_dispatch(plan, pipeline, box.count, of_box, flops);
        }
    }
}

// A launch of a pass that recomputes tiles, without what it writes.
template <class K>
Launch<K> pass_launch(const Context& c, const Plan& plan, uint64_t steps) {
    const Problem& p = plan.problem;
    Launch<K> launch = tile_launch<K>(p, module_for(K::id, p.dtype, c.caps), c.tiles, true);
    launch.constants.has_dlse = c.backward.dlse != 0;
    launch.of_tuning_row = true;
    launch.constants.far_rows = c.far_rows;
    launch.push.num_steps = static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX));
    VKATTN_PATCH(launch, query, Region::query);
    VKATTN_PATCH(launch, key, Region::key);
    VKATTN_PATCH(launch, value, Region::value);
    for (const Region r : {Region::query, Region::key, Region::value, Region::dout}) launch.reads |= bit(r);
    if (rows_of(p) != 0) launch.reads |= bit(Region::statistics);
    if (p.mask != VKATTN_MASK_NONE) launch.reads |= bit(Region::mask);
    launch.reads |= mask_class_reads(plan);
    return launch;
}

// The pipeline of a pass whose loop can be cut.
template <class K>
std::function<Pipeline(bool)> resumable(Launch<K> launch) {
    return [launch](bool resumed) mutable {
        launch.constants.is_resumed = resumed;
        if (resumed) {
            launch.reads |= bit(Region::accumulators);
            launch.writes |= bit(Region::accumulators);
        }
        return launch.pipeline();
    };
}

Pass delta_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    Pass pass;
    const uint32_t rows = delta_rows(p);
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, rows), 1};
    pass.step_flops = uint64_t{rows} * 2 * p.head_dim_v;
    auto launch = delta_launch(c.caps, p, c.backward, c.tiles);
    launch.constants.far_rows = c.far_rows;
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
    return pass;
}

Pass query_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    Pass pass;
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, n.tile_q()), n.q_slices};
    pass.steps = ceil_div(p.visible_keys(0, p.seqlen_q - 1).end, n.tile_kv());
    pass.longest = longest_loop(p, n.tile_q(), n.tile_kv(), pass.steps);
    pass.step_flops = uint64_t{n.tile_q()} * n.tile_kv() * 2 *
                      (p.head_dim_qk + p.head_dim_v + ceil_div(p.head_dim_qk, n.q_slices));
    const uint32_t kept_vec4 = POOL_V_STRIDE(p.head_dim_qk, n.lanes * n.q_slices);
    pass.kept_bytes = product(rows_of(p), uint64_t{16} * kept_vec4);
    auto launch = pass_launch<kernels::backward_query>(c, plan, pass.steps);
    launch.constants.slices = n.q_slices;
    launch.writes = bit(Region::dquery) | bit(Region::statistics);
    pass.pipeline = resumable(launch);
    return pass;
}

Pass key_value_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    Pass pass;
    pass.grid = {uint64_t{p.batch} * p.num_heads_kv, ceil_div(p.seqlen_kv, n.tile_kv()), n.kv_slices};
    const uint64_t query_tiles = ceil_div(p.seqlen_q, n.tile_q());
    pass.steps = p.group_size * query_tiles;
    pass.longest = p.group_size * longest_loop(p, n.tile_kv(), n.tile_q(), query_tiles);
    const uint32_t dims = p.head_dim_qk + p.head_dim_v;
    const uint32_t summed =  // in a slice of dkey, which costs more than one of dvalue
        n.kv_slices == 1 ? dims : ceil_div(std::max(p.head_dim_qk, p.head_dim_v), n.kv_slices / 2);
    pass.step_flops = uint64_t{n.tile_q()} * n.tile_kv() * 2 * (dims + summed);
    pass.kept_bytes =
        product(uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv, uint64_t{16} * kept_kv_vec4(n, p));
    auto launch = pass_launch<kernels::backward_key_value>(c, plan, pass.steps);
    launch.constants.slices = n.kv_slices;
    launch.writes = bit(Region::dkey) | bit(Region::dvalue);
    pass.pipeline = resumable(launch);
    return pass;
}

// One workgroup sums what shares a tile of the mask, so that its loop cannot be cut.
Pass mask_pass(const Context& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    const auto& extents = c.backward.dbias_extents;
    Pass pass;
    const uint64_t query_tiles = ceil_div(p.seqlen_q, n.tile_q());
    pass.grid = {extents[0] * extents[1], extents[2] == 1 ? 1 : query_tiles,
                 ceil_div(extents[3], n.tile_kv())};
    const uint64_t shared = (extents[0] == 1 ? p.batch : 1) * uint64_t{p.mask_group_size};
    const uint64_t seeing =  // where no tile is recomputed, rows count that see nothing, too
        p.mask_per_key ? longest_loop(p, n.tile_kv(), n.tile_q(), query_tiles) : query_tiles;
    pass.steps = pass.longest = shared * (extents[2] == 1 ? seeing : 1);
    const uint64_t tile = uint64_t{n.tile_q()} * n.tile_kv();
    pass.step_flops = p.mask_per_key ? tile * 2 * (p.head_dim_qk + p.head_dim_v) : n.tile_q();
    auto launch = pass_launch<kernels::backward_mask>(c, plan, pass.steps);
    launch.reads |= bit(Region::lse);
    if (c.backward.dlse != 0) launch.reads |= bit(Region::dlse);
    launch.writes = bit(Region::dbias);
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
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

Result<bool> add_passes(const Context& c, Plan& plan) {
    const std::vector<Pass> passes = make_passes(c, plan);
    std::vector<PassCut> cuts;
    uint64_t kept = 0;  // passes follow each other, so that they share it
    for (const Pass& pass : passes) {
        auto cut = cut_pass(c, pass, plan);
        if (!cut) return cut.failure();
        if (cut->loops) kept = std::max(kept, pass.kept_bytes);
        cuts.push_back(std::move(*cut));
    }
    if (kept != 0) {
        reserve_scratch(plan, Region::accumulators, kept);
        plan.argument_patches.push_back({offsetof(Arguments, accumulators), Region::accumulators});
    }
    for (size_t i = 0; i < passes.size(); i++) add_pass(passes[i], cuts[i], plan);
    return true;
}

}  // namespace

Result<Plan> plan_backward_tiles(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                                 const Options& options) {
    const Result<TileChoice> tiles = choose_tiles(caps, problem, options, KernelKind::backward);
    if (!tiles) return tiles.failure();
    const TileNumbers& n = tiles->numbers;
    const Result<bool> far = has_far_rows(caps, problem, backward, n.tile_q(), n.tile_kv());
    if (!far) return far.failure();
    const Context c{caps, options, *tiles, backward, *far};

    Plan plan = begin_plan(problem, *tiles, false);
    plan.backward = backward;
    if (rows_of(problem) == 0 && !has_keys(problem) && !backward.has_bias()) return plan;
    if (auto ok = check_statistics(caps, problem); !ok) return ok.failure();
    add_backward_arguments(backward, plan);
    Plan classified = plan;
    if (!problem.empty_output())
        add_mask_classes(caps, options, *tiles, ceil_div(problem.seqlen_q, n.tile_q()), classified);
    if (add_passes(c, classified)) return classified;
    // Classes only save work: they give way where accumulators need their scratch.
    if (auto ok = add_passes(c, plan); !ok) return ok.failure();
    return plan;
}

}  // namespace vkattn::core
