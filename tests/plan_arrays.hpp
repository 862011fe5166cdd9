// The arrays that a problem has by the contract (vkattn.h) beside its tensors, worked out without src/plan: the one
// place where the planner's checks list them.
#pragma once

#include <vector>

#include "plan_reading.hpp"

namespace vkattn::test {

// An array of words that a problem may have.
struct OptionalArray {
    core::Region region;
    size_t at;             // bytes from the beginning of shared::ForwardArguments to its address
    uint32_t present_bit;  // in ForwardArguments::present
    bool asked;            // the problem has it
    bool given;            // it may be read
};
std::vector<OptionalArray> optional_arrays_of(const core::Problem& problem);

// Whether a term of the scores changes those of every tile.
bool terms_change_every_score(const core::Problem& problem);

// Region bits of those that may be read, and of all that there are.
uint32_t given_arrays(const core::Problem& problem);
uint32_t all_optional_arrays();

}  // namespace vkattn::test
