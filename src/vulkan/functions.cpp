#include "functions.hpp"

#include <fmt/format.h>

namespace vkattn::core {

void require_success(VkResult result, const char* function) {
    if (result < 0)
        throw Failure{VKATTN_DEVICE_ERROR, "", fmt::format("{} failed", function),
                      static_cast<int32_t>(result)};
}

Result<InstanceFunctions> load_instance_functions(PFN_vkGetInstanceProcAddr get, VkInstance instance) {
    InstanceFunctions vk;
#define X(name)                                                   \
    vk.name = reinterpret_cast<PFN_##name>(get(instance, #name)); \
    if (vk.name == nullptr)                                       \
        return unsupported("instance", #name " is missing: the instance must be at least Vulkan 1.1");
    VKATTN_INSTANCE_FUNCTIONS(X)
#undef X
    vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR =
        reinterpret_cast<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
            get(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
    return vk;
}

Result<DeviceFunctions> load_device_functions(const InstanceFunctions& vk, VkDevice device) {
    DeviceFunctions d;
#define X(name)                                                                   \
    d.name = reinterpret_cast<PFN_##name>(vk.vkGetDeviceProcAddr(device, #name)); \
    if (d.name == nullptr) return unsupported("device", #name " is missing");
    VKATTN_DEVICE_FUNCTIONS(X)
#undef X
    return d;
}

Result<bool> load_debug_functions(PFN_vkGetInstanceProcAddr get, VkInstance instance, DeviceFunctions& d) {
#define X(name)                                                  \
    d.name = reinterpret_cast<PFN_##name>(get(instance, #name)); \
    if (d.name == nullptr)                                       \
        return invalid("info.debug_utils", "is set, but " #name " is missing: enable VK_EXT_debug_utils");
    VKATTN_DEBUG_FUNCTIONS(X)
#undef X
    return true;
}

}  // namespace vkattn::core
