#include "caps.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace vkattn::core {
namespace {

static_assert(driver_nvk == VK_DRIVER_ID_MESA_NVK);

const VkBaseInStructure* find(const void* chain, VkStructureType type) {
    for (auto* s = static_cast<const VkBaseInStructure*>(chain); s != nullptr; s = s->pNext)
        if (s->sType == type) return s;
    return nullptr;
}

template <class T>
const T* find(const void* chain, VkStructureType type) {
    return reinterpret_cast<const T*>(find(chain, type));
}

bool address_enabled(const void* chain) {
    if (auto* s = find<VkPhysicalDeviceVulkan12Features>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES))
        return s->bufferDeviceAddress != 0;
    auto* s = find<VkPhysicalDeviceBufferDeviceAddressFeatures>(
        chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
    return s != nullptr && s->bufferDeviceAddress != 0;
}

bool storage_16bit_enabled(const void* chain) {
    if (auto* s = find<VkPhysicalDeviceVulkan11Features>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES))
        return s->storageBuffer16BitAccess != 0;
    auto* s = find<VkPhysicalDevice16BitStorageFeatures>(
        chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    return s != nullptr && s->storageBuffer16BitAccess != 0;
}

// Vulkan itself does not tell; the vendors' extensions do, enabled or not.
uint32_t count_multiprocessors(const InstanceFunctions& vk, VkPhysicalDevice device) {
    uint32_t count = 0;
    vk.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> all(count);
    if (vk.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, all.data()) != VK_SUCCESS) return 0;
    const auto has = [&](const char* name) {
        return std::any_of(all.begin(), all.end(), [&](const VkExtensionProperties& e) {
            return std::strcmp(e.extensionName, name) == 0;
        });
    };
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    if (has(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) {
        VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia{};
        nvidia.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV;
        properties.pNext = &nvidia;
        vk.vkGetPhysicalDeviceProperties2(device, &properties);
        return nvidia.shaderSMCount;
    }
    if (has(VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) {
        VkPhysicalDeviceShaderCorePropertiesAMD amd{};
        amd.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD;
        properties.pNext = &amd;
        vk.vkGetPhysicalDeviceProperties2(device, &properties);
        return amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
    }
    if (has(VK_ARM_SHADER_CORE_BUILTINS_EXTENSION_NAME)) {
        VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM arm{};
        arm.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM;
        properties.pNext = &arm;
        vk.vkGetPhysicalDeviceProperties2(device, &properties);
        return arm.shaderCoreCount;
    }
    return 0;
}

}  // namespace

DeviceCaps query_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version,
                      const VkPhysicalDeviceFeatures2* features) {
    VkPhysicalDeviceMaintenance3Properties maintenance{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, nullptr, 0, 0};
    VkPhysicalDeviceSubgroupProperties subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    subgroup.pNext = &maintenance;
    VkPhysicalDeviceDriverProperties driver{};
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    driver.pNext = &subgroup;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &driver;  // a device before Vulkan 1.2, which is refused, may pass over it
    vk.vkGetPhysicalDeviceProperties2(device, &properties);
    const VkPhysicalDeviceProperties& p = properties.properties;
    const VkPhysicalDeviceLimits& l = p.limits;

    DeviceCaps caps;
    caps.name = p.deviceName;
    caps.vendor_id = p.vendorID;
    caps.type = static_cast<DeviceType>(p.deviceType);
    caps.driver_id = driver.driverID;
    caps.api_version = std::min(p.apiVersion, api_version);
    caps.subgroup_size = std::max(1u, subgroup.subgroupSize);
    caps.max_shared_bytes = l.maxComputeSharedMemorySize;
    caps.max_invocations = l.maxComputeWorkGroupInvocations;
    std::copy_n(l.maxComputeWorkGroupSize, 3, caps.max_workgroup_size.begin());
    std::copy_n(l.maxComputeWorkGroupCount, 3, caps.max_workgroup_count.begin());
    caps.max_push_constant_bytes = l.maxPushConstantsSize;
    caps.max_buffer_bytes = maintenance.maxMemoryAllocationSize;
    caps.multiprocessors = count_multiprocessors(vk, device);
    caps.buffer_device_address = features == nullptr || address_enabled(features);
    caps.storage_16bit = storage_16bit_enabled(features);
    return caps;
}

DeviceCaps query_supported_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version) {
    VkPhysicalDeviceBufferDeviceAddressFeatures address{};
    address.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
    VkPhysicalDevice16BitStorageFeatures storage{};
    storage.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
    address.pNext = &storage;
    VkPhysicalDeviceFeatures2 features{};
    features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    features.pNext = &address;
    vk.vkGetPhysicalDeviceFeatures2(device, &features);
    return query_caps(vk, device, api_version, &features);
}

}  // namespace vkattn::core
