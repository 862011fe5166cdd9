// Instance and physical devices: finding them, describing them, picking one by what the user typed.
#pragma once

#define VULKAN_HPP_DISPATCH_LOADER_DYNAMIC 1
#include <vulkan/vulkan_raii.hpp>

#include "vkattn/runtime.hpp"

namespace vkattn::runtime {

// The loader and an instance of at most `api_version`. Throws RuntimeError.
struct Instance {
    Instance(bool validation, uint32_t api_version);

    vk::raii::Context context;
    vk::raii::Instance instance;
    uint32_t version;  // of the instance
};

DeviceInfo describe(const Instance& instance, const vk::raii::PhysicalDevice& device, uint32_t index);

// Index of the device that `wanted` names; see RuntimeOptions::device. Throws RuntimeError.
uint32_t pick_device(const std::vector<DeviceInfo>& devices, const std::string& wanted);

}  // namespace vkattn::runtime
