#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fail(const char* what, const char* why) {
    printf("failed: %s: %s\n", what, why);
    exit(1);
}

static void require(VkResult result, const char* what) {
    char why[32];
    snprintf(why, sizeof why, "VkResult %d", (int)result);
    if (result != VK_SUCCESS) fail(what, why);
}

static void load(Gpu* gpu) {
#define X(name) gpu->name = (PFN_##name)gpu->get(gpu->instance, #name);
    GPU_FUNCTIONS(X)
#undef X
}

void gpu_make_instance(Gpu* gpu) {
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    void* symbol;
    PFN_vkCreateInstance create;
    uint32_t count = 1;
    VkResult found;
    memset(gpu, 0, sizeof *gpu);
    gpu->loader = dlopen("libvulkan.so.1", RTLD_NOW);
    symbol = gpu->loader != NULL ? dlsym(gpu->loader, "vkGetInstanceProcAddr") : NULL;
    if (symbol == NULL) fail("libvulkan.so.1", "cannot be loaded");
    memcpy(&gpu->get, &symbol, sizeof symbol);
    create = (PFN_vkCreateInstance)gpu->get(NULL, "vkCreateInstance");
    require(create(&info, NULL, &gpu->instance), "vkCreateInstance");
    load(gpu);
    found = gpu->vkEnumeratePhysicalDevices(gpu->instance, &count, &gpu->physical);
    if (found < 0 || count == 0) fail("vkEnumeratePhysicalDevices", "no device");
}

void gpu_make_device(Gpu* gpu, const void* features, uint32_t extension_count,
                     const char* const* extensions) {
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = extension_count,
                                     .ppEnabledExtensionNames = extensions};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    require(gpu->vkCreateDevice(gpu->physical, &info, NULL, &gpu->device), "vkCreateDevice");
    gpu->vkGetDeviceQueue(gpu->device, 0, 0, &gpu->queue);
    require(gpu->vkCreateCommandPool(gpu->device, &pool, NULL, &gpu->pool), "vkCreateCommandPool");
    commands.commandPool = gpu->pool;
    require(gpu->vkAllocateCommandBuffers(gpu->device, &commands, &gpu->commands),
            "vkAllocateCommandBuffers");
}

int gpu_load_cache(Gpu* gpu, const char* file) {
    VkPipelineCacheCreateInfo info = {0};
    FILE* const in = fopen(file, "rb");
    char* data = NULL;
    size_t size = 0;
    if (in != NULL) {
        fseek(in, 0, SEEK_END);
        size = (size_t)ftell(in);
        rewind(in);
        data = malloc(size + 1);
        if (fread(data, 1, size, in) != size) size = 0;
        fclose(in);
    }
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
    info.initialDataSize = size;
    info.pInitialData = data;
    require(gpu->vkCreatePipelineCache(gpu->device, &info, NULL, &gpu->cache), "vkCreatePipelineCache");
    free(data);
    return size != 0;
}

void gpu_save_cache(Gpu* gpu, const char* file) {
    FILE* const out = fopen(file, "wb");
    size_t size = 0;
    char* data;
    require(gpu->vkGetPipelineCacheData(gpu->device, gpu->cache, &size, NULL), "vkGetPipelineCacheData");
    data = malloc(size);
    require(gpu->vkGetPipelineCacheData(gpu->device, gpu->cache, &size, data), "vkGetPipelineCacheData");
    if (out == NULL || fwrite(data, 1, size, out) != size || fclose(out) != 0)
        fail(file, "cannot be written");
    free(data);
}

static uint32_t host_memory_type(const Gpu* gpu, uint32_t allowed) {
    const VkMemoryPropertyFlags wanted =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDeviceMemoryProperties types;
    uint32_t i;
    gpu->vkGetPhysicalDeviceMemoryProperties(gpu->physical, &types);
    for (i = 0; i < types.memoryTypeCount; i++)
        if ((allowed >> i & 1) != 0 && (types.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
    fail("memory", "none that the host sees");
    return 0;
}

void gpu_make_buffer(Gpu* gpu, VkDeviceSize size) {
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = size,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags};
    VkBufferDeviceAddressInfo asked = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
    VkMemoryRequirements needs;
    void* data = NULL;
    require(gpu->vkCreateBuffer(gpu->device, &info, NULL, &gpu->buffer), "vkCreateBuffer");
    gpu->vkGetBufferMemoryRequirements(gpu->device, gpu->buffer, &needs);
    memory.allocationSize = needs.size;
    memory.memoryTypeIndex = host_memory_type(gpu, needs.memoryTypeBits);
    require(gpu->vkAllocateMemory(gpu->device, &memory, NULL, &gpu->memory), "vkAllocateMemory");
    require(gpu->vkBindBufferMemory(gpu->device, gpu->buffer, gpu->memory, 0), "vkBindBufferMemory");
    require(gpu->vkMapMemory(gpu->device, gpu->memory, 0, size, 0, &data), "vkMapMemory");
    gpu->data = data;
    asked.buffer = gpu->buffer;
    gpu->address = gpu->vkGetBufferDeviceAddress(gpu->device, &asked);
}

void gpu_begin(Gpu* gpu) {
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    require(gpu->vkBeginCommandBuffer(gpu->commands, &info), "vkBeginCommandBuffer");
}

void gpu_barrier(Gpu* gpu, VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
                 VkAccessFlags used) {
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = used};
    gpu->vkCmdPipelineBarrier(gpu->commands, from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

void gpu_run(Gpu* gpu) {
    const VkSubmitInfo submit = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &gpu->commands};
    gpu_barrier(gpu, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT,
                VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    require(gpu->vkEndCommandBuffer(gpu->commands), "vkEndCommandBuffer");
    require(gpu->vkQueueSubmit(gpu->queue, 1, &submit, VK_NULL_HANDLE), "vkQueueSubmit");
    require(gpu->vkQueueWaitIdle(gpu->queue), "vkQueueWaitIdle");
}

void gpu_destroy(Gpu* gpu) {
    gpu->vkDestroyPipelineCache(gpu->device, gpu->cache, NULL);
    gpu->vkDestroyBuffer(gpu->device, gpu->buffer, NULL);
    gpu->vkFreeMemory(gpu->device, gpu->memory, NULL);
    gpu->vkDestroyCommandPool(gpu->device, gpu->pool, NULL);
    gpu->vkDestroyDevice(gpu->device, NULL);
    gpu->vkDestroyInstance(gpu->instance, NULL);
}
