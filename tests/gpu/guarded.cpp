#include "guarded.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__unix__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace vkattn::test {
namespace {

constexpr uint64_t slack_bytes = 4096;  // of sentinels on each side, without guard pages

uint64_t round_up(uint64_t x, uint64_t unit) {
    return (x + unit - 1) / unit * unit;
}

#if defined(__unix__)

// `size_bytes` of memory between two pages that nobody may touch.
std::byte* map_between_guards(uint64_t size_bytes, uint64_t page) {
    void* const all = mmap(nullptr, size_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw RuntimeError("mmap failed");
    std::byte* const inner = static_cast<std::byte*>(all) + page;
    if (mprotect(inner, size_bytes, PROT_READ | PROT_WRITE) != 0) throw RuntimeError("mprotect failed");
    return inner;
}

void unmap_with_guards(std::byte* inner, uint64_t size_bytes, uint64_t page) {
    munmap(inner - page, size_bytes + 2 * page);
}

void make_read_only(std::byte* inner, uint64_t size_bytes) {
    if (mprotect(inner, size_bytes, PROT_READ) != 0) throw RuntimeError("mprotect failed");
}

#else

std::byte* map_between_guards(uint64_t, uint64_t) {
    throw RuntimeError("no guard pages on this system");
}
void unmap_with_guards(std::byte*, uint64_t, uint64_t) {}
void make_read_only(std::byte*, uint64_t) {}

#endif

}  // namespace

std::vector<std::byte> filled(uint64_t bytes, uint32_t word) {
    std::vector<std::byte> all(bytes);
    for (size_t at = 0; at < all.size(); at += 4)
        std::memcpy(all.data() + at, &word, std::min<size_t>(4, all.size() - at));
    return all;
}

const char* name_of(Place place) {
    return place == Place::start ? "start" : "end";
}

Guarded::Guarded(Device& device, uint64_t size_bytes, Place place, uint32_t alignment_bytes,
                 VkBufferUsageFlags usage)
    : device_(&device), size_(size_bytes) {
    if (size_bytes == 0 && place == Place::start) return;
    if (device.has_guard_pages())
        map(alignment_bytes, place, usage);
    else if (size_bytes != 0)
        allocate(alignment_bytes, place);
    else
        address_ = alignment_bytes;  // never to be used, like that of a guard page
}

void Guarded::map(uint32_t alignment_bytes, Place place, VkBufferUsageFlags usage) {
    total_ = round_up(std::max<uint64_t>(size_, 1), device_->page_bytes());
    pages_ = map_between_guards(total_, device_->page_bytes());
    offset_ = place == Place::start ? 0 : (total_ - size_) / alignment_bytes * alignment_bytes;
    std::ranges::copy(filled(total_, poison_word), pages_);
    import(usage);
}

void Guarded::import(VkBufferUsageFlags usage) {
    constexpr auto type = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    const Vk& vk = device_->vk();
    const VkDevice device = device_->handle();
    const VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                    nullptr, type};
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.pNext = &external;
    info.size = total_;
    info.usage = usage;
    require(vk.vkCreateBuffer(device, &info, nullptr, &buffer_), "vkCreateBuffer");
    VkMemoryRequirements needs;
    vk.vkGetBufferMemoryRequirements(device, buffer_, &needs);
    VkMemoryHostPointerPropertiesEXT types{};
    types.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
    require(vk.vkGetMemoryHostPointerPropertiesEXT(device, type, pages_, &types),
            "vkGetMemoryHostPointerProperties");
    const uint32_t possible = types.memoryTypeBits & needs.memoryTypeBits;
    if (possible == 0) throw RuntimeError("no memory type takes host memory");

    const VkImportMemoryHostPointerInfoEXT import{VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                                  nullptr, type, pages_};
    const VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, &import,
                                          VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};
    VkMemoryAllocateInfo memory{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags, total_, 0};
    while ((possible >> memory.memoryTypeIndex & 1) == 0) memory.memoryTypeIndex++;
    require(vk.vkAllocateMemory(device, &memory, nullptr, &memory_), "importing host memory");
    require(vk.vkBindBufferMemory(device, buffer_, memory_, 0), "vkBindBufferMemory");
    const VkBufferDeviceAddressInfo at{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, nullptr, buffer_};
    address_ = vk.vkGetBufferDeviceAddress(device, &at) + offset_;
}

void Guarded::allocate(uint32_t alignment_bytes, Place place) {
    // At the end: as oddly aligned as the problem allows.
    offset_ = round_up(slack_bytes, alignment_bytes) + (place == Place::start ? 0 : alignment_bytes);
    total_ = round_up(offset_ + size_ + slack_bytes, 4);
    plain_ = device_->runtime().allocate(total_);
    device_->runtime().fill(plain_, poison_word);
    buffer_ = plain_.handle();
    address_ = plain_.address() + offset_;
}

Guarded::~Guarded() {
    if (pages_ == nullptr) return;
    device_->vk().vkDestroyBuffer(device_->handle(), buffer_, nullptr);
    device_->vk().vkFreeMemory(device_->handle(), memory_, nullptr);
    unmap_with_guards(pages_, total_, device_->page_bytes());
}

void Guarded::swap(Guarded& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(size_, other.size_);
    std::swap(offset_, other.offset_);
    std::swap(total_, other.total_);
    std::swap(address_, other.address_);
    std::swap(buffer_, other.buffer_);
    std::swap(pages_, other.pages_);
    std::swap(memory_, other.memory_);
    std::swap(plain_, other.plain_);
}

void Guarded::write(std::span<const std::byte> data) {
    if (data.size() != size_) throw RuntimeError("a guarded tensor is written as a whole");
    if (pages_ != nullptr)
        std::memcpy(pages_ + offset_, data.data(), data.size());
    else if (size_ != 0)
        device_->runtime().upload(plain_, data, offset_);
}

void Guarded::fill(uint32_t word) {
    write(filled(size_, word));
}

std::vector<std::byte> Guarded::read() const {
    std::vector<std::byte> data(size_);
    if (pages_ != nullptr)
        std::copy_n(pages_ + offset_, size_, data.begin());
    else if (size_ != 0)
        device_->runtime().download(plain_, data, offset_);
    return data;
}

void Guarded::protect() {
    if (pages_ != nullptr) make_read_only(pages_, total_);
}

// What lies between the guards.
std::vector<std::byte> Guarded::everything() const {
    std::vector<std::byte> all(total_);
    if (pages_ != nullptr)
        std::copy_n(pages_, total_, all.begin());
    else if (total_ != 0)
        device_->runtime().download(plain_, all);
    return all;
}

bool Guarded::intact() const {
    const std::vector<std::byte> all = everything(), expected = filled(total_, poison_word);
    const auto begin = static_cast<std::ptrdiff_t>(offset_), end = begin + static_cast<std::ptrdiff_t>(size_);
    return std::equal(all.begin(), all.begin() + begin, expected.begin()) &&
           std::equal(all.begin() + end, all.end(), expected.begin() + end);
}

bool addresses_are_host_pointers(Device& device) {
    try {
        const Guarded page(device, device.page_bytes(), Place::start);
        return page.address() == reinterpret_cast<uintptr_t>(page.host());
    } catch (const RuntimeError&) {
        return false;
    }
}

#if defined(__unix__)

uint64_t host_page_bytes() {
    return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

Reservation::Reservation(uint64_t size_bytes) : size_(size_bytes) {
    void* const all =
        mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all != MAP_FAILED) base_ = static_cast<std::byte*>(all);
}

Reservation::~Reservation() {
    if (base_ != nullptr) munmap(base_, size_);
}

void Reservation::enable(uint64_t offset_bytes, uint64_t size_bytes) {
    const uint64_t page = host_page_bytes(), first = offset_bytes / page * page;
    if (mprotect(base_ + first, round_up(offset_bytes + size_bytes, page) - first, PROT_READ | PROT_WRITE) !=
        0)
        throw RuntimeError("mprotect failed");
}

#else

uint64_t host_page_bytes() {
    return 4096;
}
Reservation::Reservation(uint64_t size_bytes) : size_(size_bytes) {}
Reservation::~Reservation() = default;
void Reservation::enable(uint64_t, uint64_t) {}

#endif

}  // namespace vkattn::test
