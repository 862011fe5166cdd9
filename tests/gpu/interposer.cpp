#include "interposer.hpp"

#include <cstring>
#include <string_view>

#include "dot_emulation.hpp"
#include "vulkan/context.hpp"
#include "vulkan/spirv.hpp"

namespace vkattn::test {
// Each hook notes the call, then makes it.
struct Interposer::Hooks {
// The device's functions that are replaced, and by what.
#define VKATTN_HOOKED_FUNCTIONS(X)                        \
    X(vkCreateShaderModule, create_module)                \
    X(vkDestroyShaderModule, destroy<VkShaderModule>)     \
    X(vkCreatePipelineLayout, create_layout)              \
    X(vkDestroyPipelineLayout, destroy<VkPipelineLayout>) \
    X(vkCreateComputePipelines, create_pipelines)         \
    X(vkDestroyPipeline, destroy_pipeline)                \
    X(vkCmdBindPipeline, bind)                            \
    X(vkCmdPushConstants, push)                           \
    X(vkCmdDispatch, dispatch)                            \
    X(vkCmdPipelineBarrier, barrier)                      \
    X(vkCmdUpdateBuffer, update)
#define X(name, hook) static inline PFN_##name real_##name = nullptr;
    VKATTN_HOOKED_FUNCTIONS(X)
#undef X
    static inline PFN_vkGetInstanceProcAddr real_vkGetInstanceProcAddr = nullptr;
    static inline PFN_vkGetDeviceProcAddr real_vkGetDeviceProcAddr = nullptr;
    static inline PFN_vkGetPhysicalDeviceProperties2 real_vkGetPhysicalDeviceProperties2 = nullptr;

    static Interposer& active() {
        return Interposer::get();
    }

    static void add(int Interposer::*counter, int change) {
        const std::lock_guard lock(active().mutex_);
        active().*counter += change;
    }

    static void note(Command command) {
        const std::lock_guard lock(active().mutex_);
        command.pipeline = active().bound_;
        command.module = active().modules_of_pipelines_[active().bound_];
        command.push = active().pushed_;
        active().commands_.push_back(command);
    }

    static VkResult VKAPI_CALL create_module(VkDevice device, const VkShaderModuleCreateInfo* info,
                                             const VkAllocationCallbacks* memory, VkShaderModule* module) {
        add(&Interposer::modules_, 1);
        std::string name = module_of(*info);
        core::Spirv words = words_of(*info);
        if (!has_dot_products_for(name)) words = without_dot_products(words);
        VkShaderModuleCreateInfo changed = *info;
        changed.codeSize = words.size() * sizeof(uint32_t);
        changed.pCode = words.data();
        const VkResult result = real_vkCreateShaderModule(device, &changed, memory, module);
        if (result != VK_SUCCESS) return result;
        add(&Interposer::alive_, 1);
        const std::lock_guard lock(active().mutex_);
        active().modules_of_shaders_[*module] = std::move(name);
        return result;
    }

    static bool has_dot_products_for(std::string_view module) {
        const core::DeviceCaps& caps = active().device_.runtime().context()->caps;
        return module.find("_bf16") != module.npos ? caps.dot_bfloat16 : caps.dot_float16;
    }

    static core::Spirv words_of(const VkShaderModuleCreateInfo& info) {
        return {info.pCode, info.pCode + info.codeSize / sizeof(uint32_t)};
    }

    // The name of the module that has these words, of all that the library embeds; "" if none has.
    static std::string module_of(const VkShaderModuleCreateInfo& info) {
        static const std::map<core::Spirv, std::string> names = [] {
            std::map<core::Spirv, std::string> all;
            for (const core::Module& module : core::built_modules()) {
                const core::Spirv words = core::spirv_of(module);
                all[words] = all[core::preserving_nonfinite(words)] =
                    core::name_of(core::in_gpu_form(module));
            }
            return all;
        }();
        const auto found = names.find(words_of(info));
        return found == names.end() ? "" : found->second;
    }

    template <class Handle>
    static void VKAPI_CALL destroy(VkDevice device, Handle handle, const VkAllocationCallbacks* memory) {
        if (handle != VK_NULL_HANDLE) add(&Interposer::alive_, -1);
        if constexpr (std::is_same_v<Handle, VkShaderModule>)
            real_vkDestroyShaderModule(device, handle, memory);
        else
            real_vkDestroyPipelineLayout(device, handle, memory);
    }

    static VkResult VKAPI_CALL create_layout(VkDevice device, const VkPipelineLayoutCreateInfo* info,
                                             const VkAllocationCallbacks* memory, VkPipelineLayout* layout) {
        const VkResult result = real_vkCreatePipelineLayout(device, info, memory, layout);
        if (result == VK_SUCCESS) add(&Interposer::alive_, 1);
        return result;
    }

    static std::string module_of(VkShaderModule module) {
        const std::lock_guard lock(active().mutex_);
        return active().modules_of_shaders_[module];
    }

    static VkResult verdict_on(const VkComputePipelineCreateInfo& info) {
        add(&Interposer::pipelines_, 1);
        if (!active().before_pipeline) return VK_SUCCESS;
        return active().before_pipeline(module_of(info.stage.module));
    }

    static VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                const VkComputePipelineCreateInfo* infos,
                                                const VkAllocationCallbacks* memory, VkPipeline* pipelines) {
        for (uint32_t i = 0; i < count; i++)
            if (const VkResult verdict = verdict_on(infos[i]); verdict != VK_SUCCESS) {
                std::fill_n(pipelines, count, VkPipeline{});
                return verdict;
            }
        VkResult result = VK_SUCCESS;
        if (active().pretend)
            make_up(pipelines, count);
        else
            result = real_vkCreateComputePipelines(device, cache, count, infos, memory, pipelines);
        if (result != VK_SUCCESS) return result;
        add(&Interposer::alive_, static_cast<int>(count));
        for (uint32_t i = 0; i < count; i++) {
            std::string module = module_of(infos[i].stage.module);
            const std::lock_guard lock(active().mutex_);
            active().modules_of_pipelines_[pipelines[i]] = std::move(module);
        }
        return result;
    }

    static void make_up(VkPipeline* pipelines, uint32_t count) {
        const std::lock_guard lock(active().mutex_);
        for (uint32_t i = 0; i < count; i++) {
            const uintptr_t number = 0xfade0000u + active().pretended_.size();
            std::memcpy(&pipelines[i], &number, sizeof number);
            active().pretended_.insert(pipelines[i]);
        }
    }

    static bool was_made_up(VkPipeline pipeline) {
        const std::lock_guard lock(active().mutex_);
        return active().pretended_.contains(pipeline);
    }

    static void VKAPI_CALL destroy_pipeline(VkDevice device, VkPipeline pipeline,
                                            const VkAllocationCallbacks* memory) {
        if (pipeline != VK_NULL_HANDLE) add(&Interposer::alive_, -1);
        if (!was_made_up(pipeline)) real_vkDestroyPipeline(device, pipeline, memory);
    }

    static void VKAPI_CALL bind(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline) {
        {
            const std::lock_guard lock(active().mutex_);
            active().bound_ = pipeline;
        }
        note(Command(Command::Kind::bind));
        if (!active().pretend) real_vkCmdBindPipeline(commands, point, pipeline);
    }

    static void VKAPI_CALL push(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stages,
                                uint32_t offset, uint32_t size, const void* values) {
        {
            const std::lock_guard lock(active().mutex_);
            if (offset + size <= sizeof active().pushed_)
                std::memcpy(reinterpret_cast<std::byte*>(&active().pushed_) + offset, values, size);
        }
        note(Command(Command::Kind::push));
        if (!active().pretend) real_vkCmdPushConstants(commands, layout, stages, offset, size, values);
    }

    static void VKAPI_CALL dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
        Command command(Command::Kind::dispatch);
        command.groups = {x, y, z};
        note(command);
        if (!active().pretend) real_vkCmdDispatch(commands, x, y, z);
    }

    static void VKAPI_CALL barrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                                   VkPipelineStageFlags to, VkDependencyFlags flags, uint32_t count,
                                   const VkMemoryBarrier* memory, uint32_t buffer_count,
                                   const VkBufferMemoryBarrier* buffers, uint32_t image_count,
                                   const VkImageMemoryBarrier* images) {
        Command command(Command::Kind::barrier);
        command.from = from;
        command.to = to;
        for (uint32_t i = 0; i < count; i++) {
            command.written |= memory[i].srcAccessMask;
            command.used |= memory[i].dstAccessMask;
        }
        note(command);
        if (!active().pretend)
            real_vkCmdPipelineBarrier(commands, from, to, flags, count, memory, buffer_count, buffers,
                                      image_count, images);
    }

    static void VKAPI_CALL update(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset,
                                  VkDeviceSize size, const void* data) {
        Command command(Command::Kind::update);
        command.buffer = buffer;
        command.offset = offset;
        command.size = size;
        note(command);
        if (!active().pretend) real_vkCmdUpdateBuffer(commands, buffer, offset, size, data);
    }

    static PFN_vkVoidFunction VKAPI_CALL get_device_proc(VkDevice device, const char* name) {
        const PFN_vkVoidFunction real = real_vkGetDeviceProcAddr(device, name);
        const std::string_view wanted = name;
#define X(function, hook)                                                                \
    if (wanted == #function) {                                                           \
        real_##function = reinterpret_cast<PFN_##function>(real);                        \
        return reinterpret_cast<PFN_vkVoidFunction>(static_cast<PFN_##function>(&hook)); \
    }
        VKATTN_HOOKED_FUNCTIONS(X)
#undef X
        return real;
    }

    static void VKAPI_CALL properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* properties) {
        real_vkGetPhysicalDeviceProperties2(device, properties);
        if (active().change_properties) active().change_properties(*properties);
        if (active().largest_grid)
            std::copy_n(active().largest_grid->begin(), 3,
                        properties->properties.limits.maxComputeWorkGroupCount);
        for (auto* next = static_cast<VkBaseOutStructure*>(properties->pNext); next != nullptr;
             next = next->pNext)
            if (active().largest_allocation &&
                next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)
                reinterpret_cast<VkPhysicalDeviceMaintenance3Properties*>(next)->maxMemoryAllocationSize =
                    *active().largest_allocation;
    }

    static PFN_vkVoidFunction VKAPI_CALL get_instance_proc(VkInstance instance, const char* name) {
        const PFN_vkVoidFunction real = real_vkGetInstanceProcAddr(instance, name);
        if (std::string_view(name) == "vkGetPhysicalDeviceProperties2") {
            real_vkGetPhysicalDeviceProperties2 = reinterpret_cast<PFN_vkGetPhysicalDeviceProperties2>(real);
            return reinterpret_cast<PFN_vkVoidFunction>(&properties);
        }
        if (std::string_view(name) != "vkGetDeviceProcAddr") return real;
        real_vkGetDeviceProcAddr = reinterpret_cast<PFN_vkGetDeviceProcAddr>(real);
        return reinterpret_cast<PFN_vkVoidFunction>(&get_device_proc);
    }
};

// Never destroyed, like the device.
Interposer& Interposer::get() {
    static Interposer* const one = [] {
        Device& device = Device::get();
        Hooks::real_vkGetInstanceProcAddr = device.runtime().handles().get_instance_proc_addr;
        return new Interposer(device);
    }();
    return *one;
}

PFN_vkGetInstanceProcAddr Interposer::get_instance_proc_addr() {
    get();
    return &Hooks::get_instance_proc;
}

Context Interposer::context(const Context::OnMessage& on_message) const {
    const RuntimeHandles h = device_.runtime().handles();
    VkattnContextInfo info = context_info_of(h);
    info.get_instance_proc_addr = &Hooks::get_instance_proc;
    if (!dot_products && !all_features) return Context(info, on_message);
    const Requirements all(h.get_instance_proc_addr, h.instance, h.physical_device);
    info.features = all.features();
    if (!dot_products) return Context(info, on_message);
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16{};
    bfloat16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR;
    bfloat16.pNext = const_cast<VkPhysicalDeviceFeatures2*>(all.features());
    bfloat16.shaderBFloat16Type = VK_TRUE;
    VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE dots{};
    dots.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_MIXED_FLOAT_DOT_PRODUCT_FEATURES_VALVE;
    dots.pNext = &bfloat16;
    dots.shaderMixedFloatDotProductFloat16AccFloat32 = dots.shaderMixedFloatDotProductBFloat16Acc = VK_TRUE;
    info.features = reinterpret_cast<const VkPhysicalDeviceFeatures2*>(&dots);
    return Context(info, on_message);
}

std::vector<Command> Interposer::take_commands() {
    const std::lock_guard lock(mutex_);
    return std::exchange(commands_, {});
}

Context& shared_context() {
    static Context* const one = new Context(Interposer::get().context());
    return *one;
}

void Interposer::reset() {
    pretend = false;
    before_pipeline = nullptr;
    change_properties = nullptr;
    largest_grid.reset();
    largest_allocation.reset();
    all_features = dot_products = false;
    take_commands();
}

namespace {

const core::FieldInfo* find_field(const Command& command, std::string_view name) {
    for (const core::Module& module : core::built_modules()) {
        if (core::name_of(module) != command.module) continue;
        for (const core::FieldInfo& field : core::info_of(module.kernel).fields)
            if (field.name == name) return &field;
    }
    return nullptr;
}

}  // namespace

bool has_field(const Command& command, std::string_view field) {
    return find_field(command, field) != nullptr;
}

uint64_t pushed(const Command& command, std::string_view field) {
    const core::FieldInfo* const at = find_field(command, field);
    if (at == nullptr)
        throw std::runtime_error(command.module + " has no push constant " + std::string(field));
    uint64_t value = 0;
    std::memcpy(&value, command.push.data() + at->offset_bytes,
                std::min<size_t>(at->size_bytes, sizeof value));
    return value;
}

bool guards_compute(const Command& c) {
    constexpr VkAccessFlags both = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    return c.kind == Command::Kind::barrier && (c.from & VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT) != 0 &&
           (c.to & VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT) != 0 &&
           (c.written & VK_ACCESS_SHADER_WRITE_BIT) != 0 && (c.used & both) == both;
}

}  // namespace vkattn::test
