// Fills the planner's DeviceCaps from a physical device and what the caller enabled on it.
#pragma once

#include "functions.hpp"
#include "plan/caps.hpp"

namespace vkattn::core {

// `features` is the chain given to vkCreateDevice, or null: then only what vkattn requires counts as enabled.
DeviceCaps query_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version,
                      const VkPhysicalDeviceFeatures2* features);

// The caps with everything enabled that the device supports.
DeviceCaps query_supported_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version);

}  // namespace vkattn::core
