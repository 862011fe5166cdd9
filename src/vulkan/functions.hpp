// The Vulkan functions the library calls, loaded through the caller's vkGetInstanceProcAddr.
#pragma once

#include <vulkan/vulkan_core.h>

#include "result.hpp"

namespace vkattn::core {

#define VKATTN_INSTANCE_FUNCTIONS(X)        \
    X(vkGetPhysicalDeviceProperties2)       \
    X(vkGetPhysicalDeviceFeatures2)         \
    X(vkGetPhysicalDeviceMemoryProperties)  \
    X(vkEnumerateDeviceExtensionProperties) \
    X(vkGetDeviceProcAddr)

#define VKATTN_DEVICE_FUNCTIONS(X) \
    X(vkCreateShaderModule)        \
    X(vkDestroyShaderModule)       \
    X(vkCreatePipelineLayout)      \
    X(vkDestroyPipelineLayout)     \
    X(vkCreateComputePipelines)    \
    X(vkDestroyPipeline)           \
    X(vkGetBufferDeviceAddress)    \
    X(vkCmdBindPipeline)           \
    X(vkCmdPushConstants)          \
    X(vkCmdDispatch)               \
    X(vkCmdPipelineBarrier)        \
    X(vkCmdUpdateBuffer)           \
    X(vkCmdFillBuffer)

struct InstanceFunctions {
#define X(name) PFN_##name name = nullptr;
    VKATTN_INSTANCE_FUNCTIONS(X)
#undef X
    // Null where no driver has the extension.
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR =
        nullptr;
};

struct DeviceFunctions {
#define X(name) PFN_##name name = nullptr;
    VKATTN_DEVICE_FUNCTIONS(X)
#undef X
};

// Throws a Failure that names the function, unless its result is a success.
void require_success(VkResult result, const char* function);

Result<InstanceFunctions> load_instance_functions(PFN_vkGetInstanceProcAddr get, VkInstance instance);
Result<DeviceFunctions> load_device_functions(const InstanceFunctions& vk, VkDevice device);

}  // namespace vkattn::core
