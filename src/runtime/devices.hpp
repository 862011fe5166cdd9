// Instance and physical devices: finding them, describing them, picking one by what the user typed.
#pragma once

#define VULKAN_HPP_DISPATCH_LOADER_DYNAMIC 1
#include <vulkan/vulkan_raii.hpp>

#include <string>
#include <vector>

#include "vkattn/runtime.h"

namespace vkattn::runtime {

constexpr uint32_t default_api_version = VK_API_VERSION_1_3;

// The runtime's inner error channel is vkattn::Error; the C functions turn it into a VkattnError.
[[noreturn]] void fail(VkattnStatus status, const std::string& message, const char* field = "",
                       VkResult result = VK_SUCCESS);

// Throws, with the status that vulkan.hpp's exceptions become, unless a call of Vulkan or of VulkanMemoryAllocator has
// succeeded. `doing`: what it was to do.
void check(VkResult result, const std::string& doing);

// The loader and an instance of at most `api_version`. Throws Error.
struct Instance {
    Instance(bool validation, uint32_t api_version);

    vk::raii::Context context;
    vk::raii::Instance instance;
    uint32_t version;  // of the instance
};

// Creates a device, and leaves none behind where there is no memory for what belongs to it. Throws.
vk::raii::Device own_device(const vk::raii::PhysicalDevice& physical, const VkDeviceCreateInfo& info);

VkattnDeviceInfo describe(const Instance& instance, const vk::raii::PhysicalDevice& device, uint32_t index);

// See vkattn_runtime_devices, vkattn_runtime_profile and vkattn_runtime_units. Throw Error.
std::vector<VkattnDeviceInfo> list_devices();
std::string device_profile(uint32_t index);
std::string device_units(uint32_t index);

// Returns the index of the device that `wanted` names; see VkattnRuntimeOptions::device. Throws Error.
uint32_t pick_device(const std::vector<VkattnDeviceInfo>& devices, const std::string& wanted);

}  // namespace vkattn::runtime
