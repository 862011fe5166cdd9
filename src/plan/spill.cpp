// Plans which part of dS the backward on matrix units has in scratch at a time (shaders/lib/spill.glsl).
#include <algorithm>
#include <cstddef>

#include "backward_passes.hpp"

namespace vkattn::core {
namespace {

using shared::BackwardArguments;

// Fewer query rows than this are not worth a strip. Between two strips all keys' accumulators go to scratch and come
// back: at 128 head dims these are half as many bytes as dS itself has in 1,024 rows. The limit was not measured.
constexpr uint64_t least_strip_rows = 1024;

// A strip of fewer workgroups leaves multiprocessors idle at its end, twice as many if bounds make some shorter than
// others. H200, float16, head dim 128, N 16,384, 256 workgroups a strip: 23.7 ms for all passes, 24.4 without spilling,
// and with a causal bound 22.6 and 11.7. N 8,192, causal, 512 workgroups: 0.92 of the time without.
constexpr uint64_t least_workgroups = 256;

// A strip has some heads with all their steps, or so many steps of one head.
struct Strip {
    uint64_t heads, steps;
};

// Returns the largest strip that has room, or none.
std::optional<Strip> strip_within(uint64_t room, uint64_t step_limit, const SpillSizes& s, const Pass& pass) {
    const uint64_t heads = pass.grid[0], kept = pass.kept_bytes / heads;
    if (pass.steps <= step_limit && product(pass.steps, s.step_bytes) <= room) {
        const uint64_t most = std::min(heads, room / (pass.steps * s.step_bytes));
        return Strip{ceil_div(heads, ceil_div(heads, most)), pass.steps};
    }
    if (kept == 0 || kept >= room) return {};
    const uint64_t fit = std::min((room - kept) / s.step_bytes, step_limit);
    if (fit >= s.steps_of_head) {
        const uint64_t query_heads = pass.steps / s.steps_of_head, most = fit / s.steps_of_head;
        return Strip{1, ceil_div(query_heads, ceil_div(query_heads, most)) * s.steps_of_head};
    }
    const uint64_t most = fit / s.steps_of_tile * s.steps_of_tile;
    if (most * s.step_rows < least_strip_rows) return {};
    const uint64_t strips = ceil_div(s.steps_of_head, most);
    return Strip{1, ceil_div(ceil_div(s.steps_of_head, strips), s.steps_of_tile) * s.steps_of_tile};
}

// True if strips of some of the heads have too few workgroups to pay. A workgroup that goes through a part of the steps
// counts as that part.
bool is_narrow(const Problem& p, const Strip& strip, const Pass& pass) {
    if (strip.heads == pass.grid[0]) return false;
    const bool is_bounded = p.bound_hi < int64_t{p.seqlen_kv} - 1 || p.bound_lo > -int64_t{p.seqlen_q};
    const uint64_t all = strip.heads * pass.grid[1] * pass.longest / pass.steps;
    return all < (is_bounded ? 2 * least_workgroups : least_workgroups);
}

}  // namespace

bool add_spill(const PassContext& c, const SpillSizes& s, bool wanted, const Pass& pass, Plan& plan) {
    const uint64_t states = rows_of(plan.problem) / plan.problem.seqlen_q * s.states_of_head * 4;
    const uint64_t left = scratch_left(c.caps, c.options, plan), spare = 3 * scratch_alignment;
    if (left <= states + spare) return false;
    uint64_t room = std::min(left - states - spare, uint64_t{8} << 32);  // an index counts vec4 in 31 bits
    if (c.options.max_scratch_bytes == 0 && c.caps.device_local_bytes != 0)
        room = std::min(room, c.caps.device_local_bytes / 16);
    const uint64_t step_limit = std::max<uint64_t>(1, dispatch_limit(c.caps, c.options) / pass.step_flops);
    const bool is_short = std::max<uint64_t>(1, pass.longest) <= step_limit;
    const auto strip = strip_within(room, is_short ? UINT64_MAX : step_limit, s, pass);
    if (!strip || pass.steps > UINT32_MAX) return false;
    if (!wanted && is_narrow(plan.problem, *strip, pass)) return false;
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

Strips strips_of(const Plan& plan, const SpillSizes& s, const Pass& pass) {
    const uint64_t heads = plan.spill_heads, span = plan.spill_steps;
    Strips strips{.heads = heads, .spans = {}, .sizes = s, .tile_flops = 0, .reader = {}};
    // Spans of less than a query head end where it ends.
    const uint64_t whole = span < s.steps_of_head ? s.steps_of_head : pass.steps;
    for (uint64_t first = 0; first < pass.steps; first += whole)
        for (uint64_t begin = first; begin < first + whole; begin += span)
            strips.spans.push_back({begin, std::min(begin + span, first + whole)});
    return strips;
}

}  // namespace vkattn::core
