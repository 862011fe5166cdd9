// The Vulkan functions that the runtime calls, loaded at run time, and the objects that it makes with them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <vulkan/vulkan_core.h>

namespace vkattn::runtime {

#define VKATTN_RUNTIME_INSTANCE_FUNCTIONS(X)          \
    X(vkCreateDebugUtilsMessengerEXT)                 \
    X(vkCreateDevice)                                 \
    X(vkDestroyDebugUtilsMessengerEXT)                \
    X(vkDestroyInstance)                              \
    X(vkEnumerateDeviceExtensionProperties)           \
    X(vkEnumeratePhysicalDevices)                     \
    X(vkGetDeviceProcAddr)                            \
    X(vkGetPhysicalDeviceExternalBufferProperties)    \
    X(vkGetPhysicalDeviceExternalSemaphoreProperties) \
    X(vkGetPhysicalDeviceFeatures)                    \
    X(vkGetPhysicalDeviceFeatures2)                   \
    X(vkGetPhysicalDeviceProperties)                  \
    X(vkGetPhysicalDeviceProperties2)                 \
    X(vkGetPhysicalDeviceQueueFamilyProperties)       \
    X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define VKATTN_RUNTIME_DEVICE_FUNCTIONS(X) \
    X(vkAllocateCommandBuffers)            \
    X(vkBeginCommandBuffer)                \
    X(vkCmdCopyBuffer)                     \
    X(vkCmdFillBuffer)                     \
    X(vkCmdPipelineBarrier)                \
    X(vkCmdResetQueryPool)                 \
    X(vkCmdWriteTimestamp)                 \
    X(vkCreateCommandPool)                 \
    X(vkCreateFence)                       \
    X(vkCreatePipelineCache)               \
    X(vkCreateQueryPool)                   \
    X(vkCreateSemaphore)                   \
    X(vkDestroyCommandPool)                \
    X(vkDestroyDevice)                     \
    X(vkDestroyFence)                      \
    X(vkDestroyPipelineCache)              \
    X(vkDestroyQueryPool)                  \
    X(vkDestroySemaphore)                  \
    X(vkDeviceWaitIdle)                    \
    X(vkEndCommandBuffer)                  \
    X(vkFreeCommandBuffers)                \
    X(vkGetBufferDeviceAddress)            \
    X(vkGetDeviceQueue)                    \
    X(vkGetMemoryFdKHR)                    \
    X(vkGetPipelineCacheData)              \
    X(vkGetQueryPoolResults)               \
    X(vkGetSemaphoreFdKHR)                 \
    X(vkQueueSubmit)                       \
    X(vkResetFences)                       \
    X(vkSignalSemaphore)                   \
    X(vkWaitForFences)                     \
    X(vkWaitSemaphores)

// A function is null where there is none: a later version of Vulkan or an extension has it.
struct InstanceFunctions {
    InstanceFunctions(PFN_vkGetInstanceProcAddr get, VkInstance instance) {
#define X(name) name = reinterpret_cast<PFN_##name>(get(instance, #name));
        VKATTN_RUNTIME_INSTANCE_FUNCTIONS(X)
#undef X
    }
#define X(name) PFN_##name name = nullptr;
    VKATTN_RUNTIME_INSTANCE_FUNCTIONS(X)
#undef X
};

struct DeviceFunctions {
    DeviceFunctions(PFN_vkGetDeviceProcAddr get, VkDevice device) {
#define X(name) name = reinterpret_cast<PFN_##name>(get(device, #name));
        VKATTN_RUNTIME_DEVICE_FUNCTIONS(X)
#undef X
    }
#define X(name) PFN_##name name = nullptr;
    VKATTN_RUNTIME_DEVICE_FUNCTIONS(X)
#undef X
};

// A call of Vulkan that failed; what() names `function` and the result.
class VulkanError : public std::runtime_error {
  public:
    VulkanError(VkResult result, const char* function);
    VkResult result() const { return result_; }

  private:
    VkResult result_;
};

// Returns the result's name as messages have it, for instance ErrorOutOfDeviceMemory.
std::string name_of(VkResult result);

// Throws VulkanError unless the call succeeded.
inline void require(VkResult result, const char* function) {
    if (result != VK_SUCCESS) throw VulkanError(result, function);
}

// Returns all that `ask(count, array)` has to give: Vulkan tells the count where the array is null. New elements are
// `empty`. Throws VulkanError.
template <class Count = uint32_t, class T, class Ask>
std::vector<T> enumerate(T empty, const char* function, Ask ask) {
    std::vector<T> all;
    Count count = 0;
    VkResult result = VK_INCOMPLETE;
    while (result == VK_INCOMPLETE) {
        result = ask(&count, static_cast<T*>(nullptr));
        if (result != VK_SUCCESS || count == 0) continue;
        all.resize(count, empty);
        result = ask(&count, all.data());
    }
    require(result, function);
    all.resize(count, empty);
    return all;
}

// A Vulkan object, destroyed with this one.
template <class Handle, class Parent = VkDevice>
class Owned {
  public:
    template <class Info>
    using Create = VkResult(VKAPI_PTR*)(Parent, const Info*, const VkAllocationCallbacks*, Handle*);
    using Destroy = void(VKAPI_PTR*)(Parent, Handle, const VkAllocationCallbacks*);

    Owned() = default;
    // Throws VulkanError.
    template <class Info>
    Owned(Parent parent, Create<Info> create, Destroy destroy, const Info& info, const char* function)
        : parent_(parent), destroy_(destroy) {
        require(create(parent, &info, nullptr, &handle_), function);
    }
    Owned(Owned&& other) noexcept { swap(other); }
    Owned& operator=(Owned&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Owned() {
        if (handle_ != VK_NULL_HANDLE) destroy_(parent_, handle_, nullptr);
    }
    const Handle& operator*() const { return handle_; }

  private:
    void swap(Owned& other) noexcept {
        std::swap(parent_, other.parent_);
        std::swap(handle_, other.handle_);
        std::swap(destroy_, other.destroy_);
    }

    Parent parent_ = VK_NULL_HANDLE;
    Handle handle_ = VK_NULL_HANDLE;
    Destroy destroy_ = nullptr;
};

}  // namespace vkattn::runtime
