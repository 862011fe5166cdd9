/* The Vulkan application that vkattn is embedded into: an instance, a device, one buffer, one command buffer. None of
 * it is vkattn's. */
#ifndef GPU_H
#define GPU_H

#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_FUNCTIONS(X)                   \
    X(vkAllocateCommandBuffers)            \
    X(vkAllocateMemory)                    \
    X(vkBeginCommandBuffer)                \
    X(vkBindBufferMemory)                  \
    X(vkCmdCopyBuffer)                     \
    X(vkCmdFillBuffer)                     \
    X(vkCmdPipelineBarrier)                \
    X(vkCreateBuffer)                      \
    X(vkCreateCommandPool)                 \
    X(vkCreateDevice)                      \
    X(vkCreatePipelineCache)               \
    X(vkDestroyBuffer)                     \
    X(vkDestroyCommandPool)                \
    X(vkDestroyDevice)                     \
    X(vkDestroyInstance)                   \
    X(vkDestroyPipelineCache)              \
    X(vkEndCommandBuffer)                  \
    X(vkEnumeratePhysicalDevices)          \
    X(vkFreeMemory)                        \
    X(vkGetBufferDeviceAddress)            \
    X(vkGetBufferMemoryRequirements)       \
    X(vkGetDeviceQueue)                    \
    X(vkGetPhysicalDeviceMemoryProperties) \
    X(vkGetPhysicalDeviceProperties)       \
    X(vkGetPipelineCacheData)              \
    X(vkMapMemory)                         \
    X(vkQueueSubmit)                       \
    X(vkQueueWaitIdle)

typedef struct Gpu {
    void* loader;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    VkPipelineCache cache;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkBuffer buffer; /* host-visible, with an address */
    VkDeviceMemory memory;
    VkDeviceAddress address;
    float* data; /* of the buffer */
#define X(name) PFN_##name name;
    GPU_FUNCTIONS(X)
#undef X
} Gpu;

/* Each ends the program with a line of text where Vulkan fails. */
void gpu_make_instance(Gpu* gpu);
/* `features`: a chain for VkDeviceCreateInfo::pNext. */
void gpu_make_device(Gpu* gpu, const void* features, uint32_t extension_count, const char* const* extensions);
int gpu_load_cache(Gpu* gpu, const char* file); /* returns whether there was one */
void gpu_save_cache(Gpu* gpu, const char* file);
void gpu_make_buffer(Gpu* gpu, VkDeviceSize size);
void gpu_begin(Gpu* gpu);
void gpu_barrier(Gpu* gpu, VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
                 VkAccessFlags used);
void gpu_run(Gpu* gpu);
void gpu_destroy(Gpu* gpu);
void fail(const char* what, const char* why);

#ifdef __cplusplus
}
#endif
#endif
