// This file exports memory and semaphores to other APIs of the machine, by file descriptors.
#include <algorithm>
#include <cstring>

#include "runtime.hpp"

namespace vkattn::runtime {
namespace {

bool exports_buffers(const Instance& instance, VkPhysicalDevice device) {
    const VkPhysicalDeviceExternalBufferInfo asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                   nullptr, 0, buffer_usage,
                                                   VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkExternalBufferProperties told{};
    told.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES;
    instance.vk.vkGetPhysicalDeviceExternalBufferProperties(device, &asked, &told);
    return (told.externalMemoryProperties.externalMemoryFeatures &
            VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT) != 0;
}

bool exports_timelines(const Instance& instance, VkPhysicalDevice device) {
    const VkSemaphoreTypeCreateInfo timeline{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr,
                                             VK_SEMAPHORE_TYPE_TIMELINE, 0};
    const VkPhysicalDeviceExternalSemaphoreInfo asked{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO, &timeline,
        VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkExternalSemaphoreProperties told{};
    told.sType = VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES;
    instance.vk.vkGetPhysicalDeviceExternalSemaphoreProperties(device, &asked, &told);
    return (told.externalSemaphoreFeatures & VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT) != 0;
}

}  // namespace

Sharing::Sharing(const Instance& instance, VkPhysicalDevice device) {
    const auto all =
        enumerate(VkExtensionProperties{}, "vkEnumerateDeviceExtensionProperties",
                  [&](uint32_t* n, VkExtensionProperties* p) {
                      return instance.vk.vkEnumerateDeviceExtensionProperties(device, nullptr, n, p);
                  });
    const auto add = [&](const char* extension) {
        const bool found = std::any_of(all.begin(), all.end(), [&](const VkExtensionProperties& e) {
            return std::strcmp(e.extensionName, extension) == 0;
        });
        if (found) extensions.push_back(extension);
        return found;
    };
    memory = exports_buffers(instance, device) && add(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
    semaphores = exports_timelines(instance, device) && add(VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
}

SharedMemory export_memory(const VkattnBuffer& buffer) {
    if (!buffer.is_exportable)
        fail(VKATTN_INVALID_ARGUMENT, "was not made by vkattn_buffer_create_exportable", "buffer");
    VmaAllocationInfo memory{};
    vmaGetAllocationInfo(buffer.runtime.memory->allocator(), buffer.allocation, &memory);
    const VkMemoryGetFdInfoKHR info{VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR, nullptr, memory.deviceMemory,
                                    VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    const Device& device = *buffer.runtime.device;
    SharedMemory shared{-1, memory.memoryType, memory.size};
    require(device.vk.vkGetMemoryFdKHR(device.handle, &info, &shared.fd), "vkGetMemoryFdKHR");
    return shared;
}

}  // namespace vkattn::runtime

using namespace vkattn::runtime;

VkattnSemaphore::VkattnSemaphore(VkattnRuntime& owner, uint64_t value) : runtime(owner) {
    const VkExportSemaphoreCreateInfo exported{VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO, nullptr,
                                               VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    const VkSemaphoreTypeCreateInfo timeline{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             runtime.sharing->semaphores ? &exported : nullptr,
                                             VK_SEMAPHORE_TYPE_TIMELINE, value};
    const VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &timeline, 0};
    const DeviceFunctions& vk = runtime.device->vk;
    handle = {runtime.device->handle, vk.vkCreateSemaphore, vk.vkDestroySemaphore, info, "vkCreateSemaphore"};
}

int VkattnSemaphore::export_fd() const {
    if (!runtime.sharing->semaphores)
        fail(VKATTN_UNSUPPORTED, "the device exports no timeline semaphores by file descriptors");
    const VkSemaphoreGetFdInfoKHR info{VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR, nullptr, *handle,
                                       VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    int fd = -1;
    require(runtime.device->vk.vkGetSemaphoreFdKHR(runtime.device->handle, &info, &fd),
            "vkGetSemaphoreFdKHR");
    return fd;
}

bool VkattnSemaphore::wait(uint64_t value, uint64_t timeout_ns) const {
    const VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, nullptr, 0, 1, &*handle, &value};
    const VkResult result = runtime.device->vk.vkWaitSemaphores(runtime.device->handle, &info, timeout_ns);
    if (result != VK_TIMEOUT) require(result, "vkWaitSemaphores");
    return result == VK_SUCCESS;
}

void VkattnSemaphore::signal(uint64_t value) const {
    const VkSemaphoreSignalInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, nullptr, *handle, value};
    require(runtime.device->vk.vkSignalSemaphore(runtime.device->handle, &info), "vkSignalSemaphore");
}
