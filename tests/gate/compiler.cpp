#include "gate/compiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <vector>

#include "gate/table.hpp"
#include "vulkan/spirv.hpp"

namespace vkattn::test {
namespace {

void require(VkResult result, const char* what) {
    if (result != VK_SUCCESS)
        throw RuntimeError(fmt::format("{} failed: VkResult {}", what, static_cast<int>(result)));
}

template <class Function>
Function load(const RuntimeHandles& h, const char* name) {
    const auto function = reinterpret_cast<Function>(h.get_instance_proc_addr(h.instance, name));
    if (function == nullptr) throw RuntimeError(fmt::format("the driver has no {}", name));
    return function;
}

// As the runtime's, and it reports on pipelines.
VkDevice make_device(const RuntimeHandles& h) {
    const Requirements needed(h.get_instance_proc_addr, h.instance, h.physical_device);
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR reports{};
    reports.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR;
    reports.pNext = const_cast<VkPhysicalDeviceFeatures2*>(needed.features());
    reports.pipelineExecutableInfo = VK_TRUE;
    std::vector<const char*> extensions = {VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME};
    const char* const* wanted = nullptr;
    const uint32_t count = needed.extensions(&wanted);
    extensions.insert(extensions.end(), wanted, wanted + count);
    const float priority = 1;
    VkDeviceQueueCreateInfo queue{};
    queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = h.queue_family;
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    info.pNext = &reports;
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    info.ppEnabledExtensionNames = extensions.data();
    VkDevice device = VK_NULL_HANDLE;
    require(load<PFN_vkCreateDevice>(h, "vkCreateDevice")(h.physical_device, &info, nullptr, &device),
            "vkCreateDevice with pipelineExecutableInfo");
    return device;
}

uint64_t number_of(const VkPipelineExecutableStatisticKHR& s) {
    switch (s.format) {
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
            return s.value.b32;
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
            return static_cast<uint64_t>(s.value.i64);
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR:
            return static_cast<uint64_t>(s.value.f64);
        default:
            return s.value.u64;
    }
}

// Collects what is written to stdout until text() is called, or until its end.
class StdoutCapture {
  public:
    StdoutCapture() : file_(std::tmpfile()), stdout_(::dup(STDOUT_FILENO)) {
        std::fflush(stdout);
        if (file_ != nullptr && stdout_ >= 0 && ::dup2(::fileno(file_), STDOUT_FILENO) >= 0) return;
        release();
        throw RuntimeError("stdout cannot be collected in a temporary file");
    }
    ~StdoutCapture() {
        restore();
        release();
    }
    StdoutCapture(const StdoutCapture&) = delete;

    std::string text() {
        restore();
        std::string all;
        std::array<char, 65536> part{};
        std::rewind(file_);
        while (const size_t size = std::fread(part.data(), 1, part.size(), file_))
            all.append(part.data(), size);
        return all;
    }

  private:
    void restore() {
        std::fflush(stdout);
        ::dup2(stdout_, STDOUT_FILENO);
    }
    void release() {
        if (stdout_ >= 0) ::close(stdout_);
        if (file_ != nullptr) std::fclose(file_);
    }

    std::FILE* file_;
    int stdout_;
};

}  // namespace

Compiler::Compiler() {
    const auto instance = core::load_instance_functions(handles_.get_instance_proc_addr, handles_.instance);
    if (!instance) throw RuntimeError(instance.failure().message);
    device_ = make_device(handles_);
    destroy_device_ = load<PFN_vkDestroyDevice>(handles_, "vkDestroyDevice");
    const auto functions = core::load_device_functions(*instance, device_);
    if (!functions) throw RuntimeError(functions.failure().message);
    vk_ = *functions;
    get_statistics_ = reinterpret_cast<PFN_vkGetPipelineExecutableStatisticsKHR>(
        instance->vkGetDeviceProcAddr(device_, "vkGetPipelineExecutableStatisticsKHR"));
    get_code_ = reinterpret_cast<PFN_vkGetPipelineExecutableInternalRepresentationsKHR>(
        instance->vkGetDeviceProcAddr(device_, "vkGetPipelineExecutableInternalRepresentationsKHR"));
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, core::max_push_bytes};
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.pushConstantRangeCount = 1;
    info.pPushConstantRanges = &range;
    require(vk_.vkCreatePipelineLayout(device_, &info, nullptr, &layout_), "vkCreatePipelineLayout");
}

Compiler::~Compiler() {
    vk_.vkDestroyPipelineLayout(device_, layout_, nullptr);
    destroy_device_(device_, nullptr);
}

Built Compiler::build(const core::PipelineKey& key) const {
    core::Spirv code = core::spirv_of(key.module);
    if (caps().preserves_nonfinite) code = core::preserving_nonfinite(code);
    VkShaderModuleCreateInfo module_info{};
    module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    module_info.codeSize = code.size() * sizeof(uint32_t);
    module_info.pCode = code.data();
    VkShaderModule module = VK_NULL_HANDLE;
    Built built;
    built.result = vk_.vkCreateShaderModule(device_, &module_info, nullptr, &module);
    if (built.result != VK_SUCCESS) return built;

    core::PipelineConstants reader;
    const auto entries = reader.entries_of(key.module);
    const VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                              sizeof key.constants, key.constants.data()};
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                 VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &specialization;
    info.layout = layout_;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    subgroup.requiredSubgroupSize = core::constant_of(key, "subgroup_size");
    if (core::info_of(key.module.kernel).on_matrices) {
        info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
        if (caps().subgroup_size_control) info.stage.pNext = &subgroup;
    }
    VkPipeline pipeline = VK_NULL_HANDLE;
    std::optional<StdoutCapture> printed;
    if (caps().driver_id == core::driver_honeykrisp) printed.emplace();
    const auto start = std::chrono::steady_clock::now();
    built.result = vk_.vkCreateComputePipelines(device_, VK_NULL_HANDLE, 1, &info, nullptr, &pipeline);
    built.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    vk_.vkDestroyShaderModule(device_, module, nullptr);
    if (built.result != VK_SUCCESS) return built;
    built.statistics = statistics_of(pipeline);
    if (printed)
        built.code[honeykrisp_code] = printed->text();
    else
        built.code = code_of(pipeline);
    vk_.vkDestroyPipeline(device_, pipeline, nullptr);
    return built;
}

std::map<std::string, uint64_t> Compiler::statistics_of(VkPipeline pipeline) const {
    VkPipelineExecutableInfoKHR info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    info.pipeline = pipeline;
    uint32_t count = 0;
    require(get_statistics_(device_, &info, &count, nullptr), "vkGetPipelineExecutableStatisticsKHR");
    VkPipelineExecutableStatisticKHR empty{};
    empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    std::vector<VkPipelineExecutableStatisticKHR> all(count, empty);
    require(get_statistics_(device_, &info, &count, all.data()), "vkGetPipelineExecutableStatisticsKHR");
    std::map<std::string, uint64_t> numbers;
    for (const VkPipelineExecutableStatisticKHR& s : all) numbers[s.name] = number_of(s);
    return numbers;
}

std::map<std::string, std::string> Compiler::code_of(VkPipeline pipeline) const {
    VkPipelineExecutableInfoKHR info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    info.pipeline = pipeline;
    uint32_t count = 0;
    constexpr const char* what = "vkGetPipelineExecutableInternalRepresentationsKHR";
    require(get_code_(device_, &info, &count, nullptr), what);
    VkPipelineExecutableInternalRepresentationKHR empty{};
    empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    std::vector<VkPipelineExecutableInternalRepresentationKHR> all(count, empty);
    require(get_code_(device_, &info, &count, all.data()), what);
    std::vector<std::vector<char>> texts;
    for (VkPipelineExecutableInternalRepresentationKHR& r : all) {
        texts.emplace_back(r.dataSize + 1, '\0');
        r.pData = texts.back().data();
    }
    require(get_code_(device_, &info, &count, all.data()), what);
    std::map<std::string, std::string> code;
    for (size_t i = 0; i < all.size(); i++)
        if (all[i].isText) code[all[i].name] = texts[i].data();
    return code;
}

}  // namespace vkattn::test
