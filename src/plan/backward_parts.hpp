// What the portable backward, the one on matrix units and the baseline have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "launch.hpp"

namespace vkattn::core {

// True if no row may see more than one key. dP - delta of a row is then exactly dlse, but only if dP and delta are
// summed in the same order: matrix units give 2e-7 instead of 0 (H200, float16, one key).
bool sees_one_key(const Problem& problem);

// Adds the BackwardArguments to a backward's plan, the blocks of `more` right behind it, and scratch for row
// statistics.
void add_backward_arguments(const Backward& backward, Plan& plan,
                            const std::vector<shared::ForwardArguments>& more = {});
// Row statistics cannot be processed in chunks. Fails if they exceed one allocation of the device.
Result<bool> check_statistics(const DeviceCaps& caps, const Problem& problem);
// True if rows of one tile (inputs or gradients) are too far apart for 32-bit offsets. Fails if the device cannot use
// wider ones.
Result<bool> has_far_rows(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                          uint32_t tile_q, uint32_t tile_kv);
// The pass that writes the statistics. Its grid: heads of all batches, tiles of delta_rows.
Launch<kernels::backward_delta> delta_launch(const DeviceCaps& caps, const Problem& problem,
                                             const Backward& backward, const TileChoice& tiles);
uint32_t delta_rows(const Problem& problem);

}  // namespace vkattn::core
