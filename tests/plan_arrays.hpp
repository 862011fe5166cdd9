// The arrays that a problem has by the contract (vkattn.h), the argument block that leads to them, and the terms of the
// scores, worked out without src/plan: the one place where the planner's checks list them.
#pragma once

#include <string>
#include <vector>

#include "plan_model.hpp"

namespace vkattn::test {

// An array of words that a problem may have beside its tensors.
struct OptionalArray {
    core::Region region;
    size_t at;             // bytes from the beginning of shared::ForwardArguments to its address
    uint32_t present_bit;  // in ForwardArguments::present
    bool asked;            // the problem has it
    bool given;            // it may be read
};
std::vector<OptionalArray> optional_arrays_of(const core::Problem& problem);

// The constants that say which terms a score has, and whether one changes the scores of every tile.
Values term_constants(const core::Problem& problem);
bool terms_change_every_score(const core::Problem& problem);

// Region bits of those that may be read, and of all that there are.
uint32_t given_arrays(const core::Problem& problem);
uint32_t all_optional_arrays();

// The addresses that a recording must be given are checked for null and alignment; no others are.
std::string caller_arrays_flaw(const core::Problem& problem, const core::Plan& plan);
std::string caller_arrays_flaw(const core::Problem& problem, const core::Backward& backward,
                               const core::Plan& plan);
std::string caller_arrays_flaw(const core::Combine& combine, const core::Plan& plan);

}  // namespace vkattn::test
