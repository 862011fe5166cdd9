#include "own_work.hpp"

#include "test_shaders.inc"
#include "vulkan/spirv.hpp"

namespace vkattn::test {

namespace {

core::Frame code_of(std::string_view name) {
    if (name == "product") return code_product_f32;
    REQUIRE(name == "convert");
    return code_convert_f32;
}

}  // namespace

OwnShader::OwnShader(Device& device, std::string_view name, uint32_t push_size) : device_(device) {
    const Vk& vk = device.vk();
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_size};
    VkPipelineLayoutCreateInfo layout{};
    layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &range;
    REQUIRE(vk.vkCreatePipelineLayout(device.handle(), &layout, nullptr, &layout_) == VK_SUCCESS);

    const core::Spirv words = core::decompress(code_of(name), name);
    VkShaderModuleCreateInfo module{};
    module.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    module.codeSize = words.size() * sizeof(uint32_t);
    module.pCode = words.data();
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.pName = "main";
    info.layout = layout_;
    REQUIRE(vk.vkCreateShaderModule(device.handle(), &module, nullptr, &info.stage.module) == VK_SUCCESS);
    CHECK(vk.vkCreateComputePipelines(device.handle(), VK_NULL_HANDLE, 1, &info, nullptr, &pipeline_) ==
          VK_SUCCESS);
    vk.vkDestroyShaderModule(device.handle(), info.stage.module, nullptr);
}

OwnShader::~OwnShader() {
    device_.vk().vkDestroyPipeline(device_.handle(), pipeline_, nullptr);
    device_.vk().vkDestroyPipelineLayout(device_.handle(), layout_, nullptr);
}

void OwnShader::record(VkCommandBuffer commands, const void* push, uint32_t size, uint32_t groups) const {
    const Vk& vk = device_.vk();
    vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
    vk.vkCmdPushConstants(commands, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, size, push);
    vk.vkCmdDispatch(commands, groups, 1, 1);
}

void barrier_between(Device& device, VkCommandBuffer commands, const Use& from, const Use& to) {
    const VkMemoryBarrier all{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, from.access, to.access};
    device.vk().vkCmdPipelineBarrier(commands, from.stages, to.stages, 0, 1, &all, 0, nullptr, 0, nullptr);
}

}  // namespace vkattn::test
