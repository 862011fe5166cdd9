// A kernel of the tool's own (shaders/tool_modules.def), over plain Vulkan calls: push constants are its only input.
#pragma once

#include <string>
#include <vector>

#include "common.hpp"
#include "tool_modules.inc"
#include "vulkan/spirv.hpp"

namespace vkattn::tools {

// How a pipeline is specialized: constants 0, 1 ..., and the size that its subgroups are held to; 0: whatever it is.
struct Specialization {
    std::vector<uint32_t> constants;
    uint32_t subgroup_size = 0;
    bool full_subgroups = false;  // required: matrices need them
};

class OwnKernel {
  public:
    // `name` is the module's. Throws RuntimeError if the driver cannot build it.
    OwnKernel(const Runtime& runtime, const core::Frame& frame, const std::string& name, uint32_t push_bytes,
              const Specialization& given = {});
    ~OwnKernel();
    OwnKernel(const OwnKernel&) = delete;
    OwnKernel& operator=(const OwnKernel&) = delete;

    // `push` has as many bytes as the constructor was told.
    void record(VkCommandBuffer commands, const void* push, uint32_t groups) const;

  private:
    void build(VkShaderModule module, const Specialization& given);
    void destroy();
    void check(VkResult result, const char* call) const;
    template <class F>
    F load(const char* function) const {
        return reinterpret_cast<F>(h_.get_instance_proc_addr(h_.instance, function));
    }

    RuntimeHandles h_;
    std::string name_;
    uint32_t push_bytes_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipeline pipeline_ = VK_NULL_HANDLE;
    PFN_vkCmdBindPipeline bind_ = nullptr;
    PFN_vkCmdPushConstants push_ = nullptr;
    PFN_vkCmdDispatch dispatch_ = nullptr;
};

}  // namespace vkattn::tools
