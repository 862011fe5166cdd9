// Plans which part of dS the backward on matrix units has in scratch at a time (shaders/lib/spill.glsl).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "backward_passes.hpp"

namespace vkattn::core {
namespace {

using shared::BackwardArguments;

// A strip has at least so many query rows, because between two strips all keys' accumulators go to scratch and come
// back. At 128 head dims these are half as many bytes as dS itself has in 1,024 rows. The limit was not measured.
constexpr uint64_t least_strip_rows = 1024;

// Strips pay if they take at most this much longer than one strip of everything would. H200, float16, N 16,384, causal,
// head dim 128: strips of 8 heads and 4,096 rows take 1.26 times as long by this count, and 10.1 ms for all passes;
// without dS in scratch these took 11.6.
constexpr double most_delay = 1.3;

// Workgroups that find dbias wait for memory: their size was not measured.
uint32_t spilled_mask_threads(const DeviceCaps& caps) {
    return caps.threads_up_to(256);
}

// A strip has some heads with all their steps, or so many steps of some heads.
struct Strip {
    uint64_t heads, steps;
};

// The choice of a strip depends on these.
struct Spilling {
    const Problem& problem;
    const SpillSizes& sizes;
    const Pass& pass;
    uint64_t longest;                    // loop of the pass when it spills
    uint64_t room, kept_room, all_room;  // bytes for dS, for accumulators between strips, and for both
    uint64_t step_limit;                 // steps that a dispatch may have
    uint32_t multiprocessors;

    bool is_bounded() const {
        const Problem& p = problem;
        return p.bound_hi < int64_t{p.seqlen_kv} - 1 || p.bound_lo > -int64_t{p.seqlen_q};
    }
    // The time of so many workgroups, in operations of one multiprocessor, if one of them takes `each` at most. Without
    // bounds it is whole rounds. Bounds leave a workgroup half of `each` on average, and long ones come first. That a
    // quarter of `each` is lost at the end is a guess.
    double time_of(uint64_t workgroups, double each) const {
        const double rounds = static_cast<double>(workgroups) / multiprocessors;
        return is_bounded() ? each * std::max(1.0, rounds / 2 + 0.25) : each * std::ceil(rounds);
    }
    double time_of(const Strip& strip) const {
        const uint64_t steps = std::min(strip.steps, longest);
        const double share = static_cast<double>(strip.steps) / static_cast<double>(pass.steps);
        const double tiles = static_cast<double>(sizes.tiles_of_head * strip.heads) * share;
        double time =
            time_of(strip.heads * pass.grid[1], static_cast<double>(product(steps, pass.step_flops))) +
            time_of(static_cast<uint64_t>(std::ceil(tiles)), static_cast<double>(sizes.tile_flops));
        if (strip.steps < pass.steps)
            time += 2 * flops_per_byte * static_cast<double>(kept_bytes(strip)) / multiprocessors;
        return time * static_cast<double>(count(strip));
    }
    uint64_t count(const Strip& strip) const {
        const uint64_t whole = strip.steps < sizes.steps_of_head ? sizes.steps_of_head : pass.steps;
        return product(ceil_div(pass.grid[0], strip.heads),
                       product(ceil_div(pass.steps, whole), ceil_div(whole, strip.steps)));
    }
    uint64_t kept_bytes(const Strip& strip) const { return pass.kept_bytes / pass.grid[0] * strip.heads; }
};

// Returns the most steps of so many heads that have room, in equal parts of a head's, or none.
std::optional<Strip> any_strip_of(const Spilling& s, uint64_t heads) {
    const SpillSizes& sizes = s.sizes;
    const uint64_t step_bytes = product(heads, sizes.step_bytes), kept = s.kept_bytes({heads, 0});
    if (std::min(s.room / step_bytes, s.step_limit) >= s.pass.steps) return Strip{heads, s.pass.steps};
    if (kept == 0 || kept > s.kept_room) return {};
    const uint64_t fit = std::min(std::min(s.room, s.all_room - kept) / step_bytes, s.step_limit);
    if (fit >= sizes.steps_of_head) {
        const uint64_t query_heads = s.pass.steps / sizes.steps_of_head, most = fit / sizes.steps_of_head;
        return Strip{heads, ceil_div(query_heads, ceil_div(query_heads, most)) * sizes.steps_of_head};
    }
    const uint64_t most = fit / sizes.steps_of_tile * sizes.steps_of_tile;
    if (most * sizes.step_rows < least_strip_rows) return {};
    const uint64_t strips = ceil_div(sizes.steps_of_head, most);
    return Strip{heads,
                 ceil_div(ceil_div(sizes.steps_of_head, strips), sizes.steps_of_tile) * sizes.steps_of_tile};
}

std::optional<Strip> strip_of(const Spilling& s, uint64_t heads) {
    const auto strip = any_strip_of(s, heads);
    return strip && s.sizes.whole_strips && strip->steps < s.pass.steps ? std::nullopt : strip;
}

// Returns the strips that take the least time, or none if there is no room.
std::optional<Strip> best_strip(const Spilling& s) {
    std::optional<Strip> best;
    const uint64_t all = s.pass.grid[0] / s.sizes.strip_heads;
    uint64_t heads = all;  // in units of strip_heads; for each number of strips, as few as make it
    while (true) {
        const auto strip = strip_of(s, heads * s.sizes.strip_heads);
        if (strip && s.count(*strip) <= max_boxes / 2 && (!best || s.time_of(*strip) < s.time_of(*best)))
            best = strip;
        if (heads == 1) break;
        heads = ceil_div(all, ceil_div(all, heads - 1));
    }
    return best;
}

}  // namespace

bool add_spill(const PassContext& c, const SpillSizes& s, bool wanted, const Pass& pass, Plan& plan) {
    const uint64_t states = rows_of(plan.problem) / plan.problem.seqlen_q * s.states_of_head * 4;
    const uint64_t taken = states + 3 * scratch_alignment, left = scratch_left(c.caps, c.options, plan);
    if (left <= taken || pass.steps > UINT32_MAX) return false;
    Spilling spilling{
        .problem = plan.problem,
        .sizes = s,
        .pass = pass,
        .longest = std::max<uint64_t>(1, longest_spilling(pass, s)),
        .room = uint64_t{8} << 32,  // an index counts vec4 in 31 bits
        .kept_room = left - taken,
        .all_room = left - taken,
        .step_limit = std::max<uint64_t>(1, dispatch_limit(c.caps, c.options) / pass.step_flops),
        .multiprocessors = multiprocessors_of(c.caps)};
    if (c.options.max_scratch_bytes == 0) {
        const uint64_t local = c.caps.device_local_bytes;
        spilling.room = std::min(default_max_scratch_bytes, local != 0 ? local / 16 : UINT64_MAX);
        spilling.all_room = c.caps.max_buffer_bytes - plan.scratch_bytes - taken;
    }
    spilling.room = std::min(spilling.room, spilling.all_room);
    if (spilling.longest <= spilling.step_limit) spilling.step_limit = UINT64_MAX;
    const auto strip = best_strip(spilling);
    if (!strip) return false;
    if (!wanted && spilling.time_of(*strip) > most_delay * spilling.time_of({pass.grid[0], pass.steps}))
        return false;
    plan.spill_heads = static_cast<uint32_t>(strip->heads);
    plan.spill_steps = static_cast<uint32_t>(strip->steps);
    plan.spill_bytes_of_all = product(product(pass.grid[0], pass.steps), s.step_bytes);
    plan.argument_patches.push_back({offsetof(BackwardArguments, tile_states), Region::tile_states});
    reserve_scratch(plan, Region::spill, strip->heads * strip->steps * s.step_bytes);
    reserve_scratch(plan, Region::tile_states, states);
    return true;
}

bool spills(const Plan& plan) {
    return plan.spill_heads != 0;
}

uint64_t longest_spilling(const Pass& pass, const SpillSizes& s) {
    const uint64_t query_heads = pass.steps / s.steps_of_head;
    return std::min(pass.steps, pass.longest + 2 * query_heads * s.steps_of_tile);
}

Strips strips_of(const Plan& plan, const SpillSizes& s, const Pass& pass) {
    const uint64_t heads = plan.spill_heads, span = plan.spill_steps;
    Strips strips{.heads = heads, .spans = {}, .sizes = s, .reader = {}, .mask = {}};
    // Spans of less than a query head end where it ends.
    const uint64_t whole = span < s.steps_of_head ? s.steps_of_head : pass.steps;
    for (uint64_t first = 0; first < pass.steps; first += whole)
        for (uint64_t begin = first; begin < first + whole; begin += span)
            strips.spans.push_back({begin, std::min(begin + span, first + whole)});
    return strips;
}

bool may_spill_bias(const PassContext& c, const Problem& p) {
    const BackwardMatrixNumbers& n = *c.tiles.backward_matrix;
    // A tile of this pass has whole matrices of dS^T, of a step.
    if (spilled_mask_threads(c.caps) * 8 % (n.kv_walked * n.shape.m) != 0) return false;
    return p.dtype != VKATTN_DTYPE_FLOAT32 && p.softcap == 0 && slopes_kind_of(p) != SLOPES_MASK &&
           p.seqlen_q > 1 && c.backward.dbias_extents[2] == p.seqlen_q &&
           has_kernel(c.caps, Kernel::backward_mask_spilled);
}

SpillSizes for_bias(SpillSizes sizes, const Problem& p, const Backward& backward) {
    const bool all_batches = backward.dbias_extents[0] == 1 && p.batch > 1;
    sizes.strip_heads = all_batches ? uint64_t{p.batch} * p.num_heads_kv
                                    : std::lcm(p.mask_group_size, p.group_size) / p.group_size;
    sizes.whole_strips = p.group_size > 1;
    return sizes;
}

SpilledMask spilled_mask(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const BackwardMatrixNumbers& n = *c.tiles.backward_matrix;
    const auto& extents = c.backward.dbias_extents;
    Launch<kernels::backward_mask_spilled> launch;
    launch.module = {Kernel::backward_mask_spilled,
                     p.dtype == VKATTN_DTYPE_BFLOAT16 ? macros::BF16 : macros::F16};
    set_problem(launch, p, c.tiles, true);
    set_spill(launch, plan);
    auto& k = launch.constants;
    k.threads = spilled_mask_threads(c.caps);
    k.far_rows = c.far_rows;
    k.matrix_m = n.shape.m;
    k.matrix_k = n.shape.k;
    k.step_rows = n.kv_walked;
    k.step_keys = n.kv_held();
    k.spilled_rows = n.spilled_held();
    launch.reads |= bit(Region::spill);
    launch.writes = bit(Region::dbias);
    const uint64_t sharing = (extents[0] == 1 ? p.batch : 1) * uint64_t{p.mask_group_size};
    return {.masks = extents[0] * extents[1],
            .key_tiles = ceil_div(extents[3], k.threads * 8 / k.step_rows),
            .tile_flops = product(sharing, uint64_t{k.threads} * 8 * 2 * flops_per_byte),
            .heads = p.mask_group_size,
            .group = p.group_size,
            .pipeline = [launch] { return launch.pipeline(); }};
}

}  // namespace vkattn::core
