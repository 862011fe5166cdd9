#include "functions.hpp"

#include <fmt/format.h>

namespace vkattn::runtime {
namespace {

struct Named {
    VkResult result;
    const char* name;
};
// The results that Vulkan's specification allows for the functions that are called here.
constexpr Named names[] = {
    {VK_NOT_READY, "NotReady"},
    {VK_TIMEOUT, "Timeout"},
    {VK_INCOMPLETE, "Incomplete"},
    {VK_ERROR_OUT_OF_HOST_MEMORY, "ErrorOutOfHostMemory"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, "ErrorOutOfDeviceMemory"},
    {VK_ERROR_INITIALIZATION_FAILED, "ErrorInitializationFailed"},
    {VK_ERROR_DEVICE_LOST, "ErrorDeviceLost"},
    {VK_ERROR_MEMORY_MAP_FAILED, "ErrorMemoryMapFailed"},
    {VK_ERROR_LAYER_NOT_PRESENT, "ErrorLayerNotPresent"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, "ErrorExtensionNotPresent"},
    {VK_ERROR_FEATURE_NOT_PRESENT, "ErrorFeatureNotPresent"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, "ErrorIncompatibleDriver"},
    {VK_ERROR_TOO_MANY_OBJECTS, "ErrorTooManyObjects"},
    {VK_ERROR_UNKNOWN, "ErrorUnknown"},
    {VK_ERROR_VALIDATION_FAILED_EXT, "ErrorValidationFailed"},
    {VK_ERROR_INVALID_EXTERNAL_HANDLE, "ErrorInvalidExternalHandle"},
    {VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS, "ErrorInvalidOpaqueCaptureAddress"},
    {VK_ERROR_NOT_PERMITTED_KHR, "ErrorNotPermitted"},
};

}  // namespace

VulkanError::VulkanError(VkResult result, const char* function)
    : std::runtime_error(fmt::format("{}: {}", function, name_of(result))), result_(result) {}

std::string name_of(VkResult result) {
    for (const Named& known : names)
        if (known.result == result) return known.name;
    return fmt::format("invalid ( {:x} )", static_cast<uint32_t>(result));
}

}  // namespace vkattn::runtime
