#include "ceilings.hpp"

#include <algorithm>
#include <cstddef>

#include "ceilings.inc"
#include "shared/ceilings.h"

namespace vkattn::tools {
namespace {

// A compute pipeline with CeilingPush as its only input, over plain Vulkan calls.
class Kernel {
  public:
    Kernel(Runtime& runtime, const uint32_t* words, size_t bytes) : h_(runtime.handles()) {
        VkShaderModuleCreateInfo code{};
        code.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
        code.codeSize = bytes;
        code.pCode = words;
        VkShaderModule module = VK_NULL_HANDLE;
        check(load<PFN_vkCreateShaderModule>("vkCreateShaderModule")(h_.device, &code, nullptr, &module));
        const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(shared::CeilingPush)};
        VkPipelineLayoutCreateInfo layout{};
        layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
        layout.pushConstantRangeCount = 1;
        layout.pPushConstantRanges = &range;
        check(load<PFN_vkCreatePipelineLayout>("vkCreatePipelineLayout")(h_.device, &layout, nullptr,
                                                                         &layout_));
        VkComputePipelineCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
        info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
        info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
        info.stage.module = module;
        info.stage.pName = "main";
        info.layout = layout_;
        check(load<PFN_vkCreateComputePipelines>("vkCreateComputePipelines")(h_.device, VK_NULL_HANDLE, 1,
                                                                             &info, nullptr, &pipeline_));
        load<PFN_vkDestroyShaderModule>("vkDestroyShaderModule")(h_.device, module, nullptr);
        bind_ = load<PFN_vkCmdBindPipeline>("vkCmdBindPipeline");
        push_ = load<PFN_vkCmdPushConstants>("vkCmdPushConstants");
        dispatch_ = load<PFN_vkCmdDispatch>("vkCmdDispatch");
    }
    ~Kernel() {
        load<PFN_vkDestroyPipeline>("vkDestroyPipeline")(h_.device, pipeline_, nullptr);
        load<PFN_vkDestroyPipelineLayout>("vkDestroyPipelineLayout")(h_.device, layout_, nullptr);
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    void record(VkCommandBuffer c, const shared::CeilingPush& push, uint32_t groups) const {
        bind_(c, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
        push_(c, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
        dispatch_(c, groups, 1, 1);
    }

  private:
    template <class F>
    F load(const char* name) const {
        return reinterpret_cast<F>(h_.get_instance_proc_addr(h_.instance, name));
    }
    static void check(VkResult r) {
        if (r != VK_SUCCESS) throw RuntimeError("building a kernel that measures a ceiling failed");
    }

    RuntimeHandles h_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipeline pipeline_ = VK_NULL_HANDLE;
    PFN_vkCmdBindPipeline bind_ = nullptr;
    PFN_vkCmdPushConstants push_ = nullptr;
    PFN_vkCmdDispatch dispatch_ = nullptr;
};

constexpr double long_enough_ms = 20;
constexpr int repeats = 7;
constexpr double warm_ms = 200;  // an idle device needs this long to raise its clock
constexpr int max_warm_runs = 50;

// The best rate of several runs, once a run is long enough: a ceiling is what the device can reach.
template <class RunOnce>
double best_rate(uint32_t count, uint32_t max_count, double work_per_count, RunOnce run_once) {
    double ms = run_once(count);
    while (ms < long_enough_ms && count < max_count) {
        count *= 2;
        ms = run_once(count);
    }
    double warm = 0;
    for (int i = 0; i < max_warm_runs && warm < warm_ms; i++) warm += run_once(count);
    for (int i = 0; i < repeats; i++) ms = std::min(ms, run_once(count));
    return work_per_count * count / (ms * 1e-3);
}

}  // namespace

Ceilings measure_ceilings(Runtime& runtime) {
    const bool cpu = runtime.device().type == "cpu";
    Ceilings c;
    const uint32_t groups = cpu ? 64 : 8192;
    const uint64_t copy_bytes = uint64_t{cpu ? 64u : 1024u} << 20;
    const Buffer from = runtime.allocate(copy_bytes), to = runtime.allocate(copy_bytes);
    runtime.fill(from, 0x3f800001);
    runtime.fill(to, 0);

    const Kernel fma(runtime, code_ceiling_fma, sizeof code_ceiling_fma);
    const double flops =
        2.0 * 4 * 4 * CEILING_CHAINS * CEILING_THREADS * groups;  // a round: 4 steps of vec4 chains
    c.fma_tflops = 1e-12 * best_rate(16, 1u << 20, flops, [&](uint32_t rounds) {
                       return runtime.submit([&](VkCommandBuffer b) {
                           fma.record(b, {0, to.address(), rounds}, groups);
                       });
                   });

    const Kernel copy(runtime, code_ceiling_copy, sizeof code_ceiling_copy);
    constexpr uint32_t vecs = 16;
    const auto copy_groups = static_cast<uint32_t>(copy_bytes / (16 * vecs * CEILING_THREADS));
    double best = 1e30;
    for (int i = 0; i < 3 + repeats; i++)
        best = std::min(best, runtime.submit([&](VkCommandBuffer b) {
            copy.record(b, {from.address(), to.address(), vecs}, copy_groups);
        }));
    c.copy_gbps = 2.0 * static_cast<double>(copy_bytes) / (best * 1e-3) * 1e-9;
    return c;
}

}  // namespace vkattn::tools
