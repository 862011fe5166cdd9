// The device features and extensions that vkattn can use.
#pragma once

#include <vector>

#include "functions.hpp"

namespace vkattn::core {

// The features that one device supports, as a chain to be queried or enabled.
class Features {
  public:
    Features(const InstanceFunctions& vk, VkPhysicalDevice device);
    Features(const Features&) = delete;
    Features& operator=(const Features&) = delete;

    const VkPhysicalDeviceFeatures2& chain() const { return features_; }
    const std::vector<const char*>& extensions() const { return extensions_; }

  private:
    void link_known(const InstanceFunctions& vk, VkPhysicalDevice device);
    void drop_unused();

    VkPhysicalDeviceFeatures2 features_{};
    VkPhysicalDeviceBufferDeviceAddressFeatures address_{};
    VkPhysicalDevice16BitStorageFeatures storage_{};
    VkPhysicalDeviceShaderFloat16Int8Features float16_{};
    VkPhysicalDeviceVulkanMemoryModelFeatures model_{};
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroup_{};
    VkPhysicalDeviceMaintenance4Features maintenance_{};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix_{};
    VkPhysicalDeviceCooperativeMatrix2FeaturesNV matrix2_{};
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16_{};
    std::vector<const char*> extensions_;
};

// Reads what a chain given to vkCreateDevice enables; each feature is found in its own struct or in that of a Vulkan
// version. null: bufferDeviceAddress alone.
struct Enabled {
    bool buffer_device_address, storage_16bit, float16, memory_model, subgroup_size_control, maintenance4;
    bool matrix, matrix_conversions, bfloat16_matrix;
};
Enabled enabled_by(const VkPhysicalDeviceFeatures2* features);

bool has_extension(const InstanceFunctions& vk, VkPhysicalDevice device, const char* name);

}  // namespace vkattn::core
