#include "caps.hpp"

#include <algorithm>

namespace vkattn::core {
namespace {

const VkBaseInStructure* find(const void* chain, VkStructureType type) {
    for (auto* s = static_cast<const VkBaseInStructure*>(chain); s != nullptr; s = s->pNext)
        if (s->sType == type) return s;
    return nullptr;
}

bool address_enabled(const void* chain) {
    if (auto* s = find(chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES))
        return reinterpret_cast<const VkPhysicalDeviceVulkan12Features*>(s)->bufferDeviceAddress != 0;
    if (auto* s = find(chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES))
        return reinterpret_cast<const VkPhysicalDeviceBufferDeviceAddressFeatures*>(s)->bufferDeviceAddress !=
               0;
    return false;
}

}  // namespace

DeviceCaps query_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version,
                      const VkPhysicalDeviceFeatures2* features) {
    VkPhysicalDeviceMaintenance3Properties maintenance{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, nullptr, 0, 0};
    VkPhysicalDeviceSubgroupProperties subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    subgroup.pNext = &maintenance;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &subgroup;
    vk.vkGetPhysicalDeviceProperties2(device, &properties);
    const VkPhysicalDeviceProperties& p = properties.properties;
    const VkPhysicalDeviceLimits& l = p.limits;

    DeviceCaps caps;
    caps.name = p.deviceName;
    caps.vendor_id = p.vendorID;
    caps.type = static_cast<DeviceType>(p.deviceType);
    caps.api_version = std::min(p.apiVersion, api_version);
    caps.subgroup_size = std::max(1u, subgroup.subgroupSize);
    caps.max_shared_bytes = l.maxComputeSharedMemorySize;
    caps.max_invocations = l.maxComputeWorkGroupInvocations;
    std::copy_n(l.maxComputeWorkGroupSize, 3, caps.max_workgroup_size.begin());
    std::copy_n(l.maxComputeWorkGroupCount, 3, caps.max_workgroup_count.begin());
    caps.max_push_constant_bytes = l.maxPushConstantsSize;
    caps.max_buffer_bytes = maintenance.maxMemoryAllocationSize;
    caps.buffer_device_address = features == nullptr || address_enabled(features);
    return caps;
}

DeviceCaps query_supported_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version) {
    VkPhysicalDeviceBufferDeviceAddressFeatures address{};
    address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
    VkPhysicalDeviceFeatures2 features{};
    features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    features.pNext = &address;
    vk.vkGetPhysicalDeviceFeatures2(device, &features);
    return query_caps(vk, device, api_version, &features);
}

}  // namespace vkattn::core
