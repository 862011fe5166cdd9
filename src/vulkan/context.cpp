#include "context.hpp"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "vulkan/spirv.hpp"

namespace vkattn::core {
namespace {

// Destroys a module on every way out of the function that uses it.
struct ModuleOwner {
    const DeviceFunctions& vk;
    VkDevice device;
    VkShaderModule module;
    ~ModuleOwner() { vk.vkDestroyShaderModule(device, module, nullptr); }
};

// A pipeline is named by its module and the constants that are not 0: "vkattn combine_f32 threads=64 head_dim_v=128".
std::string name_of(const PipelineKey& key) {
    std::string name = std::string("vkattn ") + core::name_of(key.module);
    if (key.module.variant != 0) name += " from_application";
    const auto constants = info_of(key.module.kernel).constants;
    for (size_t i = 0; i < constants.size(); i++)
        if (key.constants[i] != 0) name += fmt::format(" {}={}", constants[i], key.constants[i]);
    return name;
}

Failure device_lost() {
    return {VKATTN_DEVICE_LOST, "",
            "the device is lost: destroy what belongs to it and create a new VkDevice; a dispatch that ran "
            "longer than "
            "the driver allows may have been the cause (options.max_dispatch_flops)",
            static_cast<int32_t>(VK_ERROR_DEVICE_LOST)};
}

}  // namespace

Pipelines::Pipelines(const DeviceFunctions& vk, const DeviceCaps& caps, VkDevice device,
                     VkPipelineCache cache)
    : vk_(vk), caps_(caps), device_(device), cache_(cache) {}

Pipelines::~Pipelines() {
    for (const auto& [key, entry] : entries_) vk_.vkDestroyPipeline(device_, **entry->result, nullptr);
    vk_.vkDestroyPipelineLayout(device_, layout_, nullptr);
}

VkResult Pipelines::create_layout() {
    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, max_push_bytes};
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.pushConstantRangeCount = 1;
    info.pPushConstantRanges = &range;
    return vk_.vkCreatePipelineLayout(device_, &info, nullptr, &layout_);
}

size_t Pipelines::size() const {
    const std::lock_guard lock(mutex_);
    size_t built = 0;
    for (const auto& [key, entry] : entries_) built += entry->ended;
    return built;
}

// A thread that waits for another's building takes its failure too, because a driver that needs seconds to fail would
// need them again. An exception says nothing of the pipeline, so the next thread tries for itself.
Result<VkPipeline> Pipelines::get(const Pipeline& planned) {
    if (lost_) return device_lost();
    const PipelineKey key = constants_.key_of(planned);
    std::unique_lock lock(mutex_);
    for (auto found = entries_.find(key); found != entries_.end(); found = entries_.find(key)) {
        const std::shared_ptr<Entry> entry = found->second;  // lives on where a failure leaves the map
        ended_.wait(lock, [&] { return entry->ended; });
        if (entry->result) return *entry->result;
    }
    const auto entry = std::make_shared<Entry>();
    entries_.emplace(key, entry);
    lock.unlock();
    const Ending ending{*this, key, *entry};
    entry->result = build(key);
    return *entry->result;
}

Pipelines::Ending::~Ending() {
    const std::lock_guard lock(all.mutex_);
    entry.ended = true;
    if (!entry.result || !*entry.result) all.entries_.erase(key);
    all.ended_.notify_all();
}

Result<VkPipeline> Pipelines::build(const PipelineKey& key) {
    const auto failed = [&](const char* what, VkResult result) {
        if (result == VK_ERROR_DEVICE_LOST) {
            lost_ = true;
            return device_lost();
        }
        return Failure{VKATTN_DEVICE_ERROR, "",
                       fmt::format("{} of {} failed with VkResult {}", what, core::name_of(key.module),
                                   static_cast<int>(result)),
                       static_cast<int32_t>(result)};
    };
    Spirv code = constants_.take_words(key.module);
    if (caps_.preserves_nonfinite) code = preserving_nonfinite(code);
    VkShaderModuleCreateInfo code_info{};
    code_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    code_info.codeSize = code.size() * sizeof(uint32_t);
    code_info.pCode = code.data();
    VkShaderModule module = VK_NULL_HANDLE;
    if (VkResult r = vk_.vkCreateShaderModule(device_, &code_info, nullptr, &module); r != VK_SUCCESS)
        return failed("vkCreateShaderModule", r);
    const ModuleOwner owner{vk_, device_, module};

    const auto entries = constants_.entries_of(key.module);
    const VkSpecializationInfo constants{static_cast<uint32_t>(entries.size()), entries.data(),
                                         sizeof key.constants, key.constants.data()};
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
    subgroup.requiredSubgroupSize = constant_of(key, "subgroup_size");
    if (info_of(key.module.kernel).on_matrices) {
        info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
        if (caps_.subgroup_size_control) info.stage.pNext = &subgroup;
    }
    VkPipeline pipeline = VK_NULL_HANDLE;
    const VkResult r = vk_.vkCreateComputePipelines(device_, cache_, 1, &info, nullptr, &pipeline);
    if (r != VK_SUCCESS) return failed("vkCreateComputePipelines", r);
    if (vk_.has_labels()) set_name(key, pipeline);
    return pipeline;
}

// Without memory for its name a pipeline has none.
void Pipelines::set_name(const PipelineKey& key, VkPipeline pipeline) const {
    try {
        const std::string name = name_of(key);
        VkDebugUtilsObjectNameInfoEXT info{};
        info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT;
        info.objectType = VK_OBJECT_TYPE_PIPELINE;
        info.objectHandle = reinterpret_cast<uint64_t>(pipeline);  // a pointer or a number, by the platform
        info.pObjectName = name.c_str();
        vk_.vkSetDebugUtilsObjectNameEXT(device_, &info);
    } catch (const std::bad_alloc&) {
    }
}

Result<bool> add_module(VkattnContext& context, const VkattnModule& given) {
    if (given.variant == nullptr || *given.variant == 0) return invalid("module.variant", "is null or empty");
    if (given.module == nullptr) return invalid("module.module", "is null");
    if (given.code == nullptr) return invalid("module.code", "is null");
    const auto known = std::ranges::find(built_modules(), std::string_view(given.module),
                                         [](const Module& m) { return std::string_view(name_of(m)); });
    if (known == built_modules().end())
        return invalid("module.module", "is no module of this library: vkattn info --modules lists them");
    if (given.code_bytes % sizeof(uint32_t) != 0)
        return invalid("module.code_bytes", "is not a multiple of 4");
    Spirv words(given.code, given.code + given.code_bytes / sizeof(uint32_t));
    if (std::string why = why_no_module(words, info_of(known->kernel)); !why.empty())
        return invalid("module.code", std::move(why));
    const std::lock_guard lock(context.mutex);
    const auto number = static_cast<uint32_t>(context.variants.size()) + 1;
    auto& variant =
        context.variants.try_emplace(given.variant, VkattnContext::Variant{number, {}}).first->second;
    Module module = *known;
    module.variant = variant.number;
    if (std::ranges::find(variant.modules, module) != variant.modules.end())
        return invalid("module.module", "is there already, of this variant");
    context.pipelines.keep(module, std::move(words));
    variant.modules.push_back(module);
    return true;
}

}  // namespace vkattn::core
