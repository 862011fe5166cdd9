// The arrays of recordings, by the contract (vkattn.h). Those beside tensors and mask are declared in
// shaders/interface/arrays.def.
#pragma once

#include "plan_reading.hpp"

namespace vkattn::test {

// Whether a term of the scores changes those of every tile.
bool terms_change_every_score(const core::Problem& problem);

// Region bits of those that may be read, and of all that there are.
uint32_t given_arrays(const core::Problem& problem);
uint32_t all_optional_arrays();

}  // namespace vkattn::test
