// The runtime's memory allocator with the buffer that transfers go through.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "vma.hpp"

namespace vkattn::runtime {

constexpr uint64_t staging_bytes = uint64_t{64} << 20;  // of the runtime; more is copied in pieces

class Memory {
  public:
    // Throws Error, and then leaves nothing behind.
    Memory(const VmaAllocatorCreateInfo& info, uint64_t size_bytes);
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();

    VmaAllocator allocator() const { return allocator_.get(); }
    VkBuffer staging() const { return staging_; }
    void* staging_data() const { return staging_data_; }  // mapped as long as the object lives
    // Of the first bytes of the staging buffer: what the host has written reaches the device, and what the device has
    // written reaches the host. Throw Error.
    void flush(uint64_t size_bytes) const;
    void invalidate(uint64_t size_bytes) const;

  private:
    struct DestroyAllocator {
        void operator()(VmaAllocator allocator) const { vmaDestroyAllocator(allocator); }
    };

    // A member of its own, because a constructor that throws destroys its members, but calls no destructor of the
    // class.
    std::unique_ptr<std::remove_pointer_t<VmaAllocator>, DestroyAllocator> allocator_;
    VkBuffer staging_ = VK_NULL_HANDLE;
    VmaAllocation staging_allocation_ = nullptr;
    void* staging_data_ = nullptr;
};

}  // namespace vkattn::runtime
