// Instance and physical devices: finding them, describing them, picking one by what the user typed.
#pragma once

#include <string>
#include <vector>

#include "functions.hpp"
#include "loader.hpp"
#include "vkattn/runtime.h"

namespace vkattn::runtime {

constexpr uint32_t default_api_version = VK_API_VERSION_1_3;

// The runtime's inner error channel is vkattn::Error; the C functions turn it into a VkattnError.
[[noreturn]] void fail(VkattnStatus status, const std::string& message, const char* field = "",
                       VkResult result = VK_SUCCESS);

// Throws Error, or VulkanError where the device is lost, unless a call of VulkanMemoryAllocator has succeeded. `doing`:
// what it was to do.
void check(VkResult result, const std::string& doing);

// The loader and an instance of at most `api_version`. Throws Error or VulkanError.
struct Instance {
    Instance(bool validation, uint32_t api_version);
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;
    ~Instance() { vk.vkDestroyInstance(handle, nullptr); }

    std::vector<VkPhysicalDevice> devices() const;
    VkPhysicalDeviceProperties properties(VkPhysicalDevice device) const;

    const Loader loader;
    const uint32_t version;    // of the instance
    bool debug_utils = false;  // it has VK_EXT_debug_utils
    const VkInstance handle;
    const InstanceFunctions vk;
};

// Throws VulkanError.
struct Device {
    Device(const Instance& instance, VkPhysicalDevice physical, const VkDeviceCreateInfo& info);
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device() { vk.vkDestroyDevice(handle, nullptr); }

    struct Scope {
        VkPipelineStageFlags stages;
        VkAccessFlags access;
    };
    void barrier(VkCommandBuffer commands, Scope before, Scope after) const;

    const VkDevice handle;
    const DeviceFunctions vk;
};

VkattnDeviceInfo describe(const Instance& instance, VkPhysicalDevice device, uint32_t index);

// See vkattn_runtime_devices, vkattn_runtime_profile and vkattn_runtime_units. Throw Error.
std::vector<VkattnDeviceInfo> list_devices();
std::string device_profile(uint32_t index);
std::string device_units(uint32_t index);

// Returns the index of the device that `wanted` names; see VkattnRuntimeOptions::device. Throws Error.
uint32_t pick_device(const std::vector<VkattnDeviceInfo>& devices, const std::string& wanted);

}  // namespace vkattn::runtime
