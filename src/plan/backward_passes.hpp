// backward.cpp and backward_matrix.cpp plan a backward of passes. A pass is a pipeline whose grid, and whose
// workgroups' loops, may be cut into dispatches; accumulators are passed on through scratch. The planners of the
// backward alone include this.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "backward_parts.hpp"
#include "classes.hpp"
#include "launch.hpp"

namespace vkattn::core {

// All that the passes plan by.
struct PassContext {
    const DeviceCaps& caps;
    const Options& options;
    const TileChoice& tiles;
    const Backward& backward;
    bool far_rows;  // the constant of that name, of all passes

    const TileNumbers& numbers() const { return tiles.numbers; }
};

// The sizes of dS in scratch. A step is step_rows query rows of a head, and all keys.
struct SpillSizes {
    uint64_t step_rows, step_bytes;
    uint64_t steps_of_head;   // of a query head
    uint64_t steps_of_tile;   // of a query tile of the pass that reads dS
    uint64_t states_of_head;  // states of query tiles
    uint64_t tiles_of_head;   // query tiles of the pass that reads dS, of all query heads of a kv head
    uint64_t tile_flops;      // of one of these
    // If dbias is found from dS, a strip has all that share an element of the mask: a multiple of so many kv heads and,
    // if it is whole, all steps.
    uint64_t strip_heads = 1;
    bool whole_strips = false;
};

// How dbias is found from strips of dS: by tiles of a step and so many keys of the mask.
struct SpilledMask {
    uint64_t masks, key_tiles, tile_flops;
    uint64_t heads, group;  // query heads that share a mask of a batch, and a kv head
    std::function<Pipeline()> pipeline;
};

// How a pass spills dS: for so many of its heads at a time, and for spans of their steps in turn, begin .. end-1. A
// second pipeline reads each strip before the next one takes its place.
struct Strips {
    uint64_t heads;
    std::vector<std::array<uint64_t, 2>> spans;
    SpillSizes sizes;
    std::function<Pipeline()> reader;
    std::optional<SpilledMask> mask;
};

// A pass before it is cut: workgroups (heads, tiles, slices or what the kernel says), each with a loop of at most
// `longest` steps out of `steps` that are numbered from 0 on.
struct Pass {
    std::array<uint64_t, 3> grid{};
    uint64_t steps = 1, longest = 1;
    uint64_t step_flops = 0;
    uint64_t step_iterations = 0;             // of loops: see loops.hpp
    const char* walked = "problem.seqlen_q";  // what makes its loop long
    uint64_t kept_bytes =
        0;  // accumulators of all workgroups, kept between dispatches; 0: its loop cannot be cut
    // The pipeline; `resumed`: of a loop that is cut.
    std::function<Pipeline(bool resumed)> pipeline;
    std::optional<Strips> strips;
};

// Floating-point operations in the time that a byte of memory takes. By `vkattn bench --pass backward` an H200 does
// 250e12 a second, and copies 4.0e12 bytes.
constexpr uint64_t flops_per_byte = 60;

// A product that exceeds 64 bits exceeds every limit as well.
constexpr uint64_t product(uint64_t a, uint64_t b) {
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// True if a problem has anything to compute.
inline bool has_work(const Problem& p, const Backward& backward) {
    return rows_of(p) != 0 || has_keys(p) || backward.has_bias() || backward.dsinks != 0;
}

// What a launch of a pass that recomputes tiles reads, and which loop it has.
template <class K>
void set_pass(Launch<K>& launch, const PassContext& c, const Plan& plan, uint64_t steps) {
    const Problem& p = plan.problem;
    launch.constants.has_dlse = c.backward.dlse != 0;
    launch.of_tuning_row = plan.tuning_row == c.tiles.row;
    launch.constants.far_rows = c.far_rows;
    launch.push.num_steps = static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX));
    VKATTN_PATCH(launch, query, Region::query);
    VKATTN_PATCH(launch, key, Region::key);
    VKATTN_PATCH(launch, value, Region::value);
    for (const Region r : {Region::query, Region::key, Region::value, Region::dout}) launch.reads |= bit(r);
    if (rows_of(p) != 0) launch.reads |= bit(Region::statistics);
    if (p.mask != VKATTN_MASK_NONE) launch.reads |= bit(Region::mask);
    launch.reads |= mask_class_reads(plan);
}

// A launch of a portable pass that recomputes tiles, without what it writes.
template <class K>
Launch<K> tile_pass(const PassContext& c, const Plan& plan, uint64_t steps) {
    const Module module = module_for(K::id, plan.problem, c.caps, c.tiles.dot);
    Launch<K> launch = tile_launch<K>(plan.problem, module, c.tiles, true);
    set_pass(launch, c, plan, steps);
    return launch;
}

// Tells a launch where dS lies in scratch.
template <class K>
void set_spill(Launch<K>& launch, const Plan& plan) {
    VKATTN_PATCH(launch, spill, Region::spill);
    launch.push.spill_heads = plan.spill_heads;
    launch.push.spill_steps = plan.spill_steps;
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

// Reserves scratch for the dS that a pass spills, if there is room and, unless it is `wanted`, if that pays. spills()
// is true of the plan then.
bool add_spill(const PassContext& c, const SpillSizes& sizes, bool wanted, const Pass& pass, Plan& plan);
bool spills(const Plan& plan);
// The longest loop of such a pass, whose rows are extended to whole tiles of the reader at both ends.
uint64_t longest_spilling(const Pass& pass, const SpillSizes& sizes);
// True if dS as it is spilled can be summed to dbias: the gradient of scores before a softcap and without the mask's
// slopes, in 16 bits.
bool may_spill_bias(const PassContext& c, const Problem& problem);
// Makes strips hold all that share an element of the mask.
SpillSizes for_bias(SpillSizes sizes, const Problem& problem, const Backward& backward);
SpilledMask spilled_mask(const PassContext& c, const Plan& plan);
// The strips of such a plan, without their readers.
Strips strips_of(const Plan& plan, const SpillSizes& sizes, const Pass& pass);

// The pass for row statistics, the one for the gradient of sinks, which reads them, and the one for the gradient of the
// mask, by the portable kernel.
Pass delta_pass(const PassContext& c, const Plan& plan);
Pass sinks_pass(const PassContext& c, const Plan& plan);
Pass mask_pass(const PassContext& c, const Plan& plan);

// The pass for the gradient of the mask without its pipeline, whose workgroups have such tiles.
Pass mask_work(const PassContext& c, const Plan& plan, uint32_t tile_q, uint32_t tile_kv);

// Adds passes to a plan, in order, each cut so that no dispatch costs more than the limit.
Result<bool> add_passes(const PassContext& c, const std::vector<Pass>& passes, Plan& plan);

}  // namespace vkattn::core
