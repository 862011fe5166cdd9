#include "memory.hpp"

#include "devices.hpp"

namespace vkattn::runtime {

Memory::Memory(const VmaAllocatorCreateInfo& info, uint64_t size_bytes) {
    VmaAllocator allocator = nullptr;
    VkResult r = vmaCreateAllocator(&info, &allocator);
    if (r != VK_SUCCESS) fail(VKATTN_DEVICE_ERROR, "creating the memory allocator failed", "", r);
    allocator_.reset(allocator);
    VkBufferCreateInfo buffer{};
    buffer.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    buffer.size = size_bytes;
    buffer.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_HOST;
    memory.flags = VMA_ALLOCATION_CREATE_MAPPED_BIT | VMA_ALLOCATION_CREATE_HOST_ACCESS_RANDOM_BIT;
    VmaAllocationInfo result{};
    r = vmaCreateBuffer(allocator, &buffer, &memory, &staging_, &staging_allocation_, &result);
    if (r != VK_SUCCESS) fail(VKATTN_DEVICE_ERROR, "out of memory for the staging buffer", "", r);
    staging_data_ = result.pMappedData;
}

Memory::~Memory() {
    vmaDestroyBuffer(allocator(), staging_, staging_allocation_);
}

}  // namespace vkattn::runtime
