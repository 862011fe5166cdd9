// The device features and extensions that vkattn can use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "functions.hpp"

namespace vkattn::core {

// The features that vkattn would like enabled on one device, as far as the device supports them.
class Features {
  public:
    Features(const InstanceFunctions& vk, VkPhysicalDevice device);
    Features(const Features&) = delete;
    Features& operator=(const Features&) = delete;

    const VkPhysicalDeviceFeatures2& chain() const { return chain_; }
    const std::vector<const char*>& extensions() const { return extensions_; }

    // Sets the features in a chain that somebody else owns: in the structs that are there, their own or those of a
    // Vulkan version, and in new ones at its end otherwise. The new ones live as long as this object.
    void merge_into(VkBaseOutStructure& chain);

  private:
    void find_wanted(const InstanceFunctions& vk, VkPhysicalDevice device);

    VkPhysicalDeviceFeatures2 chain_{};
    std::vector<size_t> wanted_;  // indices into the table of features
    std::vector<const char*> extensions_;
    std::vector<std::unique_ptr<uint64_t[]>> appended_;  // the structs that merge_into() has added to chains
};

// Reads what a chain given to vkCreateDevice enables; each feature is found in its own struct or in that of a Vulkan
// version. null: bufferDeviceAddress alone.
struct Enabled {
    bool buffer_device_address, int64, storage_16bit, float16, memory_model, subgroup_size_control,
        full_subgroups;
    bool maintenance4, matrix, matrix_conversions, bfloat16_matrix, dot_float16, dot_bfloat16;
};
Enabled enabled_by(const VkPhysicalDeviceFeatures2* features);

bool has_extension(const InstanceFunctions& vk, VkPhysicalDevice device, const char* name);

}  // namespace vkattn::core
