// Drivers that end loops early (quirk_loops_end_early): the planners of the portable kernels ask how far a workgroup
// may walk there. They cut its walk, or refuse the problem by loops_too_long(). On other drivers there is no bound.
#pragma once

#include <cstdint>

#include "plan.hpp"

namespace vkattn::core {

// Returns the most steps of a workgroup's walk, if each takes so many iterations of an invocation's loops; 0 if one
// step takes too many.
uint64_t longest_walk(const DeviceCaps& caps, uint64_t iterations_of_step);

// Says why a walk of more steps is refused: `field` is the argument that makes it too long.
Failure loops_too_long(const char* field, uint64_t steps, uint64_t most);

// Returns more iterations than any portable kernel has for so many rows of the sequence that a workgroup walks: keys of
// the forward and of dquery, and queries of the other gradients.
uint64_t iterations_of(const Problem& problem, uint64_t rows, bool backward);

// Fails if the baseline's walks are too long, which are not cut.
Result<bool> check_baseline_loops(const DeviceCaps& caps, const Problem& problem, bool backward);

}  // namespace vkattn::core
