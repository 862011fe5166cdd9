#include "own_kernel.hpp"

#include <fmt/format.h>

namespace vkattn::tools {

OwnKernel::OwnKernel(const Runtime& runtime, const core::Frame& frame, const std::string& name,
                     uint32_t push_bytes, const Specialization& given)
    : h_(runtime.handles()), name_(name), push_bytes_(push_bytes) {
    bind_ = load<PFN_vkCmdBindPipeline>("vkCmdBindPipeline");
    push_ = load<PFN_vkCmdPushConstants>("vkCmdPushConstants");
    dispatch_ = load<PFN_vkCmdDispatch>("vkCmdDispatch");
    const core::Spirv words = core::decompress(frame, name);
    VkShaderModuleCreateInfo code{};
    code.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    code.codeSize = words.size() * sizeof(uint32_t);
    code.pCode = words.data();
    VkShaderModule module = VK_NULL_HANDLE;
    check(load<PFN_vkCreateShaderModule>("vkCreateShaderModule")(h_.device, &code, nullptr, &module),
          "vkCreateShaderModule");
    try {
        build(module, given);
    } catch (const RuntimeError&) {
        load<PFN_vkDestroyShaderModule>("vkDestroyShaderModule")(h_.device, module, nullptr);
        destroy();
        throw;
    }
    load<PFN_vkDestroyShaderModule>("vkDestroyShaderModule")(h_.device, module, nullptr);
}

OwnKernel::~OwnKernel() {
    destroy();
}

void OwnKernel::record(VkCommandBuffer commands, const void* push, uint32_t groups) const {
    bind_(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
    push_(commands, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes_, push);
    dispatch_(commands, groups, 1, 1);
}

void OwnKernel::build(VkShaderModule module, const Specialization& given) {
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes_};
    VkPipelineLayoutCreateInfo layout{};
    layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &range;
    check(load<PFN_vkCreatePipelineLayout>("vkCreatePipelineLayout")(h_.device, &layout, nullptr, &layout_),
          "vkCreatePipelineLayout");

    std::vector<VkSpecializationMapEntry> entries;
    for (uint32_t id = 0; id < given.constants.size(); id++) entries.push_back({id, 4 * id, 4});
    const VkSpecializationInfo constants{static_cast<uint32_t>(entries.size()), entries.data(),
                                         given.constants.size() * sizeof(uint32_t), given.constants.data()};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    subgroup.requiredSubgroupSize = given.subgroup_size;
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.pNext = given.subgroup_size != 0 ? &subgroup : nullptr;
    if (given.full_subgroups) info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &constants;
    info.layout = layout_;
    check(load<PFN_vkCreateComputePipelines>("vkCreateComputePipelines")(h_.device, VK_NULL_HANDLE, 1, &info,
                                                                         nullptr, &pipeline_),
          "vkCreateComputePipelines");
}

void OwnKernel::destroy() {
    load<PFN_vkDestroyPipeline>("vkDestroyPipeline")(h_.device, pipeline_, nullptr);
    load<PFN_vkDestroyPipelineLayout>("vkDestroyPipelineLayout")(h_.device, layout_, nullptr);
}

void OwnKernel::check(VkResult result, const char* call) const {
    if (result != VK_SUCCESS)
        throw RuntimeError(
            fmt::format("building {} failed: {} returned {}", name_, call, static_cast<int>(result)));
}

}  // namespace vkattn::tools
