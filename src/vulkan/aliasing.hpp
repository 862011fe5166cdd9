// Refuses arguments of a recording whose outputs provably share memory with something, by the rule of vkattn.h. The
// addresses are assumed to be checked: not null where there are elements, and aligned.
#pragma once

#include "plan/plan.hpp"
#include "vkattn/vkattn.h"

namespace vkattn::core {

using Addresses = std::array<VkDeviceAddress, static_cast<size_t>(Region::count)>;

// `scratch` is the address of the plan's scratch; a combine has none.
Result<bool> check_aliasing(const Plan& plan, const Addresses& addresses, VkDeviceAddress scratch);

}  // namespace vkattn::core
