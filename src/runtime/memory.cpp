#include "memory.hpp"

#include "vkattn/runtime.hpp"

namespace vkattn::runtime {

Memory::Memory(const VmaAllocatorCreateInfo& info, uint64_t staging_bytes) {
    VmaAllocator allocator = nullptr;
    if (vmaCreateAllocator(&info, &allocator) != VK_SUCCESS)
        throw RuntimeError("creating the memory allocator failed");
    allocator_.reset(allocator);
    VkBufferCreateInfo buffer{};
    buffer.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    buffer.size = staging_bytes;
    buffer.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_HOST;
    memory.flags = VMA_ALLOCATION_CREATE_MAPPED_BIT | VMA_ALLOCATION_CREATE_HOST_ACCESS_RANDOM_BIT;
    VmaAllocationInfo result{};
    if (vmaCreateBuffer(allocator, &buffer, &memory, &staging_, &staging_allocation_, &result) != VK_SUCCESS)
        throw RuntimeError("out of memory for the staging buffer");
    staging_data_ = result.pMappedData;
}

Memory::~Memory() {
    vmaDestroyBuffer(allocator(), staging_, staging_allocation_);
}

}  // namespace vkattn::runtime
