// Memory of a tensor that ends exactly at a page which nobody may touch, or begins right after one: on devices whose
// addresses are host pointers, any access past the tensor is a segmentation fault instead of luck. Elsewhere the tensor
// lies in ordinary device memory between sentinels, which tell of writes only.
#pragma once

#include <cstddef>
#include <span>

#include "device.hpp"

namespace vkattn::test {

enum class Place { start, end };
constexpr Place places[] = {Place::start, Place::end};
const char* name_of(Place place);

// Around tensors, and in the gaps of those with padding: a NaN in every type, and not one that arithmetic makes.
constexpr uint32_t poison_word = 0x7fdb7fdb;

constexpr VkBufferUsageFlags guarded_usage =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

// A memory image that repeats a word.
std::vector<std::byte> filled(uint64_t bytes, uint32_t word);

class Guarded {
  public:
    Guarded() = default;  // of an empty tensor, at address 0
    // The usage is that of the buffer where there are guard pages; elsewhere it has all.
    Guarded(Device& device, uint64_t size_bytes, Place place, uint32_t alignment_bytes = 4,
            VkBufferUsageFlags usage = guarded_usage);
    Guarded(Guarded&& other) noexcept { swap(other); }
    Guarded& operator=(Guarded&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Guarded();

    // An empty tensor has an address too: null at the start, that of the guard page at the end.
    VkDeviceAddress address() const { return address_; }
    VkBuffer buffer() const { return buffer_; }
    uint64_t offset_bytes() const { return offset_; }
    uint64_t size_bytes() const { return size_; }
    const std::byte* host() const { return pages_ != nullptr ? pages_ + offset_ : nullptr; }

    void write(std::span<const std::byte> data);
    void fill(uint32_t word);
    std::vector<std::byte> read() const;
    void protect();       // from now on a write by anyone is a fault, where there are guard pages
    bool intact() const;  // true if nothing around the tensor has changed

  private:
    void swap(Guarded& other) noexcept;
    void map(uint32_t alignment_bytes, Place place, VkBufferUsageFlags usage);
    void import(VkBufferUsageFlags usage);
    void allocate(uint32_t alignment_bytes, Place place);
    std::vector<std::byte> everything() const;

    Device* device_ = nullptr;
    uint64_t size_ = 0, offset_ = 0, total_ = 0;  // of the tensor; of what lies between the guards
    VkDeviceAddress address_ = 0;
    VkBuffer buffer_ = VK_NULL_HANDLE;
    std::byte* pages_ = nullptr;  // with guard pages: what lies between them
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
    Buffer plain_;  // without
};

uint64_t host_page_bytes();
// Whether guard pages work here. The device must be set to use them.
bool addresses_are_host_pointers(Device& device);

// The test of the test: children that run past a tensor on purpose, each on a device of its own, and how they ended:
// "SIGSEGV", "exit 0", ... Started before this process has a device, awaited when asked for.
struct GuardProbes {
    std::string read_behind, write_before, write_to_input;
};
void start_guard_probes();
GuardProbes guard_probes();

// Address space without memory, for tensors with rows far apart. Null base where there is none to be had.
class Reservation {
  public:
    explicit Reservation(uint64_t size_bytes);
    Reservation(const Reservation&) = delete;
    ~Reservation();
    std::byte* base() const { return base_; }
    void enable(uint64_t offset_bytes, uint64_t size_bytes);  // makes the pages of this range usable

  private:
    std::byte* base_ = nullptr;
    uint64_t size_ = 0;
};

}  // namespace vkattn::test
