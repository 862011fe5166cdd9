// A device as a profile: text from which the planner can be tested without the device. One word a fact, key=value; the
// format of tests/profiles.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "asker.hpp"

namespace vkattn::runtime {
namespace {

using runtime::Asker;
using runtime::short_name;

std::string identity(const Asker& a) {
    const VkPhysicalDeviceProperties& p = a.properties();
    const auto driver = a.properties<VkPhysicalDeviceDriverProperties>(a.version() >= VK_API_VERSION_1_2);
    return fmt::format(
        "device=\"{}\" api={}.{} vendor={:#x} driverID={} driverVersion={:#x} driver=\"{} {}\" type={}\n",
        p.deviceName, VK_API_VERSION_MAJOR(p.apiVersion), VK_API_VERSION_MINOR(p.apiVersion), p.vendorID,
        static_cast<uint32_t>(driver.driverID), p.driverVersion, driver.driverName, driver.driverInfo,
        static_cast<uint32_t>(p.deviceType));
}

std::string multiprocessors(const Asker& a) {
    if (a.has(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) {
        const auto p = a.properties<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV>(true);
        return fmt::format(" sms={}", p.shaderSMCount);
    }
    if (a.has(VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) {
        const auto p = a.properties<VkPhysicalDeviceShaderCorePropertiesAMD>(true);
        return fmt::format(" sms={} vgprs={}",
                           p.shaderEngineCount * p.shaderArraysPerEngineCount * p.computeUnitsPerShaderArray,
                           p.vgprsPerSimd);
    }
    if (a.has(VK_ARM_SHADER_CORE_BUILTINS_EXTENSION_NAME)) {
        const auto p = a.properties<VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM>(true);
        return fmt::format(" sms={}", p.shaderCoreCount);
    }
    return "";  // not known
}

std::string workgroups(const Asker& a) {
    const VkPhysicalDeviceLimits& l = a.properties().limits;
    const auto subgroup = a.properties<VkPhysicalDeviceSubgroupProperties>(true);
    const bool sizes = a.has(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, VK_API_VERSION_1_3);
    const auto control = a.properties<VkPhysicalDeviceSubgroupSizeControlProperties>(sizes);
    const auto may = a.features<VkPhysicalDeviceSubgroupSizeControlFeatures>(sizes);
    return fmt::format(
        "  sg={} [{}..{}] sizectl={} full={} reqStages={:#x} wgsubgroups={} sgops={:#x} shmem={} wginv={} "
        "wgsize={} wgcount={} "
        "pc={}{}\n",
        subgroup.subgroupSize, control.minSubgroupSize, control.maxSubgroupSize, may.subgroupSizeControl,
        may.computeFullSubgroups, control.requiredSubgroupSizeStages, control.maxComputeWorkgroupSubgroups,
        subgroup.supportedOperations, l.maxComputeSharedMemorySize, l.maxComputeWorkGroupInvocations,
        fmt::join(l.maxComputeWorkGroupSize, ","), fmt::join(l.maxComputeWorkGroupCount, ","),
        l.maxPushConstantsSize, multiprocessors(a));
}

std::string types(const Asker& a) {
    const VkPhysicalDeviceLimits& l = a.properties().limits;
    const VkPhysicalDeviceFeatures basic = a.features();
    const auto maintenance = a.properties<VkPhysicalDeviceMaintenance3Properties>(true);
    const auto arithmetic = a.features<VkPhysicalDeviceShaderFloat16Int8Features>(
        a.has(VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, VK_API_VERSION_1_2));
    const auto halves = a.features<VkPhysicalDevice16BitStorageFeatures>(true);
    const auto bytes = a.features<VkPhysicalDevice8BitStorageFeatures>(
        a.has(VK_KHR_8BIT_STORAGE_EXTENSION_NAME, VK_API_VERSION_1_2));
    const auto bfloat =
        a.features<VkPhysicalDeviceShaderBfloat16FeaturesKHR>(a.has(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME));
    const auto dot = a.features<VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE>(
        a.has(VK_VALVE_SHADER_MIXED_FLOAT_DOT_PRODUCT_EXTENSION_NAME));
    const auto address = a.features<VkPhysicalDeviceBufferDeviceAddressFeatures>(
        a.has(VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME, VK_API_VERSION_1_2));
    const auto model = a.features<VkPhysicalDeviceVulkanMemoryModelFeatures>(
        a.has(VK_KHR_VULKAN_MEMORY_MODEL_EXTENSION_NAME, VK_API_VERSION_1_2));
    return fmt::format(
        "  ssboRange={} uboRange={} maxAlloc={} ssboAlign={} f16={} i8={} s16={} s8={} i16={} i64={} bf16={} "
        "bf16cm={} dotf16={} dotbf16={} bda={} "
        "vmm={} vmmDev={}\n",
        l.maxStorageBufferRange, l.maxUniformBufferRange, maintenance.maxMemoryAllocationSize,
        l.minStorageBufferOffsetAlignment, arithmetic.shaderFloat16, arithmetic.shaderInt8,
        halves.storageBuffer16BitAccess, bytes.storageBuffer8BitAccess, basic.shaderInt16, basic.shaderInt64,
        bfloat.shaderBFloat16Type, bfloat.shaderBFloat16CooperativeMatrix,
        dot.shaderMixedFloatDotProductFloat16AccFloat32, dot.shaderMixedFloatDotProductBFloat16Acc,
        address.bufferDeviceAddress, model.vulkanMemoryModel, model.vulkanMemoryModelDeviceScope);
}

std::string matrices(const Asker& a) {
    const bool known = a.has(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    const auto may = a.features<VkPhysicalDeviceCooperativeMatrixFeaturesKHR>(known);
    const auto second = a.features<VkPhysicalDeviceCooperativeMatrix2FeaturesNV>(
        a.has(VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME));
    const bool any = second.cooperativeMatrixReductions || second.cooperativeMatrixConversions ||
                     second.cooperativeMatrixPerElementOperations ||
                     second.cooperativeMatrixFlexibleDimensions;
    std::string text =
        fmt::format("  coopmat={}(robust={}) coopmat2={} pipelineExec={}\n", may.cooperativeMatrix,
                    may.cooperativeMatrixRobustBufferAccess, any ? 1 : 0,
                    a.has(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME) ? 1 : 0);
    if (may.cooperativeMatrix)
        for (const auto& m : a.matrices())
            text += fmt::format("   KHR {}x{}x{} A={} B={} C={} R={} sat={} scope={}\n", m.MSize, m.NSize,
                                m.KSize, short_name(m.AType), short_name(m.BType), short_name(m.CType),
                                short_name(m.ResultType), m.saturatingAccumulation,
                                m.scope == VK_SCOPE_SUBGROUP_KHR ? "subgroup" : "other");
    if (any)
        text +=
            fmt::format("  cm2: wgscope={} flex={} reduc={} conv={} perElem={} tensorAddr={} blockLoads={}\n",
                        second.cooperativeMatrixWorkgroupScope, second.cooperativeMatrixFlexibleDimensions,
                        second.cooperativeMatrixReductions, second.cooperativeMatrixConversions,
                        second.cooperativeMatrixPerElementOperations,
                        second.cooperativeMatrixTensorAddressing, second.cooperativeMatrixBlockLoads);
    return text;
}

}  // namespace

std::string device_profile(uint32_t index) {
    const Instance instance(false, default_api_version);
    const std::vector<VkPhysicalDevice> devices = instance.devices();
    if (index >= devices.size())
        fail(VKATTN_INVALID_ARGUMENT, fmt::format("there is no device {}", index), "index");
    VkPhysicalDevice device = devices[index];
    if (instance.properties(device).apiVersion < VK_API_VERSION_1_1)
        fail(VKATTN_UNSUPPORTED, fmt::format("device {}: Vulkan 1.1 is needed to ask it", index));
    const Asker asker(instance, device);
    return identity(asker) + workgroups(asker) + types(asker) + matrices(asker);
}

}  // namespace vkattn::runtime
