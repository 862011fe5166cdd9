#include "faulty_vulkan.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "faulty_new.hpp"
#include "runtime/loader.hpp"
#include "vulkan/functions.hpp"

namespace vkattn::test {
namespace {

// Every function that the library, the runtime and VulkanMemoryAllocator call here.
#define VKATTN_FAULTY_FUNCTIONS(X)                       \
    VKATTN_INSTANCE_FUNCTIONS(X)                         \
    VKATTN_DEVICE_FUNCTIONS(X)                           \
    VKATTN_DEBUG_FUNCTIONS(X)                            \
    X(vkAllocateCommandBuffers)                          \
    X(vkAllocateMemory)                                  \
    X(vkBeginCommandBuffer)                              \
    X(vkBindBufferMemory)                                \
    X(vkCmdCopyBuffer)                                   \
    X(vkCmdResetQueryPool)                               \
    X(vkCmdWriteTimestamp)                               \
    X(vkCreateBuffer)                                    \
    X(vkCreateCommandPool)                               \
    X(vkCreateDebugUtilsMessengerEXT)                    \
    X(vkCreateDevice)                                    \
    X(vkCreateFence)                                     \
    X(vkCreateInstance)                                  \
    X(vkCreatePipelineCache)                             \
    X(vkCreateQueryPool)                                 \
    X(vkCreateSemaphore)                                 \
    X(vkDestroyBuffer)                                   \
    X(vkDestroyCommandPool)                              \
    X(vkDestroyDebugUtilsMessengerEXT)                   \
    X(vkDestroyDevice)                                   \
    X(vkDestroyFence)                                    \
    X(vkDestroyInstance)                                 \
    X(vkDestroyPipelineCache)                            \
    X(vkDestroyQueryPool)                                \
    X(vkDestroySemaphore)                                \
    X(vkDeviceWaitIdle)                                  \
    X(vkEndCommandBuffer)                                \
    X(vkEnumerateInstanceVersion)                        \
    X(vkEnumeratePhysicalDevices)                        \
    X(vkFlushMappedMemoryRanges)                         \
    X(vkFreeCommandBuffers)                              \
    X(vkFreeMemory)                                      \
    X(vkGetBufferMemoryRequirements2)                    \
    X(vkGetDeviceBufferMemoryRequirements)               \
    X(vkGetDeviceQueue)                                  \
    X(vkGetMemoryFdKHR)                                  \
    X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR) \
    X(vkGetPhysicalDeviceExternalBufferProperties)       \
    X(vkGetPhysicalDeviceExternalSemaphoreProperties)    \
    X(vkGetPhysicalDeviceFeatures)                       \
    X(vkGetPhysicalDeviceMemoryProperties2)              \
    X(vkGetPhysicalDeviceProperties)                     \
    X(vkGetPhysicalDeviceQueueFamilyProperties)          \
    X(vkGetPipelineCacheData)                            \
    X(vkGetQueryPoolResults)                             \
    X(vkInvalidateMappedMemoryRanges)                    \
    X(vkMapMemory)                                       \
    X(vkQueueSubmit)                                     \
    X(vkResetFences)                                     \
    X(vkSignalSemaphore)                                 \
    X(vkUnmapMemory)                                     \
    X(vkWaitForFences)                                   \
    X(vkWaitSemaphores)

#define X(function)                                  \
    struct Of_##function {                           \
        static constexpr auto name = #function;      \
        static inline PFN_##function real = nullptr; \
    };
VKATTN_FAULTY_FUNCTIONS(X)
#undef X
PFN_vkGetInstanceProcAddr loader_get_instance_proc_addr = nullptr;

FaultyVulkan* active = nullptr;

// After one of these has said that the device is lost, all of them do. Pipelines and modules say so on some drivers.
bool tells_of_loss(std::string_view function) {
    constexpr std::string_view all[] = {"vkQueueSubmit",        "vkWaitForFences",
                                        "vkDeviceWaitIdle",     "vkGetQueryPoolResults",
                                        "vkCreateShaderModule", "vkCreateComputePipelines"};
    return std::ranges::find(all, function) != std::end(all);
}

template <class R, class... A>
constexpr bool returns_result(R(VKAPI_PTR*)(A...)) {
    return std::is_same_v<R, VkResult>;
}

template <class T>
PFN_vkVoidFunction void_function(T function) {
    return reinterpret_cast<PFN_vkVoidFunction>(function);
}

// The call of a function that is not in the list above, and so would not be made to fail.
[[noreturn]] void VKAPI_CALL unlisted() {
    throw std::logic_error("a Vulkan function is called that tests/gpu/faulty_vulkan.cpp does not list");
}

// The same code with the same numbers makes the same pipeline.
std::string key_of(const VkPipelineShaderStageCreateInfo& stage, const std::string& code) {
    std::string key = fmt::format("{} ", stage.flags) + code;
    if (const VkSpecializationInfo* const numbers = stage.pSpecializationInfo; numbers != nullptr)
        key.append(static_cast<const char*>(numbers->pData), numbers->dataSize);
    return key;
}

}  // namespace

// ---- what stands for a function: one that makes something, as its parameters say, one that destroys it, any other

struct FaultyVulkan::Hooks {
    template <class Of, class Function = decltype(Of::real)>
    struct Hook;

    template <class Of, class Parent, class Info, class Handle>
    struct Hook<Of, VkResult(VKAPI_PTR*)(Parent, const Info*, const VkAllocationCallbacks*, Handle*)> {
        static VkResult VKAPI_CALL call(Parent parent, const Info* info, const VkAllocationCallbacks* memory,
                                        Handle* made) {
            const InDriver outside;
            if (const VkResult r = active->next_result(Of::name); r != VK_SUCCESS) return r;
            const VkResult r = Of::real(parent, info, memory, made);
            if (r == VK_SUCCESS) active->created(typeid(Handle), *made);
            return r;
        }
    };

    template <class Of, class Parent, class Handle>
    struct Hook<Of, void(VKAPI_PTR*)(Parent, Handle, const VkAllocationCallbacks*)> {
        static void VKAPI_CALL call(Parent parent, Handle handle, const VkAllocationCallbacks* memory) {
            const InDriver outside;
            if (handle != VK_NULL_HANDLE) active->destroyed(typeid(Handle), handle);
            Of::real(parent, handle, memory);
        }
    };

    template <class Of, class R, class... A>
    struct Hook<Of, R(VKAPI_PTR*)(A...)> {
        static R VKAPI_CALL call(A... arguments) {
            const InDriver outside;
            if constexpr (std::is_same_v<R, VkResult>)
                if (const VkResult r = active->next_result(Of::name); r != VK_SUCCESS) return r;
            if constexpr (std::is_void_v<R> && (std::is_same_v<A, VkCommandBuffer> || ...))
                if (active->pretend) return;
            return Of::real(arguments...);
        }
    };

    // ---- what is shared

    static VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks*,
                                               VkInstance* made) {
        const InDriver outside;
        if (const VkResult r = active->next_result("vkCreateInstance"); r != VK_SUCCESS) return r;
        if (active->instance_ == VK_NULL_HANDLE)
            if (const VkResult r = Of_vkCreateInstance::real(info, nullptr, &active->instance_);
                r != VK_SUCCESS)
                return r;
        active->created(typeid(VkInstance), *made = active->instance_);
        return VK_SUCCESS;
    }
    static void VKAPI_CALL destroy_instance(VkInstance instance, const VkAllocationCallbacks*) {
        const InDriver outside;
        active->destroyed(typeid(VkInstance), instance);
    }

    static VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                             const VkAllocationCallbacks*, VkDevice* made) {
        const InDriver outside;
        if (const VkResult r = active->next_result("vkCreateDevice"); r != VK_SUCCESS) return r;
        if (active->device_ == VK_NULL_HANDLE)
            if (const VkResult r = Of_vkCreateDevice::real(physical, info, nullptr, &active->device_);
                r != VK_SUCCESS)
                return r;
        active->lost = false;
        active->created(typeid(VkDevice), *made = active->device_);
        return VK_SUCCESS;
    }
    static void VKAPI_CALL destroy_device(VkDevice device, const VkAllocationCallbacks*) {
        const InDriver outside;
        active->destroyed(typeid(VkDevice), device);
    }

    static VkResult VKAPI_CALL create_module(VkDevice device, const VkShaderModuleCreateInfo* info,
                                             const VkAllocationCallbacks* memory, VkShaderModule* made) {
        const InDriver outside;
        const VkResult r = Hook<Of_vkCreateShaderModule>::call(device, info, memory, made);
        if (r == VK_SUCCESS)
            active->codes_[*made].assign(reinterpret_cast<const char*>(info->pCode), info->codeSize);
        return r;
    }

    static VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                const VkComputePipelineCreateInfo* infos,
                                                const VkAllocationCallbacks*, VkPipeline* made) {
        const InDriver outside;
        std::fill_n(made, count, VkPipeline{});
        if (const VkResult r = active->next_result("vkCreateComputePipelines"); r != VK_SUCCESS) return r;
        for (uint32_t i = 0; i < count; i++) {
            if (active->pretend) {
                made[i] = reinterpret_cast<VkPipeline>(++active->pretended_pipelines_);
                active->created(typeid(VkPipeline), made[i]);
                continue;
            }
            VkPipeline& known =
                active->pipelines_[key_of(infos[i].stage, active->codes_[infos[i].stage.module])];
            if (known == VK_NULL_HANDLE)
                if (const VkResult r =
                        Of_vkCreateComputePipelines::real(device, cache, 1, &infos[i], nullptr, &known);
                    r != VK_SUCCESS)
                    return r;
            active->created(typeid(VkPipeline), made[i] = known);
        }
        return VK_SUCCESS;
    }
    static void VKAPI_CALL destroy_pipeline(VkDevice, VkPipeline pipeline, const VkAllocationCallbacks*) {
        const InDriver outside;
        if (pipeline != VK_NULL_HANDLE) active->destroyed(typeid(VkPipeline), pipeline);
    }

    static VkDeviceAddress VKAPI_CALL buffer_address(VkDevice device, const VkBufferDeviceAddressInfo* info) {
        const InDriver outside;
        return active->pretend ? pretended_address : Of_vkGetBufferDeviceAddress::real(device, info);
    }

    // ---- what has more to be noted

    static VkResult VKAPI_CALL allocate_commands(VkDevice device, const VkCommandBufferAllocateInfo* info,
                                                 VkCommandBuffer* made) {
        const InDriver outside;
        const VkResult r = Hook<Of_vkAllocateCommandBuffers>::call(device, info, made);
        for (uint32_t i = 0; r == VK_SUCCESS && i < info->commandBufferCount; i++)
            active->created(typeid(VkCommandBuffer), made[i]);
        return r;
    }
    static void VKAPI_CALL free_commands(VkDevice device, VkCommandPool pool, uint32_t count,
                                         const VkCommandBuffer* commands) {
        const InDriver outside;
        for (uint32_t i = 0; i < count; i++) active->destroyed(typeid(VkCommandBuffer), commands[i]);
        Of_vkFreeCommandBuffers::real(device, pool, count, commands);
    }

    static VkResult VKAPI_CALL create_cache(VkDevice device, const VkPipelineCacheCreateInfo* info,
                                            const VkAllocationCallbacks* memory, VkPipelineCache* made) {
        active->cache_bytes = info->initialDataSize;
        return Hook<Of_vkCreatePipelineCache>::call(device, info, memory, made);
    }
    static VkResult VKAPI_CALL create_messenger(VkInstance instance,
                                                const VkDebugUtilsMessengerCreateInfoEXT* info,
                                                const VkAllocationCallbacks* memory,
                                                VkDebugUtilsMessengerEXT* made) {
        active->messenger = *info;
        return Hook<Of_vkCreateDebugUtilsMessengerEXT>::call(instance, info, memory, made);
    }

    static VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo* infos,
                                      VkFence fence) {
        const InDriver outside;
        const VkResult r = Hook<Of_vkQueueSubmit>::call(queue, count, infos, fence);
        if (r == VK_SUCCESS) active->pending_.insert(fence);
        return r;
    }
    static VkResult VKAPI_CALL wait_for_fences(VkDevice device, uint32_t count, const VkFence* fences,
                                               VkBool32 all, uint64_t timeout) {
        const InDriver outside;
        // Who asks without waiting is told nothing: how often that is differs from run to run, and the calls behind it
        // would, too.
        if (timeout == 0) return VK_TIMEOUT;
        const VkResult r = Hook<Of_vkWaitForFences>::call(device, count, fences, all, timeout);
        if (r == VK_SUCCESS)
            for (uint32_t i = 0; i < count; i++) active->pending_.erase(fences[i]);
        return r;
    }
    static VkResult VKAPI_CALL wait_idle(VkDevice device) {
        const InDriver outside;
        const VkResult r = Hook<Of_vkDeviceWaitIdle>::call(device);
        if (r == VK_SUCCESS) active->pending_.clear();
        return r;
    }

    // Memory of the host that it has to flush and to invalidate, as some devices have it.
    static void VKAPI_CALL memory_properties(VkPhysicalDevice device,
                                             VkPhysicalDeviceMemoryProperties* told) {
        const InDriver outside;
        Of_vkGetPhysicalDeviceMemoryProperties::real(device, told);
        make_incoherent(*told);
    }
    static void make_incoherent(VkPhysicalDeviceMemoryProperties& told) {
        for (VkMemoryType& type : told.memoryTypes)
            type.propertyFlags &= ~VkMemoryPropertyFlags{VK_MEMORY_PROPERTY_HOST_COHERENT_BIT};
    }
    static void VKAPI_CALL memory_properties_2(VkPhysicalDevice device,
                                               VkPhysicalDeviceMemoryProperties2* told) {
        const InDriver outside;
        Of_vkGetPhysicalDeviceMemoryProperties2::real(device, told);
        make_incoherent(told->memoryProperties);
    }

    // ---- where the runtime finds all of this

    static PFN_vkVoidFunction replacement(std::string_view name) {
        static const std::unordered_map<std::string_view, PFN_vkVoidFunction> all = [] {
            std::unordered_map<std::string_view, PFN_vkVoidFunction> own = {
                {"vkGetInstanceProcAddr", void_function(&instance_function)},
                {"vkGetDeviceProcAddr", void_function(&device_function)},
                {"vkCreateInstance", void_function(&create_instance)},
                {"vkDestroyInstance", void_function(&destroy_instance)},
                {"vkCreateDevice", void_function(&create_device)},
                {"vkDestroyDevice", void_function(&destroy_device)},
                {"vkCreateShaderModule", void_function(&create_module)},
                {"vkCreateComputePipelines", void_function(&create_pipelines)},
                {"vkDestroyPipeline", void_function(&destroy_pipeline)},
                {"vkGetBufferDeviceAddress", void_function(&buffer_address)},
                {"vkCreatePipelineCache", void_function(&create_cache)},
                {"vkCreateDebugUtilsMessengerEXT", void_function(&create_messenger)},
                {"vkAllocateCommandBuffers", void_function(&allocate_commands)},
                {"vkFreeCommandBuffers", void_function(&free_commands)},
                {"vkQueueSubmit", void_function(&submit)},
                {"vkWaitForFences", void_function(&wait_for_fences)},
                {"vkDeviceWaitIdle", void_function(&wait_idle)},
                {"vkGetPhysicalDeviceMemoryProperties", void_function(&memory_properties)},
                {"vkGetPhysicalDeviceMemoryProperties2", void_function(&memory_properties_2)}};
#define X(function) own.emplace(#function, void_function(&Hook<Of_##function>::call));
            VKATTN_FAULTY_FUNCTIONS(X)
#undef X
            return own;
        }();
        const auto found = all.find(name);
        return found == all.end() ? void_function(&unlisted) : found->second;
    }

    // Keeps the real function, and gives what stands for it.
    static PFN_vkVoidFunction hooked(std::string_view name, PFN_vkVoidFunction real) {
        if (real == nullptr) return nullptr;
        using Keep = void (*)(PFN_vkVoidFunction);
        static const std::unordered_map<std::string_view, Keep> kept = {
#define X(function) \
    {#function, [](PFN_vkVoidFunction f) { Of_##function::real = reinterpret_cast<PFN_##function>(f); }},
            VKATTN_FAULTY_FUNCTIONS(X)
#undef X
        };
        if (const auto found = kept.find(name); found != kept.end()) found->second(real);
        return replacement(name);
    }
    static PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char* name) {
        const InDriver outside;
        return hooked(name, Of_vkGetDeviceProcAddr::real(device, name));
    }
    static PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char* name) {
        const InDriver outside;
        return hooked(name, loader_get_instance_proc_addr(instance, name));
    }
};

PFN_vkGetInstanceProcAddr FaultyVulkan::between(PFN_vkGetInstanceProcAddr real) {
    loader_get_instance_proc_addr = real;
    return &Hooks::instance_function;
}

void FaultyVulkan::install() {
    active = this;
    runtime::stands_between = &between;
    start();
}

void FaultyVulkan::remove() {
    runtime::stands_between = nullptr;
    active = nullptr;
}

FaultyVulkan::~FaultyVulkan() {
    if (device_ != VK_NULL_HANDLE) {
        for (const auto& [key, pipeline] : pipelines_) Of_vkDestroyPipeline::real(device_, pipeline, nullptr);
        Of_vkDestroyDevice::real(device_, nullptr);
    }
    if (instance_ != VK_NULL_HANDLE) Of_vkDestroyInstance::real(instance_, nullptr);
}

void FaultyVulkan::start(int fail_at, VkResult error, int times) {
    fail_at_ = fail_at;
    times_ = times;
    error_ = error;
    calls.clear();
    failed.clear();
    wrong.clear();
    alive_.clear();
    cache_bytes = 0;
    lost = false;
}

std::vector<std::string> FaultyVulkan::fallible_functions() {
    std::vector<std::string> all;
#define X(function) \
    if (returns_result(Of_##function::real)) all.emplace_back(#function);
    VKATTN_FAULTY_FUNCTIONS(X)
#undef X
    return all;
}

VkResult FaultyVulkan::next_result(const char* function) {
    calls.emplace_back(function);
    if (lost && tells_of_loss(function)) return VK_ERROR_DEVICE_LOST;
    const int number = static_cast<int>(calls.size());
    if (number < fail_at_ || number >= fail_at_ + times_) return VK_SUCCESS;
    if (failed.empty()) failed = function;
    // What is lost has ended.
    if (error_ == VK_ERROR_DEVICE_LOST && tells_of_loss(function) && !pretend) {
        lost = true;
        wait();
    }
    return error_;
}

void FaultyVulkan::wait() {
    if (!pending_.empty()) Of_vkDeviceWaitIdle::real(device_);
    pending_.clear();
}

void FaultyVulkan::created(std::type_index type, const void* handle) {
    alive_.emplace(type, handle);
}

void FaultyVulkan::destroyed(std::type_index type, const void* handle) {
    if (!pending_.empty())
        wrong.push_back(fmt::format("{} is destroyed while the device uses it", type.name()));
    wait();
    const auto found = alive_.find({type, handle});
    if (found == alive_.end())
        wrong.push_back(fmt::format("{} is destroyed, but there is none", type.name()));
    else
        alive_.erase(found);
}

std::vector<std::string> FaultyVulkan::alive() const {
    std::vector<std::string> names;
    for (const auto& [type, handle] : alive_) names.emplace_back(type.name());
    return names;
}

}  // namespace vkattn::test
