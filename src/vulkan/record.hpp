// Executes a plan into a command buffer. Decides nothing.
#pragma once

#include "context.hpp"
#include "vkattn/vkattn.h"

namespace vkattn::core {

// Checks the addresses against the problem, then records. Nothing is recorded on failure.
Result<bool> record_forward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnForwardArgs& args);

}  // namespace vkattn::core
