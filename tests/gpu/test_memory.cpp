// The runtime's memory where the device has none left: whatever was made before is destroyed.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "fixture.hpp"
#include "runtime/memory.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Counts the blocks of host memory that an allocator has, and the objects of Vulkan that it makes.
struct Counted {
    static inline std::mutex mutex;
    static inline std::map<void*, size_t> blocks;  // with their sizes
    static inline int buffers = 0, memories = 0;
    static inline bool out_of_memory = false;
    static inline Vk vk;

    static void* VKAPI_CALL allocate(void*, size_t size, size_t alignment, VkSystemAllocationScope) {
        const size_t unit = std::max(alignment, sizeof(void*));
        void* const block = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
        const std::lock_guard lock(mutex);
        if (block != nullptr) blocks[block] = size;
        return block;
    }
    static void VKAPI_CALL release(void*, void* block) {
        const std::lock_guard lock(mutex);
        blocks.erase(block);
        std::free(block);
    }
    static void* VKAPI_CALL reallocate(void* user, void* old, size_t size, size_t alignment,
                                       VkSystemAllocationScope scope) {
        void* const block = size != 0 ? allocate(user, size, alignment, scope) : nullptr;
        if (old != nullptr && block != nullptr) std::memcpy(block, old, std::min(size, blocks.at(old)));
        if (old != nullptr && (block != nullptr || size == 0)) release(user, old);
        return block;
    }

    static VkResult VKAPI_CALL create_buffer(VkDevice device, const VkBufferCreateInfo* info,
                                             const VkAllocationCallbacks* host, VkBuffer* buffer) {
        const VkResult result = vk.vkCreateBuffer(device, info, host, buffer);
        buffers += result == VK_SUCCESS;
        return result;
    }
    static void VKAPI_CALL destroy_buffer(VkDevice device, VkBuffer buffer,
                                          const VkAllocationCallbacks* host) {
        buffers -= buffer != VK_NULL_HANDLE;
        vk.vkDestroyBuffer(device, buffer, host);
    }
    static VkResult VKAPI_CALL allocate_memory(VkDevice device, const VkMemoryAllocateInfo* info,
                                               const VkAllocationCallbacks* host, VkDeviceMemory* memory) {
        if (out_of_memory) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
        const VkResult result = vk.vkAllocateMemory(device, info, host, memory);
        memories += result == VK_SUCCESS;
        return result;
    }
    static void VKAPI_CALL free_memory(VkDevice device, VkDeviceMemory memory,
                                       const VkAllocationCallbacks* host) {
        memories -= memory != VK_NULL_HANDLE;
        vk.vkFreeMemory(device, memory, host);
    }
};

VmaVulkanFunctions counted_functions(Device& device) {
    Counted::vk = device.vk();
    const RuntimeHandles h = device.runtime().handles();
    VmaVulkanFunctions functions{};
    functions.vkGetInstanceProcAddr = h.get_instance_proc_addr;
    functions.vkGetDeviceProcAddr = reinterpret_cast<PFN_vkGetDeviceProcAddr>(
        h.get_instance_proc_addr(h.instance, "vkGetDeviceProcAddr"));
    functions.vkCreateBuffer = &Counted::create_buffer;
    functions.vkDestroyBuffer = &Counted::destroy_buffer;
    functions.vkAllocateMemory = &Counted::allocate_memory;
    functions.vkFreeMemory = &Counted::free_memory;
    return functions;
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "a runtime without memory for its staging buffer leaves nothing behind") {
    const VmaVulkanFunctions functions = counted_functions(device);
    VkAllocationCallbacks host{};
    host.pfnAllocation = &Counted::allocate;
    host.pfnReallocation = &Counted::reallocate;
    host.pfnFree = &Counted::release;
    const RuntimeHandles h = runtime.handles();
    VmaAllocatorCreateInfo info{};
    info.instance = h.instance;
    info.physicalDevice = h.physical_device;
    info.device = h.device;
    info.pAllocationCallbacks = &host;
    info.pVulkanFunctions = &functions;
    info.vulkanApiVersion = VK_API_VERSION_1_2;
    for (const bool out_of_memory : {false, true}) {
        CAPTURE(out_of_memory);
        Counted::out_of_memory = out_of_memory;
        if (out_of_memory) {
            CHECK_THROWS_WITH_AS(runtime::Memory(info, 1 << 20),
                                 "allocating the staging buffer failed: ErrorOutOfDeviceMemory", Error);
        } else {
            const runtime::Memory memory(info, 1 << 20);
            CHECK(memory.staging_data() != nullptr);
            CHECK(Counted::buffers == 1);
            CHECK(Counted::memories == 1);
            CHECK_FALSE(Counted::blocks.empty());
        }
        CHECK(Counted::buffers == 0);
        CHECK(Counted::memories == 0);
        CHECK(Counted::blocks.empty());
    }
}
