// How many iterations of loops an invocation of the portable kernels has, for drivers that end loops early
// (quirk_loops_end_early). The planners of these kernels ask how far a workgroup may walk: they cut its walk, or refuse
// the problem by loops_too_long(). On other drivers there is no bound.
#pragma once

#include <cstdint>

#include "plan.hpp"
#include "tuning.hpp"

namespace vkattn::core {

// The most steps of a walk, as tiles of keys, if each takes so many iterations; 0 if one step takes too many.
uint64_t longest_walk(const DeviceCaps& caps, uint64_t iterations_of_step);

// Why a walk of more steps is refused: `field` is the argument that makes it too long.
Failure loops_too_long(const char* field, uint64_t steps, uint64_t most);

// Iterations of a step: a tile of keys in the forward and in the pass for dquery, a tile of queries in the passes for
// dkey and dvalue, and for dbias.
uint64_t forward_iterations(const TileNumbers& numbers, const Problem& problem);
uint64_t query_iterations(const TileNumbers& numbers, const Problem& problem);
uint64_t key_value_iterations(const TileNumbers& numbers, const Problem& problem);
uint64_t mask_iterations(const TileNumbers& numbers, const Problem& problem);
// Iterations of the baseline for one row of the other sequence: a key of the scores, the softmax and the output, or a
// query of the gradients of key and value.
Result<bool> check_baseline_loops(const DeviceCaps& caps, const TileNumbers& numbers, const Problem& problem,
                                  bool backward);
// Iterations of combine.comp for one part.
uint64_t combine_iterations(uint32_t head_dim_v, uint32_t lanes);

}  // namespace vkattn::core
