// The backward: row statistics, then dquery, then dkey and dvalue, then the gradient of the mask; each recomputes the
// tiles that it needs. A workgroup whose loop would cost too much is spread over several dispatches, which pass its
// accumulators on through scratch (backward_passes.cpp).
#include "backward_passes.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

Pass query_pass(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const TileNumbers& n = c.numbers();
    Pass pass;
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, n.tile_q()), n.q_slices};
    pass.steps = ceil_div(p.visible_keys(0, p.seqlen_q - 1).end, n.tile_kv());
    pass.longest = longest_loop(p, n.tile_q(), n.tile_kv(), pass.steps);
    pass.step_flops = uint64_t{n.tile_q()} * n.tile_kv() * 2 *
                      (p.head_dim_qk + p.head_dim_v + ceil_div(p.head_dim_qk, n.q_slices));
    pass.step_iterations = iterations_of(p, n.tile_kv(), true);
    pass.walked = "problem.seqlen_kv";
    const uint32_t kept_vec4 = POOL_V_STRIDE(p.head_dim_qk, n.lanes * n.q_slices);
    pass.kept_bytes = product(rows_of(p), uint64_t{16} * kept_vec4);
    auto launch = tile_pass<kernels::backward_query>(c, plan, pass.steps);
    launch.constants.slices = n.q_slices;
    launch.writes = bit(Region::dquery) | bit(Region::statistics);
    pass.pipeline = resumable(launch);
    return pass;
}

Pass key_value_pass(const PassContext& c, const Plan& plan) {
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
    pass.step_iterations = iterations_of(p, n.tile_q(), true);
    pass.kept_bytes =
        product(uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv, uint64_t{16} * kept_kv_vec4(n, p));
    auto launch = tile_pass<kernels::backward_key_value>(c, plan, pass.steps);
    launch.constants.slices = n.kv_slices;
    launch.writes = bit(Region::dkey) | bit(Region::dvalue);
    pass.pipeline = resumable(launch);
    return pass;
}

std::vector<Pass> make_passes(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    std::vector<Pass> passes;
    if (rows_of(p) != 0) {
        passes.push_back(delta_pass(c, plan));
        passes.push_back(query_pass(c, plan));
    }
    if (c.backward.dsinks != 0) passes.push_back(sinks_pass(c, plan));
    if (has_keys(p)) passes.push_back(key_value_pass(c, plan));
    if (c.backward.has_bias()) passes.push_back(mask_pass(c, plan));
    return passes;
}

Result<Plan> plan_passes(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                         const Options& options, KernelKind kind) {
    if (kind == KernelKind::backward_dot && problem.has_mixed_types())
        return unsupported(is_named(options) ? "options.kernel" : "", needs_one_type);
    const Result<TileChoice> tiles = choose_tiles(caps, problem, options, kind);
    if (!tiles) return tiles.failure();
    const TileNumbers& n = tiles->numbers;
    const Result<bool> far = has_far_rows(caps, problem, backward, n.tile_q(), n.tile_kv());
    if (!far) return far.failure();
    const PassContext c{caps, options, *tiles, backward, *far};

    Plan plan = begin_plan(problem, *tiles, false);
    plan.backward = backward;
    if (tiles->dot) plan.operands = problem.dtype;
    if (!has_work(problem, backward)) return plan;
    if (auto ok = check_statistics(caps, problem); !ok) return ok.failure();
    // Beside a sink, backward_delta.comp may look at all keys of a row in turn.
    if (const uint64_t most = longest_walk(caps, 1); problem.sinks != 0 && problem.seqlen_kv > most)
        return loops_too_long("problem.seqlen_kv", problem.seqlen_kv, most);
    add_backward_arguments(backward, plan);
    Plan classified = plan;
    if (!problem.empty_output())
        add_mask_classes(caps, options, *tiles, ceil_div(problem.seqlen_q, n.tile_q()), classified);
    if (add_passes(c, make_passes(c, classified), classified)) return classified;
    // Classes only save work: they give way where accumulators need their scratch.
    if (auto ok = add_passes(c, make_passes(c, plan), plan); !ok) return ok.failure();
    return plan;
}

}  // namespace

Result<Plan> plan_backward_tiles(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                                 const Options& options) {
    return plan_passes(caps, problem, backward, options, KernelKind::backward);
}

Result<Plan> plan_backward_tiles_dot(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                                     const Options& options) {
    if (const auto ok = check_dot_products(caps, problem.dtype); !ok) return ok.failure();
    if (sees_one_key(problem)) return unsupported("", "rows see one key at most, whose dS is exactly dlse");
    return plan_passes(caps, problem, backward, options, KernelKind::backward_dot);
}

}  // namespace vkattn::core
