// Builds single pipelines on the current device, and tells what its driver says of them
// (VK_KHR_pipeline_executable_properties).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "plan/plan.hpp"
#include "vkattn/runtime.hpp"
#include "vulkan/context.hpp"
#include "vulkan/pipeline_constants.hpp"

namespace vkattn::test {

struct Built {
    VkResult result = VK_SUCCESS;
    double ms = 0;                               // wall time of vkCreateComputePipelines
    std::map<std::string, uint64_t> statistics;  // by the driver's own names; of a fraction the whole part
    std::map<std::string, std::string> code;     // texts by the driver's own names
};

class Compiler {
  public:
    // Of the device that the runtime picks. Throws RuntimeError where it reports nothing on its pipelines.
    Compiler();
    ~Compiler();
    Compiler(const Compiler&) = delete;

    const core::DeviceCaps& caps() const { return runtime_.context()->caps; }
    const DeviceInfo& info() const { return runtime_.device(); }
    Built build(const core::PipelineKey& key) const;

  private:
    std::map<std::string, uint64_t> statistics_of(VkPipeline pipeline) const;
    std::map<std::string, std::string> code_of(VkPipeline pipeline) const;

    Runtime runtime_;
    RuntimeHandles handles_ = runtime_.handles();
    VkDevice device_ = VK_NULL_HANDLE;
    core::DeviceFunctions vk_;
    PFN_vkDestroyDevice destroy_device_ = nullptr;
    PFN_vkGetPipelineExecutableStatisticsKHR get_statistics_ = nullptr;
    PFN_vkGetPipelineExecutableInternalRepresentationsKHR get_code_ = nullptr;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
};

}  // namespace vkattn::test
