#include "features.hpp"

#include <algorithm>
#include <cstring>

namespace vkattn::core {
namespace {

const VkBaseInStructure* find(const void* chain, VkStructureType type) {
    for (auto* s = static_cast<const VkBaseInStructure*>(chain); s != nullptr; s = s->pNext)
        if (s->sType == type) return s;
    return nullptr;
}

// True if one of a chain's structs says so: a feature of its own struct, or of that of a Vulkan version.
template <class T>
bool says(const void* chain, VkStructureType type, VkBool32 T::*feature) {
    const auto* s = reinterpret_cast<const T*>(find(chain, type));
    return s != nullptr && s->*feature != 0;
}

}  // namespace

bool has_extension(const InstanceFunctions& vk, VkPhysicalDevice device, const char* name) {
    uint32_t count = 0;
    vk.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> all(count);
    if (vk.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, all.data()) != VK_SUCCESS)
        return false;
    return std::any_of(all.begin(), all.end(), [&](const VkExtensionProperties& e) {
        return std::strcmp(e.extensionName, name) == 0;
    });
}

Features::Features(const InstanceFunctions& vk, VkPhysicalDevice device) {
    features_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    link_known(vk, device);
    vk.vkGetPhysicalDeviceFeatures2(device, &features_);
    drop_unused();
}

// Those structs that a device of Vulkan 1.2, with these extensions, knows.
void Features::link_known(const InstanceFunctions& vk, VkPhysicalDevice device) {
    void** next = &features_.pNext;
    const auto link = [&](auto& features, VkStructureType type) {
        features.sType = type;
        *next = &features;
        next = &features.pNext;
    };
    const auto link_extension = [&](auto& features, VkStructureType type, const char* extension) {
        if (!has_extension(vk, device, extension)) return false;
        extensions_.push_back(extension);
        link(features, type);
        return true;
    };
    link(address_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
    link(storage_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    link(float16_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
    link(model_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
    // Core of Vulkan 1.3, by the extensions' names: the caller's instance may be of 1.2.
    link_extension(subgroup_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
                   VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    link_extension(maintenance_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
                   VK_KHR_MAINTENANCE_4_EXTENSION_NAME);
    if (!link_extension(matrix_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                        VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return;
    link_extension(matrix2_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV,
                   VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME);
    link_extension(bfloat16_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
                   VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME);
}

void Features::drop_unused() {
    features_.features = {};
    address_.bufferDeviceAddressCaptureReplay = address_.bufferDeviceAddressMultiDevice = VK_FALSE;
    storage_.uniformAndStorageBuffer16BitAccess = VK_FALSE;
    storage_.storagePushConstant16 = storage_.storageInputOutput16 = VK_FALSE;
    float16_.shaderInt8 = VK_FALSE;
    // With the memory model atomics are of device scope, the usual one, only if that is enabled too.
    model_.vulkanMemoryModel = model_.vulkanMemoryModelDeviceScope;
    model_.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
    subgroup_.computeFullSubgroups = VK_FALSE;
    matrix_.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    matrix2_.cooperativeMatrixWorkgroupScope = matrix2_.cooperativeMatrixFlexibleDimensions = VK_FALSE;
    matrix2_.cooperativeMatrixPerElementOperations = matrix2_.cooperativeMatrixTensorAddressing = VK_FALSE;
    matrix2_.cooperativeMatrixBlockLoads = VK_FALSE;
    bfloat16_.shaderBFloat16DotProduct = VK_FALSE;
}

Enabled enabled_by(const VkPhysicalDeviceFeatures2* features) {
    Enabled e{};
    if (features == nullptr) {
        e.buffer_device_address = true;
        return e;
    }
    const auto is = [&](auto type, auto feature) { return says(features, type, feature); };
    using V11 = VkPhysicalDeviceVulkan11Features;
    using V12 = VkPhysicalDeviceVulkan12Features;
    using V13 = VkPhysicalDeviceVulkan13Features;
    constexpr auto v11 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    constexpr auto v12 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    constexpr auto v13 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
    constexpr auto matrix2 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV;
    constexpr auto bfloat16 = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR;
    e.buffer_device_address = is(v12, &V12::bufferDeviceAddress) ||
                              is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
                                 &VkPhysicalDeviceBufferDeviceAddressFeatures::bufferDeviceAddress);
    e.storage_16bit = is(v11, &V11::storageBuffer16BitAccess) ||
                      is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
                         &VkPhysicalDevice16BitStorageFeatures::storageBuffer16BitAccess);
    e.float16 =
        is(v12, &V12::shaderFloat16) || is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES,
                                           &VkPhysicalDeviceShaderFloat16Int8Features::shaderFloat16);
    e.memory_model =
        is(v12, &V12::vulkanMemoryModel) || is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES,
                                               &VkPhysicalDeviceVulkanMemoryModelFeatures::vulkanMemoryModel);
    e.subgroup_size_control = is(v13, &V13::subgroupSizeControl) ||
                              is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
                                 &VkPhysicalDeviceSubgroupSizeControlFeatures::subgroupSizeControl);
    e.maintenance4 =
        is(v13, &V13::maintenance4) || is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
                                          &VkPhysicalDeviceMaintenance4Features::maintenance4);
    e.matrix = is(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                  &VkPhysicalDeviceCooperativeMatrixFeaturesKHR::cooperativeMatrix);
    e.matrix_conversions =
        is(matrix2, &VkPhysicalDeviceCooperativeMatrix2FeaturesNV::cooperativeMatrixReductions) &&
        is(matrix2, &VkPhysicalDeviceCooperativeMatrix2FeaturesNV::cooperativeMatrixConversions);
    e.bfloat16_matrix =
        is(bfloat16, &VkPhysicalDeviceShaderBfloat16FeaturesKHR::shaderBFloat16Type) &&
        is(bfloat16, &VkPhysicalDeviceShaderBfloat16FeaturesKHR::shaderBFloat16CooperativeMatrix);
    return e;
}

}  // namespace vkattn::core
