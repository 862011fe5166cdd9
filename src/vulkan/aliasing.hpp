// Refuses arguments of a recording whose outputs provably share memory with something, by the rule of vkattn.h. The
// addresses are assumed to be checked: not null where there are elements, and aligned.
#pragma once

#include "plan/plan.hpp"
#include "vkattn/vkattn.h"

namespace vkattn::core {

Result<bool> check_aliasing(const Plan& plan, const VkattnForwardArgs& args);
Result<bool> check_aliasing(const Plan& plan, const VkattnBackwardArgs& args);
Result<bool> check_aliasing(const Plan& plan, const VkattnCombineArgs& args);

}  // namespace vkattn::core
