// What a device has beside float32 arithmetic, for people: matrix shapes, bfloat16, dot products, and why not. The JSON
// is put together as text, in which nothing has to be escaped: the tree of a library may need memory to be destroyed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "asker.hpp"

namespace vkattn::runtime {
namespace {

// A reason is "" where the thing is there.
struct Units {
    std::vector<std::string> matrices;  // JSON
    std::string no_matrices;            // why the matrix kernels cannot use these, or there are none
    std::string no_bfloat16;            // arithmetic; tensors of bfloat16 need none
    std::string no_bfloat16_matrices;   // operands of the matrix unit
    std::string no_dot_products;        // of packed 8-bit integers, accelerated; vkattn uses none yet
};

std::string no_extension(const char* name) {
    return fmt::format("the device has no {}", name);
}

std::string off(const char* feature) {
    return fmt::format("the device does not offer {}", feature);
}

// Why the kernels for matrix units cannot use a device that has some; src/vulkan/caps.cpp decides it.
std::string missing_beside_matrices(const Asker& a) {
    constexpr VkSubgroupFeatureFlags operations =
        VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT |
        VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    const auto subgroup = a.properties<VkPhysicalDeviceSubgroupProperties>(true);
    const auto halves = a.features<VkPhysicalDevice16BitStorageFeatures>(true);
    const bool known = a.version() >= VK_API_VERSION_1_2;
    const auto arithmetic = a.features<VkPhysicalDeviceShaderFloat16Int8Features>(known);
    const auto model = a.features<VkPhysicalDeviceVulkanMemoryModelFeatures>(known);
    if (!arithmetic.shaderFloat16) return off("shaderFloat16");
    if (!halves.storageBuffer16BitAccess) return off("storageBuffer16BitAccess");
    if (!model.vulkanMemoryModel || !model.vulkanMemoryModelDeviceScope)
        return off("vulkanMemoryModel with device scope");
    if ((subgroup.supportedOperations & operations) != operations)
        return "its subgroups lack one of basic, vote, ballot and shuffle";
    if ((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) == 0)
        return "its compute shaders have no subgroup operations";
    return "";
}

// The types that the matrix kernels take: 16-bit operands, sums in float32.
bool has_types_of_kernels(const VkCooperativeMatrixPropertiesKHR& m, bool bfloat16) {
    const bool operands = m.AType == m.BType && (m.AType == VK_COMPONENT_TYPE_FLOAT16_KHR ||
                                                 (m.AType == VK_COMPONENT_TYPE_BFLOAT16_KHR && bfloat16));
    return operands && m.CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           m.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && m.scope == VK_SCOPE_SUBGROUP_KHR;
}

void ask_matrices(const Asker& a, Units& units) {
    if (!a.has(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME)) {
        units.no_matrices = no_extension(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
        return;
    }
    const auto may = a.features<VkPhysicalDeviceCooperativeMatrixFeaturesKHR>(true);
    if (!may.cooperativeMatrix) {
        units.no_matrices = off("cooperativeMatrix");
        return;
    }
    units.no_matrices = missing_beside_matrices(a);
    bool any = false;
    for (const auto& m : a.matrices()) {
        const bool fits = has_types_of_kernels(m, units.no_bfloat16_matrices.empty());
        any |= fits;
        units.matrices.push_back(
            fmt::format(R"({{"m":{},"n":{},"k":{},"a":"{}","b":"{}","c":"{}","result":"{}","usable":{}}})",
                        m.MSize, m.NSize, m.KSize, short_name(m.AType), short_name(m.BType),
                        short_name(m.CType), short_name(m.ResultType), fits && units.no_matrices.empty()));
    }
    if (!any && units.no_matrices.empty())
        units.no_matrices = "no shape has operands of 16 bits and sums in float32";
}

void ask_bfloat16(const Asker& a, Units& units) {
    if (!a.has(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME)) {
        units.no_bfloat16 = units.no_bfloat16_matrices = no_extension(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME);
        return;
    }
    const auto may = a.features<VkPhysicalDeviceShaderBfloat16FeaturesKHR>(true);
    if (!may.shaderBFloat16Type) units.no_bfloat16 = off("shaderBFloat16Type");
    units.no_bfloat16_matrices = units.no_bfloat16;
    if (units.no_bfloat16_matrices.empty() && !may.shaderBFloat16CooperativeMatrix)
        units.no_bfloat16_matrices = off("shaderBFloat16CooperativeMatrix");
}

void ask_dot_products(const Asker& a, Units& units) {
    const char* const extension = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
    if (!a.has(extension, VK_API_VERSION_1_3)) {
        units.no_dot_products = no_extension(extension);
        return;
    }
    const auto may = a.features<VkPhysicalDeviceShaderIntegerDotProductFeatures>(true);
    const auto fast = a.properties<VkPhysicalDeviceShaderIntegerDotProductProperties>(true);
    if (!may.shaderIntegerDotProduct)
        units.no_dot_products = off("shaderIntegerDotProduct");
    else if (!fast.integerDotProduct4x8BitPackedSignedAccelerated)
        units.no_dot_products = "those of packed 8-bit integers are not accelerated";
}

Units units_of(const Instance& instance, VkPhysicalDevice device) {
    Units units;
    if (instance.properties(device).apiVersion < VK_API_VERSION_1_1) {
        units.no_matrices = units.no_bfloat16 = units.no_bfloat16_matrices = units.no_dot_products =
            "Vulkan 1.1 is needed to ask";
        return units;
    }
    const Asker asker(instance, device);
    ask_bfloat16(asker, units);
    ask_matrices(asker, units);
    ask_dot_products(asker, units);
    return units;
}

}  // namespace

std::string device_units(uint32_t index) {
    const Instance instance(false, default_api_version);
    const std::vector<VkPhysicalDevice> devices = instance.devices();
    if (index >= devices.size())
        fail(VKATTN_INVALID_ARGUMENT, fmt::format("there is no device {}", index), "index");
    const Units units = units_of(instance, devices[index]);
    const auto available = [](const std::string& why_not) {
        return fmt::format(R"({{"available":{},"why_not":"{}"}})", why_not.empty(), why_not);
    };
    return fmt::format(R"({{"matrices":[{}],"matrix_kernels":{},"bfloat16":{},"bfloat16_matrices":{},)"
                       R"("integer_dot_products":{}}})",
                       fmt::join(units.matrices, ","), available(units.no_matrices),
                       available(units.no_bfloat16), available(units.no_bfloat16_matrices),
                       available(units.no_dot_products));
}

}  // namespace vkattn::runtime
