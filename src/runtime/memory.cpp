#include "memory.hpp"

#include "devices.hpp"

namespace vkattn::runtime {

Memory::Memory(const VmaAllocatorCreateInfo& info, uint64_t size_bytes) {
    VmaAllocator allocator = nullptr;
    check(vmaCreateAllocator(&info, &allocator), "creating the memory allocator");
    allocator_.reset(allocator);
    VkBufferCreateInfo buffer{};
    buffer.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    buffer.size = size_bytes;
    buffer.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_HOST;
    memory.flags = VMA_ALLOCATION_CREATE_MAPPED_BIT | VMA_ALLOCATION_CREATE_HOST_ACCESS_RANDOM_BIT;
    VmaAllocationInfo result{};
    check(vmaCreateBuffer(allocator, &buffer, &memory, &staging_, &staging_allocation_, &result),
          "allocating the staging buffer");
    staging_data_ = result.pMappedData;
}

Memory::~Memory() {
    vmaDestroyBuffer(allocator(), staging_, staging_allocation_);
}

void Memory::flush(uint64_t size_bytes) const {
    check(vmaFlushAllocation(allocator(), staging_allocation_, 0, size_bytes), "flushing the staging buffer");
}

void Memory::invalidate(uint64_t size_bytes) const {
    check(vmaInvalidateAllocation(allocator(), staging_allocation_, 0, size_bytes),
          "invalidating the staging buffer");
}

}  // namespace vkattn::runtime
