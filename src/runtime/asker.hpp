// Features and properties of a device, asked for where it knows them.
#pragma once

#include <set>
#include <string>

#include "devices.hpp"

namespace vkattn::runtime {

// Structs are chained only if the device's version or one of its extensions has them.
class Asker {
  public:
    explicit Asker(const vk::raii::PhysicalDevice& device)
        : device_(device), version_(device.getProperties().apiVersion) {
        for (const auto& e : device.enumerateDeviceExtensionProperties())
            extensions_.insert(e.extensionName.data());
    }
    bool has(const char* extension, uint32_t since = UINT32_MAX) const {
        return version_ >= since || extensions_.contains(extension);
    }

    // Zeros where the device does not know the struct.
    template <class T>
    T features(bool known) const {
        if (!known) return {};
        return device_.getFeatures2<vk::PhysicalDeviceFeatures2, T>().template get<T>();
    }
    template <class T>
    T properties(bool known) const {
        if (!known) return {};
        return device_.getProperties2<vk::PhysicalDeviceProperties2, T>().template get<T>();
    }

    const vk::raii::PhysicalDevice& device() const { return device_; }
    uint32_t version() const { return version_; }

  private:
    const vk::raii::PhysicalDevice& device_;
    uint32_t version_;
    std::set<std::string> extensions_;
};

// The name of a matrix's element type, as profiles have it.
inline const char* short_name(vk::ComponentTypeKHR type) {
    switch (type) {
        case vk::ComponentTypeKHR::eFloat16:
            return "f16";
        case vk::ComponentTypeKHR::eFloat32:
            return "f32";
        case vk::ComponentTypeKHR::eFloat64:
            return "f64";
        case vk::ComponentTypeKHR::eBfloat16:
            return "bf16";
        case vk::ComponentTypeKHR::eSint8:
            return "s8";
        case vk::ComponentTypeKHR::eUint8:
            return "u8";
        case vk::ComponentTypeKHR::eSint32:
            return "s32";
        case vk::ComponentTypeKHR::eUint32:
            return "u32";
        default:
            return "other";
    }
}

}  // namespace vkattn::runtime
