// The arrays that recordings are given.
#pragma once

#include <vector>

#include "plan.hpp"

namespace vkattn::core {

// The arrays that recordings of a forward, backward or combine are given.
std::vector<CallerArray> caller_arrays_of(const Problem& problem);
std::vector<CallerArray> caller_arrays_of(const Problem& problem, const Backward& backward);
std::vector<CallerArray> caller_arrays_of(const Combine& combine);
// The arrays of the pass that makes the problem's block map. There are none if there are no blocks to make.
std::vector<CallerArray> block_map_arrays_of(const Problem& problem);

}  // namespace vkattn::core
