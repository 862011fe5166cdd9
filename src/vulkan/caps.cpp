#include "caps.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/ranges.h>

#include "features.hpp"
#include "plan/quirks.hpp"
#include "spirv.hpp"

namespace vkattn::core {
namespace {

static_assert(driver_nvk == VK_DRIVER_ID_MESA_NVK && driver_radv == VK_DRIVER_ID_MESA_RADV &&
              driver_swiftshader == VK_DRIVER_ID_GOOGLE_SWIFTSHADER &&
              driver_honeykrisp == VK_DRIVER_ID_MESA_HONEYKRISP && driver_turnip == VK_DRIVER_ID_MESA_TURNIP);

// The device has VK_AMD_shader_core_properties, which tells, enabled or not.
VkPhysicalDeviceShaderCorePropertiesAMD amd_shader_core(const InstanceFunctions& vk,
                                                        VkPhysicalDevice device) {
    VkPhysicalDeviceShaderCorePropertiesAMD amd{};
    amd.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &amd;
    vk.vkGetPhysicalDeviceProperties2(device, &properties);
    return amd;
}

uint64_t largest_local_heap(const InstanceFunctions& vk, VkPhysicalDevice device) {
    VkPhysicalDeviceMemoryProperties memory{};
    vk.vkGetPhysicalDeviceMemoryProperties(device, &memory);
    uint64_t most = 0;
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++)
        if ((memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0)
            most = std::max<uint64_t>(most, memory.memoryHeaps[i].size);
    return most;
}

// Vulkan itself does not tell; the vendors' extensions do, enabled or not.
uint32_t count_multiprocessors(const InstanceFunctions& vk, VkPhysicalDevice device) {
    const auto has = [&](const char* name) { return has_extension(vk, device, name); };
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
        const VkPhysicalDeviceShaderCorePropertiesAMD amd = amd_shader_core(vk, device);
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

// Returns 0 where the driver does not tell.
uint32_t count_simd_registers(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t driver_id) {
    if (!has_extension(vk, device, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) return 0;
    return simd_registers_of(driver_id, amd_shader_core(vk, device).vgprsPerSimd);
}

bool is_left_out(const Module& module) {
    return compressed_spirv(module).bytes == 0;
}

// Bits of the kernels of which the build has left out modules for GPUs.
uint32_t find_missing_kernels() {
    uint32_t missing = 0;
    for (const Module& module : built_modules())
        if (!module.has(macros::ROLLED) && is_left_out(module))
            missing |= 1u << static_cast<uint32_t>(module.kernel);
    return missing;
}

// True if the build has left out forms for CPUs of the modules that it has and that need a matrix unit, or do not.
bool find_missing_cpu_forms(bool needs_matrix) {
    return std::ranges::any_of(built_modules(), [&](const Module& module) {
        return module.has(macros::ROLLED) && info_of(module.kernel).on_matrices == needs_matrix &&
               !is_left_out(in_gpu_form(module)) && is_left_out(module);
    });
}

// Shapes at subgroup scope with 16-bit operands and float32 accumulators, the largest first.
std::vector<MatrixShape> find_matrices(const InstanceFunctions& vk, VkPhysicalDevice device, bool bfloat16) {
    const auto query = vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR;
    if (query == nullptr) return {};
    constexpr const char* name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
    uint32_t count = 0;
    require_success(query(device, &count, nullptr), name);
    VkCooperativeMatrixPropertiesKHR empty{};
    empty.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    std::vector<VkCooperativeMatrixPropertiesKHR> all(count, empty);
    require_success(query(device, &count, all.data()), name);
    all.resize(count);
    std::erase_if(all, [](const auto& p) { return p.scope != VK_SCOPE_SUBGROUP_KHR; });
    std::vector<MatrixShape> shapes;
    for (const auto& p : all) {
        const bool f16 = p.AType == VK_COMPONENT_TYPE_FLOAT16_KHR;
        if (!f16 && (p.AType != VK_COMPONENT_TYPE_BFLOAT16_KHR || !bfloat16)) continue;
        if (p.BType != p.AType || p.CType != VK_COMPONENT_TYPE_FLOAT32_KHR || p.ResultType != p.CType)
            continue;
        const bool rounded =
            f16 && std::any_of(all.begin(), all.end(), [&](const auto& other) {
                return other.ResultType == p.AType && other.MSize == p.MSize && other.NSize == p.NSize;
            });
        shapes.push_back(
            {p.MSize, p.NSize, p.KSize, f16 ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_BFLOAT16, rounded});
    }
    std::stable_sort(shapes.begin(), shapes.end(), [](const MatrixShape& a, const MatrixShape& b) {
        return a.m * a.n * a.k > b.m * b.n * b.k;
    });
    return shapes;
}

std::string identity_of(const VkPhysicalDeviceProperties& device, VkDriverId driver) {
    return fmt::format("device {:04x}:{:04x} with driver {} {:#x}, build {:02x}", device.vendorID,
                       device.deviceID, static_cast<uint32_t>(driver), device.driverVersion,
                       fmt::join(device.pipelineCacheUUID, ""));
}

}  // namespace

DeviceCaps query_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version,
                      const VkPhysicalDeviceFeatures2* features) {
    VkPhysicalDeviceMaintenance3Properties maintenance{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, nullptr, 0, 0};
    VkPhysicalDeviceSubgroupSizeControlProperties sizes{};
    sizes.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES;
    sizes.pNext = &maintenance;  // before Vulkan 1.3 a device may pass over it: it stays 0
    VkPhysicalDeviceSubgroupProperties subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    subgroup.pNext = &sizes;
    VkPhysicalDeviceFloatControlsProperties floats{};
    floats.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES;
    floats.pNext = &subgroup;
    VkPhysicalDeviceDriverProperties driver{};
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    driver.pNext = &floats;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &driver;  // a device before Vulkan 1.2, which is refused, may pass over it
    vk.vkGetPhysicalDeviceProperties2(device, &properties);
    const VkPhysicalDeviceProperties& p = properties.properties;
    const VkPhysicalDeviceLimits& l = p.limits;

    DeviceCaps caps;
    caps.name = p.deviceName;
    caps.identity = identity_of(p, driver.driverID);
    caps.vendor_id = p.vendorID;
    caps.type = static_cast<DeviceType>(p.deviceType);
    caps.driver_id = driver.driverID;
    caps.mesa_version = mesa_version_in(driver.driverInfo);
    caps.api_version = std::min(p.apiVersion, api_version);
    caps.subgroup_size = std::max(1u, subgroup.subgroupSize);
    caps.max_shared_bytes = l.maxComputeSharedMemorySize;
    caps.max_invocations = l.maxComputeWorkGroupInvocations;
    std::copy_n(l.maxComputeWorkGroupSize, 3, caps.max_workgroup_size.begin());
    std::copy_n(l.maxComputeWorkGroupCount, 3, caps.max_workgroup_count.begin());
    caps.max_push_constant_bytes = l.maxPushConstantsSize;
    caps.max_buffer_bytes = maintenance.maxMemoryAllocationSize;
    caps.device_local_bytes = largest_local_heap(vk, device);
    caps.multiprocessors = count_multiprocessors(vk, device);
    caps.simd_registers = count_simd_registers(vk, device, caps.driver_id);
    const Enabled enabled = enabled_by(features);
    caps.buffer_device_address = enabled.buffer_device_address;
    caps.storage_16bit = enabled.storage_16bit;
    caps.int64 = enabled.int64;
    caps.dot_float16 = enabled.dot_float16 && enabled.float16 && enabled.storage_16bit;
    caps.dot_bfloat16 = enabled.dot_bfloat16 && enabled.float16 && enabled.storage_16bit;
    caps.min_subgroup_size = sizes.minSubgroupSize;
    caps.max_subgroup_size = sizes.maxSubgroupSize;
    caps.subgroup_size_control = enabled.subgroup_size_control &&
                                 (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
    caps.full_subgroups = enabled.full_subgroups;
    constexpr VkSubgroupFeatureFlags needed = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |
                                              VK_SUBGROUP_FEATURE_BALLOT_BIT |
                                              VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    const bool subgroups = (subgroup.supportedOperations & needed) == needed &&
                           (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
    if (subgroups && enabled.matrix && enabled.float16 && enabled.memory_model && enabled.storage_16bit)
        caps.matrices = find_matrices(vk, device, enabled.bfloat16_matrix);
    // Its modules are SPIR-V 1.6, with sizes of workgroups by LocalSizeId.
    caps.matrix_conversions =
        enabled.matrix_conversions && enabled.maintenance4 && caps.api_version >= VK_API_VERSION_1_3;
    caps.preserves_nonfinite = floats.shaderSignedZeroInfNanPreserveFloat32 != 0 &&
                               !quirk_preserving_takes_registers(caps) && !quirk_preserving_takes_time(caps);
    caps.missing_kernels = find_missing_kernels();
    caps.missing_cpu_forms = find_missing_cpu_forms(false);
    caps.missing_matrix_cpu_forms = find_missing_cpu_forms(true);
    return caps;
}

DeviceCaps query_supported_caps(const InstanceFunctions& vk, VkPhysicalDevice device, uint32_t api_version) {
    const Features supported(vk, device);
    return query_caps(vk, device, api_version, &supported.chain());
}

}  // namespace vkattn::core
