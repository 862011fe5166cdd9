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

// These are of VK_EXT_debug_utils, which the application enables on its instance or not.
#define VKATTN_DEBUG_FUNCTIONS(X)   \
    X(vkCmdBeginDebugUtilsLabelEXT) \
    X(vkCmdEndDebugUtilsLabelEXT)   \
    X(vkSetDebugUtilsObjectNameEXT)

struct DeviceFunctions {
#define X(name) PFN_##name name = nullptr;
    VKATTN_DEVICE_FUNCTIONS(X)
    VKATTN_DEBUG_FUNCTIONS(X)  // all are null where the extension is not enabled
#undef X
    bool has_labels() const {
        return vkCmdBeginDebugUtilsLabelEXT != nullptr;
    }
};

// Dispatches that are recorded while it lives stand under a label in captures, if there are labels. The text is read by
// the constructor only; null: there is no label.
class Label {
  public:
    Label(const DeviceFunctions& vk, VkCommandBuffer commands, const char* text)
        : vk_(vk), commands_(commands), begun_(vk.has_labels() && text != nullptr) {
        if (!begun_) return;
        const VkDebugUtilsLabelEXT label{VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT, nullptr, text, {}};
        vk_.vkCmdBeginDebugUtilsLabelEXT(commands_, &label);
    }
    Label(const Label&) = delete;
    ~Label() {
        if (begun_) vk_.vkCmdEndDebugUtilsLabelEXT(commands_);
    }

  private:
    const DeviceFunctions& vk_;
    VkCommandBuffer commands_;
    bool begun_;
};

// Throws a Failure that names the function, unless its result is a success.
void require_success(VkResult result, const char* function);

Result<InstanceFunctions> load_instance_functions(PFN_vkGetInstanceProcAddr get, VkInstance instance);
Result<DeviceFunctions> load_device_functions(const InstanceFunctions& vk, VkDevice device);
// Adds those of VK_EXT_debug_utils. They belong to an extension of the instance, which answers for them.
Result<bool> load_debug_functions(PFN_vkGetInstanceProcAddr get, VkInstance instance,
                                  DeviceFunctions& device);

}  // namespace vkattn::core
