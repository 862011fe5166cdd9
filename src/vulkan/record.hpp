// Executes a plan into a command buffer, and decides nothing: addresses are checked against the problem, written into
// the push constants and the argument block, and the plan's dispatches recorded with their barriers. The C ABI
// (api.cpp) calls it. It assumes that the plan's pipelines are built.
#pragma once

#include "context.hpp"
#include "vkattn/vkattn.h"

namespace vkattn::core {

// Check the addresses against the problem, then record. Nothing is recorded on failure.
// Dispatches first .. first + count - 1 of the plan.
Result<bool> record_forward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnForwardArgs& args,
                            uint32_t first, uint32_t count);
Result<bool> record_backward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnBackwardArgs& args,
                             uint32_t first, uint32_t count);
Result<bool> record_combine(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnCombineArgs& args);
Result<bool> record_block_map(VkCommandBuffer commands, const VkattnPlan& plan,
                              const VkattnForwardArgs& args);
// Records the dispatches of probe_plan.
Result<bool> record_probe(VkCommandBuffer commands, const VkattnPlan& plan, VkDeviceAddress results);

}  // namespace vkattn::core
