// Features and properties of a device, asked for where it knows them.
#pragma once

#include <set>
#include <string>

#include "devices.hpp"

namespace vkattn::runtime {

// The structs that a device is asked with, and the ends of their VkStructureTypes.
#define VKATTN_ASKED_STRUCTS(X)                                                                 \
    X(VkPhysicalDevice16BitStorageFeatures, 16BIT_STORAGE_FEATURES)                             \
    X(VkPhysicalDevice8BitStorageFeatures, 8BIT_STORAGE_FEATURES)                               \
    X(VkPhysicalDeviceBufferDeviceAddressFeatures, BUFFER_DEVICE_ADDRESS_FEATURES)              \
    X(VkPhysicalDeviceCooperativeMatrix2FeaturesNV, COOPERATIVE_MATRIX_2_FEATURES_NV)           \
    X(VkPhysicalDeviceCooperativeMatrixFeaturesKHR, COOPERATIVE_MATRIX_FEATURES_KHR)            \
    X(VkPhysicalDeviceDriverProperties, DRIVER_PROPERTIES)                                      \
    X(VkPhysicalDeviceMaintenance3Properties, MAINTENANCE_3_PROPERTIES)                         \
    X(VkPhysicalDeviceShaderBfloat16FeaturesKHR, SHADER_BFLOAT16_FEATURES_KHR)                  \
    X(VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM, SHADER_CORE_BUILTINS_PROPERTIES_ARM)     \
    X(VkPhysicalDeviceShaderCorePropertiesAMD, SHADER_CORE_PROPERTIES_AMD)                      \
    X(VkPhysicalDeviceShaderFloat16Int8Features, SHADER_FLOAT16_INT8_FEATURES)                  \
    X(VkPhysicalDeviceShaderIntegerDotProductFeatures, SHADER_INTEGER_DOT_PRODUCT_FEATURES)     \
    X(VkPhysicalDeviceShaderIntegerDotProductProperties, SHADER_INTEGER_DOT_PRODUCT_PROPERTIES) \
    X(VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE,                                  \
      SHADER_MIXED_FLOAT_DOT_PRODUCT_FEATURES_VALVE)                                            \
    X(VkPhysicalDeviceShaderSMBuiltinsPropertiesNV, SHADER_SM_BUILTINS_PROPERTIES_NV)           \
    X(VkPhysicalDeviceSubgroupProperties, SUBGROUP_PROPERTIES)                                  \
    X(VkPhysicalDeviceSubgroupSizeControlFeatures, SUBGROUP_SIZE_CONTROL_FEATURES)              \
    X(VkPhysicalDeviceSubgroupSizeControlProperties, SUBGROUP_SIZE_CONTROL_PROPERTIES)          \
    X(VkPhysicalDeviceVulkanMemoryModelFeatures, VULKAN_MEMORY_MODEL_FEATURES)

template <class T>
constexpr VkStructureType type_of = VK_STRUCTURE_TYPE_MAX_ENUM;
#define X(name, type) \
    template <>       \
    inline constexpr VkStructureType type_of<name> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type;
VKATTN_ASKED_STRUCTS(X)
#undef X

// Structs are chained only if the device's version or one of its extensions has them.
class Asker {
  public:
    // Throws VulkanError.
    Asker(const Instance& instance, VkPhysicalDevice device)
        : vk_(instance.vk), device_(device), basic_(instance.properties(device)) {
        const auto all =
            enumerate(VkExtensionProperties{}, "vk::raii::PhysicalDevice::enumerateDeviceExtensionProperties",
                      [&](uint32_t* count, VkExtensionProperties* e) {
                          return vk_.vkEnumerateDeviceExtensionProperties(device, nullptr, count, e);
                      });
        for (const VkExtensionProperties& e : all) extensions_.insert(e.extensionName);
    }
    bool has(const char* extension, uint32_t since = UINT32_MAX) const {
        return version() >= since || extensions_.contains(extension);
    }

    // Zeros where the device does not know the struct.
    template <class T>
    T features(bool known) const {
        return chained<T, VkPhysicalDeviceFeatures2>(known, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                                     vk_.vkGetPhysicalDeviceFeatures2);
    }
    template <class T>
    T properties(bool known) const {
        return chained<T, VkPhysicalDeviceProperties2>(known, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                       vk_.vkGetPhysicalDeviceProperties2);
    }

    VkPhysicalDeviceFeatures features() const {
        VkPhysicalDeviceFeatures told{};
        vk_.vkGetPhysicalDeviceFeatures(device_, &told);
        return told;
    }
    const VkPhysicalDeviceProperties& properties() const { return basic_; }
    // Throws VulkanError.
    std::vector<VkCooperativeMatrixPropertiesKHR> matrices() const {
        VkCooperativeMatrixPropertiesKHR empty{};
        empty.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
        return enumerate(empty, "vk::raii::PhysicalDevice::getCooperativeMatrixPropertiesKHR",
                         [&](uint32_t* count, VkCooperativeMatrixPropertiesKHR* m) {
                             return vk_.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(device_, count, m);
                         });
    }
    uint32_t version() const { return basic_.apiVersion; }

  private:
    template <class T, class First, class Ask>
    T chained(bool known, VkStructureType type, Ask ask) const {
        T asked{};
        asked.sType = type_of<T>;
        First first{};
        first.sType = type;
        first.pNext = &asked;
        if (known) ask(device_, &first);
        return asked;
    }

    const InstanceFunctions& vk_;
    VkPhysicalDevice device_;
    VkPhysicalDeviceProperties basic_;
    std::set<std::string> extensions_;
};

// The name of a matrix's element type, as profiles have it.
inline const char* short_name(VkComponentTypeKHR type) {
    switch (type) {
        case VK_COMPONENT_TYPE_FLOAT16_KHR:
            return "f16";
        case VK_COMPONENT_TYPE_FLOAT32_KHR:
            return "f32";
        case VK_COMPONENT_TYPE_FLOAT64_KHR:
            return "f64";
        case VK_COMPONENT_TYPE_BFLOAT16_KHR:
            return "bf16";
        case VK_COMPONENT_TYPE_SINT8_KHR:
            return "s8";
        case VK_COMPONENT_TYPE_UINT8_KHR:
            return "u8";
        case VK_COMPONENT_TYPE_SINT32_KHR:
            return "s32";
        case VK_COMPONENT_TYPE_UINT32_KHR:
            return "u32";
        default:
            return "other";
    }
}

}  // namespace vkattn::runtime
