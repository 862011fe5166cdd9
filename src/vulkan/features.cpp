#include "features.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace vkattn::core {
namespace {

using V10 = VkPhysicalDeviceFeatures2;
using V11 = VkPhysicalDeviceVulkan11Features;
using V12 = VkPhysicalDeviceVulkan12Features;
using V13 = VkPhysicalDeviceVulkan13Features;
using Address = VkPhysicalDeviceBufferDeviceAddressFeatures;
using Storage = VkPhysicalDevice16BitStorageFeatures;
using Float16 = VkPhysicalDeviceShaderFloat16Int8Features;
using MemoryModel = VkPhysicalDeviceVulkanMemoryModelFeatures;
using Subgroups = VkPhysicalDeviceSubgroupSizeControlFeatures;
using Maintenance4 = VkPhysicalDeviceMaintenance4Features;
using Matrix = VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
using Matrix2 = VkPhysicalDeviceCooperativeMatrix2FeaturesNV;
using Bfloat16 = VkPhysicalDeviceShaderBfloat16FeaturesKHR;
using Dot = VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE;

constexpr auto no_struct = VK_STRUCTURE_TYPE_MAX_ENUM;
template <class T>
constexpr VkStructureType type_of = no_struct;
template <>
constexpr auto type_of<V10> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
template <>
constexpr auto type_of<V11> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
template <>
constexpr auto type_of<V12> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
template <>
constexpr auto type_of<V13> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
template <>
constexpr auto type_of<Address> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES;
template <>
constexpr auto type_of<Storage> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES;
template <>
constexpr auto type_of<Float16> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES;
template <>
constexpr auto type_of<MemoryModel> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES;
template <>
constexpr auto type_of<Subgroups> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES;
template <>
constexpr auto type_of<Maintenance4> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES;
template <>
constexpr auto type_of<Matrix> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
template <>
constexpr auto type_of<Matrix2> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV;
template <>
constexpr auto type_of<Bfloat16> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR;
template <>
constexpr auto type_of<Dot> = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_MIXED_FLOAT_DOT_PRODUCT_FEATURES_VALVE;

// A struct of features as a device of Vulkan 1.2 knows it, with the extension that it needs beside that version.
struct FeatureStruct {
    VkStructureType type;
    size_t size;
    const char* extension = nullptr;
    const char* needs_extension = nullptr;  // another one, without which this one is of no use
};
constexpr FeatureStruct structs[] = {
    {type_of<Address>, sizeof(Address)},
    {type_of<Storage>, sizeof(Storage)},
    {type_of<Float16>, sizeof(Float16)},
    {type_of<MemoryModel>, sizeof(MemoryModel)},
    // These two are core of Vulkan 1.3. They go by the extensions' names, because the caller's instance may be of 1.2.
    {type_of<Subgroups>, sizeof(Subgroups), VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME},
    {type_of<Maintenance4>, sizeof(Maintenance4), VK_KHR_MAINTENANCE_4_EXTENSION_NAME},
    {type_of<Matrix>, sizeof(Matrix), VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME},
    {type_of<Matrix2>, sizeof(Matrix2), VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME,
     VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME},
    {type_of<Bfloat16>, sizeof(Bfloat16), VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME},
    {type_of<Dot>, sizeof(Dot), VK_VALVE_SHADER_MIXED_FLOAT_DOT_PRODUCT_EXTENSION_NAME},
};

// A feature in its own struct, and in that of the Vulkan version that took it in.
struct Feature {
    VkStructureType own;
    size_t offset_in_own;
    VkStructureType core = no_struct;
    size_t offset_in_core = 0;
};
#define OF_EXTENSION(Own, member) \
    { type_of<Own>, offsetof(Own, member) }
#define OF_CORE(Own, Core, member) \
    { type_of<Own>, offsetof(Own, member), type_of<Core>, offsetof(Core, member) }

constexpr Feature buffer_device_address = OF_CORE(Address, V12, bufferDeviceAddress);
constexpr Feature int64 = OF_EXTENSION(V10, features.shaderInt64);
constexpr Feature storage_16bit = OF_CORE(Storage, V11, storageBuffer16BitAccess);
constexpr Feature float16 = OF_CORE(Float16, V12, shaderFloat16);
constexpr Feature memory_model = OF_CORE(MemoryModel, V12, vulkanMemoryModel);
constexpr Feature memory_model_device_scope = OF_CORE(MemoryModel, V12, vulkanMemoryModelDeviceScope);
constexpr Feature subgroup_size_control = OF_CORE(Subgroups, V13, subgroupSizeControl);
constexpr Feature full_subgroups = OF_CORE(Subgroups, V13, computeFullSubgroups);
constexpr Feature maintenance4 = OF_CORE(Maintenance4, V13, maintenance4);
constexpr Feature matrix = OF_EXTENSION(Matrix, cooperativeMatrix);
constexpr Feature matrix_reductions = OF_EXTENSION(Matrix2, cooperativeMatrixReductions);
constexpr Feature matrix_conversions = OF_EXTENSION(Matrix2, cooperativeMatrixConversions);
constexpr Feature bfloat16_type = OF_EXTENSION(Bfloat16, shaderBFloat16Type);
constexpr Feature bfloat16_matrix = OF_EXTENSION(Bfloat16, shaderBFloat16CooperativeMatrix);
constexpr Feature dot_float16 = OF_EXTENSION(Dot, shaderMixedFloatDotProductFloat16AccFloat32);
constexpr Feature dot_bfloat16 = OF_EXTENSION(Dot, shaderMixedFloatDotProductBFloat16Acc);

constexpr Feature features[] = {
    int64,
    buffer_device_address,
    storage_16bit,
    float16,
    memory_model,
    memory_model_device_scope,
    subgroup_size_control,
    full_subgroups,
    maintenance4,
    matrix,
    matrix_reductions,
    matrix_conversions,
    bfloat16_type,
    bfloat16_matrix,
    dot_float16,
    dot_bfloat16,
};

const VkBaseInStructure* find(const void* chain, VkStructureType type) {
    for (auto* s = static_cast<const VkBaseInStructure*>(chain); s != nullptr; s = s->pNext)
        if (s->sType == type) return s;
    return nullptr;
}

VkBaseOutStructure* find(VkBaseOutStructure& chain, VkStructureType type) {
    for (VkBaseOutStructure* s = &chain; s != nullptr; s = s->pNext)
        if (s->sType == type) return s;
    return nullptr;
}

bool says(const void* chain, VkStructureType type, size_t offset) {
    const VkBaseInStructure* s = find(chain, type);
    if (s == nullptr) return false;
    VkBool32 value = VK_FALSE;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(s) + offset, sizeof value);
    return value != VK_FALSE;
}

bool says(const void* chain, const Feature& f) {
    return says(chain, f.own, f.offset_in_own) ||
           (f.core != no_struct && says(chain, f.core, f.offset_in_core));
}

// Sets a feature in its own struct of a chain or in that of a version; false if the chain has neither.
bool set(VkBaseOutStructure& chain, const Feature& f) {
    VkBaseOutStructure* s = find(chain, f.own);
    size_t offset = f.offset_in_own;
    if (s == nullptr && f.core != no_struct) {
        s = find(chain, f.core);
        offset = f.offset_in_core;
    }
    if (s == nullptr) return false;
    constexpr VkBool32 yes = VK_TRUE;
    std::memcpy(reinterpret_cast<std::byte*>(s) + offset, &yes, sizeof yes);
    return true;
}

// Appends a struct without any feature set, and returns the memory that holds it.
std::unique_ptr<uint64_t[]> append(VkBaseOutStructure& chain, VkStructureType type) {
    const auto info = std::ranges::find(structs, type, &FeatureStruct::type);
    auto memory = std::make_unique<uint64_t[]>((info->size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    auto* const made = reinterpret_cast<VkBaseOutStructure*>(memory.get());
    made->sType = type;
    VkBaseOutStructure* last = &chain;
    while (last->pNext != nullptr) last = last->pNext;
    last->pNext = made;
    return memory;
}

std::vector<VkExtensionProperties> extensions_of(const InstanceFunctions& vk, VkPhysicalDevice device) {
    const auto enumerate = [&](uint32_t* count, VkExtensionProperties* all) {
        require_success(vk.vkEnumerateDeviceExtensionProperties(device, nullptr, count, all),
                        "vkEnumerateDeviceExtensionProperties");
    };
    uint32_t count = 0;
    enumerate(&count, nullptr);
    std::vector<VkExtensionProperties> all(count);
    enumerate(&count, all.data());
    all.resize(count);
    return all;
}

// Every struct of a chain begins with the members of this one.
VkBaseOutStructure& base_of(void* first) {
    return *static_cast<VkBaseOutStructure*>(first);
}

bool contains(const std::vector<VkExtensionProperties>& all, std::string_view name) {
    return std::ranges::any_of(all, [&](const auto& e) { return name == e.extensionName; });
}

}  // namespace

bool has_extension(const InstanceFunctions& vk, VkPhysicalDevice device, const char* name) {
    return contains(extensions_of(vk, device), name);
}

Features::Features(const InstanceFunctions& vk, VkPhysicalDevice device) {
    find_wanted(vk, device);
    chain_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    merge_into(base_of(&chain_));
}

// Asks the device for those structs that it knows.
void Features::find_wanted(const InstanceFunctions& vk, VkPhysicalDevice device) {
    const std::vector<VkExtensionProperties> supported = extensions_of(vk, device);
    const auto has = [&](const char* name) { return name == nullptr || contains(supported, name); };
    VkPhysicalDeviceFeatures2 asked{};
    asked.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    std::vector<std::unique_ptr<uint64_t[]>> memory;
    for (const FeatureStruct& s : structs) {
        if (!has(s.extension) || !has(s.needs_extension)) continue;
        if (s.extension != nullptr) extensions_.push_back(s.extension);
        memory.push_back(append(base_of(&asked), s.type));
    }
    vk.vkGetPhysicalDeviceFeatures2(device, &asked);
    for (size_t i = 0; i < std::size(features); i++)
        if (says(&asked, features[i])) wanted_.push_back(i);
    // With the memory model atomics are of device scope, the usual one, only if that is enabled too.
    if (!says(&asked, memory_model_device_scope))
        std::erase_if(wanted_, [](size_t i) { return features[i].own == type_of<MemoryModel>; });
}

void Features::merge_into(VkBaseOutStructure& chain) {
    for (const size_t i : wanted_) {
        if (set(chain, features[i])) continue;
        // An application that has no VkPhysicalDeviceFeatures2 enables those features elsewhere.
        if (features[i].own == type_of<V10>) continue;
        appended_.push_back(append(chain, features[i].own));
        set(chain, features[i]);
    }
}

Enabled enabled_by(const VkPhysicalDeviceFeatures2* chain) {
    Enabled e{};
    if (chain == nullptr) {
        e.buffer_device_address = true;
        return e;
    }
    e.buffer_device_address = says(chain, buffer_device_address);
    e.int64 = says(chain, int64);
    e.storage_16bit = says(chain, storage_16bit);
    e.float16 = says(chain, float16);
    e.memory_model = says(chain, memory_model) && says(chain, memory_model_device_scope);
    e.subgroup_size_control = says(chain, subgroup_size_control);
    e.full_subgroups = says(chain, full_subgroups);
    e.maintenance4 = says(chain, maintenance4);
    e.matrix = says(chain, matrix);
    e.matrix_conversions = says(chain, matrix_reductions) && says(chain, matrix_conversions);
    e.bfloat16_matrix = says(chain, bfloat16_type) && says(chain, bfloat16_matrix);
    e.dot_float16 = says(chain, dot_float16);
    e.dot_bfloat16 = says(chain, bfloat16_type) && says(chain, dot_bfloat16);
    return e;
}

}  // namespace vkattn::core
