#include "context.hpp"

#include <fmt/format.h>

#include "vulkan/spirv.hpp"

namespace vkattn::core {

Pipelines::Pipelines(const DeviceFunctions& vk, const DeviceCaps& caps, VkDevice device,
                     VkPipelineCache cache)
    : vk_(vk), caps_(caps), device_(device), cache_(cache) {}

Pipelines::~Pipelines() {
    for (const auto& [key, pipeline] : built_) vk_.vkDestroyPipeline(device_, pipeline, nullptr);
    vk_.vkDestroyPipelineLayout(device_, layout_, nullptr);
}

VkResult Pipelines::create_layout() {
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(shared::ForwardPush)};
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.pushConstantRangeCount = 1;
    info.pPushConstantRanges = &range;
    return vk_.vkCreatePipelineLayout(device_, &info, nullptr, &layout_);
}

size_t Pipelines::size() const {
    const std::lock_guard lock(mutex_);
    return built_.size();
}

// The lock is held while building: two threads that want the same pipeline build it once.
Result<VkPipeline> Pipelines::get(const Dispatch& dispatch) {
    const std::lock_guard lock(mutex_);
    const Key key{dispatch.variant, constants_.of(dispatch)};
    if (const auto found = built_.find(key); found != built_.end()) return found->second;
    Result<VkPipeline> pipeline = build(key);
    if (pipeline) built_.emplace(key, *pipeline);
    return pipeline;
}

Result<VkPipeline> Pipelines::build(const Key& key) {
    const Variant variant = key.first;
    const auto& specialization = key.second;
    const auto failed = [&](const char* what, VkResult result) {
        return Failure{
            VKATTN_DEVICE_ERROR, "",
            fmt::format("{} of {} failed with VkResult {}", what, name_of(variant), static_cast<int>(result)),
            static_cast<int32_t>(result)};
    };
    const Spirv code = spirv_of(variant, specialization[SPEC_ROLLED] != 0);
    VkShaderModuleCreateInfo module_info{};
    module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    module_info.codeSize = code.size() * sizeof(uint32_t);
    module_info.pCode = code.data();
    VkShaderModule module = VK_NULL_HANDLE;
    if (VkResult r = vk_.vkCreateShaderModule(device_, &module_info, nullptr, &module); r != VK_SUCCESS)
        return failed("vkCreateShaderModule", r);

    const auto entries = constants_.entries_of(variant, specialization[SPEC_ROLLED] != 0);
    const VkSpecializationInfo constants{static_cast<uint32_t>(entries.size()), entries.data(),
                                         sizeof specialization, specialization.data()};
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &constants;
    info.layout = layout_;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    subgroup.requiredSubgroupSize = specialization[SPEC_SUBGROUP_SIZE];
    if ((needs_of(variant) & NEED_MATRIX) != 0 && caps_.subgroup_size_control) info.stage.pNext = &subgroup;
    VkPipeline pipeline = VK_NULL_HANDLE;
    const VkResult r = vk_.vkCreateComputePipelines(device_, cache_, 1, &info, nullptr, &pipeline);
    vk_.vkDestroyShaderModule(device_, module, nullptr);
    if (r != VK_SUCCESS) return failed("vkCreateComputePipelines", r);
    return pipeline;
}

}  // namespace vkattn::core
