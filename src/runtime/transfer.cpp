// Buffers, the copies to and from them, and submissions.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "runtime.hpp"

using namespace vkattn::runtime;

namespace {

double milliseconds(std::chrono::steady_clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
}

void check_range(const VkattnBuffer& buffer, uint64_t offset_bytes, const void* data, uint64_t size_bytes,
                 const char* what) {
    if (offset_bytes > buffer.size || size_bytes > buffer.size - offset_bytes)
        fail(VKATTN_INVALID_ARGUMENT,
             fmt::format("{} {} bytes at {} goes past the end of the buffer, which has {}", what, size_bytes,
                         offset_bytes, buffer.size),
             "size_bytes");
    if (data == nullptr && size_bytes != 0) fail(VKATTN_INVALID_ARGUMENT, "is null", "data");
}

// A Submission holds what vkQueueSubmit reads, for one command buffer in its order.
class Submission {
  public:
    Submission(VkCommandBuffer commands, const Order& order)
        : commands_(commands), order_(order), wait_(handle_of(order.wait)), signal_(handle_of(order.signal)) {
        info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
        info.commandBufferCount = 1;
        info.pCommandBuffers = &commands_;
        if (wait_ == VK_NULL_HANDLE && signal_ == VK_NULL_HANDLE) return;
        info.pNext = &values_;
        info.waitSemaphoreCount = values_.waitSemaphoreValueCount = wait_ != VK_NULL_HANDLE ? 1 : 0;
        info.signalSemaphoreCount = values_.signalSemaphoreValueCount = signal_ != VK_NULL_HANDLE ? 1 : 0;
        info.pWaitSemaphores = &wait_;
        info.pWaitDstStageMask = &stages_;
        info.pSignalSemaphores = &signal_;
        values_.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
        values_.pWaitSemaphoreValues = &order_.wait.value;
        values_.pSignalSemaphoreValues = &order_.signal.value;
    }
    Submission(const Submission&) = delete;
    Submission& operator=(const Submission&) = delete;

    VkSubmitInfo info{};

  private:
    static VkSemaphore handle_of(const Timeline& t) {
        return t.semaphore != nullptr ? *t.semaphore->handle : VK_NULL_HANDLE;
    }

    VkCommandBuffer commands_;
    Order order_;
    VkSemaphore wait_, signal_;
    VkPipelineStageFlags stages_ = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values_{};
};

}  // namespace

InFlight::InFlight(const Device& device, VkCommandPool pool) : device_(&device), pool_(pool) {
    const VkFenceCreateInfo info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, nullptr, 0};
    fence = {device.handle, device.vk.vkCreateFence, device.vk.vkDestroyFence, info,
             "vk::raii::Device::createFence"};
    const VkCommandBufferAllocateInfo one{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool,
                                          VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    require(device.vk.vkAllocateCommandBuffers(device.handle, &one, &commands), "vkAllocateCommandBuffers");
}

InFlight::~InFlight() {
    if (commands != VK_NULL_HANDLE) device_->vk.vkFreeCommandBuffers(device_->handle, pool_, 1, &commands);
}

VkattnBuffer::VkattnBuffer(VkattnRuntime& owner, uint64_t size_bytes, bool exportable)
    : runtime(owner), size(size_bytes), is_exportable(exportable) {
    if (exportable && size_bytes == 0)
        fail(VKATTN_INVALID_ARGUMENT, "is 0, and there is no memory to share then", "size_bytes");
    if (exportable && !runtime.sharing->memory)
        fail(VKATTN_UNSUPPORTED, "the device exports no memory by file descriptors");
    if (size_bytes == 0) return;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = (size_bytes + 3) / 4 * 4;
    info.usage = buffer_usage;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_DEVICE;
    const std::string doing = fmt::format("allocating {} bytes of device memory", size_bytes);
    VmaAllocator allocator = runtime.memory->allocator();
    if (exportable) {
        const auto type = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
        const VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                        nullptr, type};
        info.pNext = &external;
        VkExportMemoryAllocateInfo exported{VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO, nullptr, type};
        check(vmaCreateDedicatedBuffer(allocator, &info, &memory, &exported, &buffer, &allocation, nullptr),
              doing);
    } else {
        check(vmaCreateBufferWithAlignment(allocator, &info, &memory, 256, &buffer, &allocation, nullptr),
              doing);
    }
    const VkBufferDeviceAddressInfo of{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, nullptr, buffer};
    address = runtime.device->vk.vkGetBufferDeviceAddress(runtime.device->handle, &of);
}

VkattnBuffer::~VkattnBuffer() {
    vmaDestroyBuffer(runtime.memory->allocator(), buffer, allocation);
}

void VkattnBuffer::write(uint64_t offset_bytes, const void* data, uint64_t size_bytes) {
    check_range(*this, offset_bytes, data, size_bytes, "writing");
    const Memory& memory = *runtime.memory;
    for (uint64_t done = 0; done < size_bytes; done += staging_bytes) {
        const uint64_t bytes = std::min<uint64_t>(staging_bytes, size_bytes - done);
        const std::lock_guard lock(runtime.mutex);
        runtime.check_execution();
        std::memcpy(memory.staging_data(), static_cast<const std::byte*>(data) + done, bytes);
        memory.flush(bytes);
        const VkBufferCopy all{0, offset_bytes + done, bytes};
        runtime.submit_locked([&](VkCommandBuffer c) {
            runtime.device->vk.vkCmdCopyBuffer(c, memory.staging(), buffer, 1, &all);
        });
    }
}

void VkattnBuffer::read(uint64_t offset_bytes, void* data, uint64_t size_bytes) const {
    check_range(*this, offset_bytes, data, size_bytes, "reading");
    const Memory& memory = *runtime.memory;
    for (uint64_t done = 0; done < size_bytes; done += staging_bytes) {
        const uint64_t bytes = std::min<uint64_t>(staging_bytes, size_bytes - done);
        const std::lock_guard lock(runtime.mutex);
        const VkBufferCopy all{offset_bytes + done, 0, bytes};
        runtime.submit_locked([&](VkCommandBuffer c) {
            runtime.device->vk.vkCmdCopyBuffer(c, buffer, memory.staging(), 1, &all);
        });
        memory.invalidate(bytes);
        std::memcpy(static_cast<std::byte*>(data) + done, memory.staging_data(), bytes);
    }
}

void VkattnBuffer::fill(uint32_t word) {
    if (size < 4) return;
    runtime.submit(
        [&](VkCommandBuffer c) { runtime.device->vk.vkCmdFillBuffer(c, buffer, 0, size / 4 * 4, word); });
}

Took VkattnRuntime::submit(const Record& record, const Order& order) {
    const std::lock_guard lock(mutex);
    return submit_locked(record, order);
}

// Compile-only drivers, which pretend to be a GPU, accept every submission, signal its fence and do nothing. A
// pattern is written to device memory and read back into memory that holds another one, once a runtime and before its
// first result.
void VkattnRuntime::check_execution() {
    if (executes) return;
    constexpr uint32_t count = 16, word = 0x5ca1ab1e;
    const VkattnBuffer written(*this, count * sizeof word);
    auto* const words = static_cast<uint32_t*>(memory->staging_data());
    std::fill_n(words, count, ~word);
    memory->flush(written.size);
    execute([&](VkCommandBuffer c) {
        const DeviceFunctions& vk = device->vk;
        vk.vkCmdFillBuffer(c, written.buffer, 0, written.size, word);
        device->barrier(c, {VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT},
                        {VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT});
        const VkBufferCopy all{0, 0, written.size};
        vk.vkCmdCopyBuffer(c, written.buffer, memory->staging(), 1, &all);
    });
    memory->invalidate(written.size);
    executes = std::all_of(words, words + count, [](uint32_t w) { return w == word; });
    if (!executes)
        fail(
            VKATTN_DEVICE_ERROR,
            fmt::format("{} ({}) executes nothing: what was written to its memory did not arrive; its driver "
                        "only compiles",
                        info.name, info.driver));
}

Took VkattnRuntime::submit_locked(const Record& record, const Order& order) {
    check_execution();
    return execute(record, order);
}

// Nothing that commands use may be freed before they have ended, so a wait that fails is not the last one. Memory that
// has run out may come back; a device that is lost uses nothing any more. A thread that sleeps hears of the end late,
// on an H200 120 to 220 us after it, so that for a while it asks instead. The runtime's mutex is held all the while, as
// it is while the thread sleeps. On a CPU the thread sleeps at once, because the cores have other work.
void VkattnRuntime::wait_for(VkFence fence) {
    using Clock = std::chrono::steady_clock;
    constexpr auto asked_for = std::chrono::milliseconds(1);
    const auto ask = [&](uint64_t timeout_ns) {
        return device->vk.vkWaitForFences(device->handle, 1, &fence, VK_TRUE, timeout_ns);
    };
    VkResult ended = VK_TIMEOUT;
    const auto begin = Clock::now();
    const bool sleeps = std::string_view(info.type) == "cpu";
    while (!sleeps && ended == VK_TIMEOUT && Clock::now() - begin < asked_for) {
        ended = ask(0);
        if (ended == VK_TIMEOUT) std::this_thread::yield();
    }
    while (ended == VK_TIMEOUT) ended = ask(UINT64_MAX);
    if (ended == VK_SUCCESS) return;
    const auto wait = [&] { return device->vk.vkDeviceWaitIdle(device->handle); };
    for (VkResult r = wait(); r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
         r = wait())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw VulkanError(ended, "vk::raii::Device::waitForFences");
}

// Gives a command buffer and a fence that no submission uses. They are made once and used again, because to make a
// fence and to destroy it takes 250 to 500 us on an H200 (driver 580.159), more than all else of a short run.
InFlight VkattnRuntime::take_in_flight() {
    const DeviceFunctions& vk = device->vk;
    const auto is_busy = [&](const InFlight& i) {
        return vk.vkWaitForFences(device->handle, 1, &*i.fence, VK_TRUE, 0) == VK_TIMEOUT;
    };
    while (!under_way.empty() && !is_busy(under_way.front())) finish_oldest();
    if (at_rest.empty()) return InFlight(*device, *pool);
    InFlight taken = std::move(at_rest.back());
    at_rest.pop_back();
    require(vk.vkResetFences(device->handle, 1, &*taken.fence), "vkResetFences");
    return taken;
}

// If the wait throws, fence and command buffer are destroyed: by then the device is idle, or lost.
void VkattnRuntime::finish_oldest() {
    InFlight oldest = std::move(under_way.front());
    under_way.pop_front();
    wait_for(*oldest.fence);
    at_rest.push_back(std::move(oldest));
}

Took VkattnRuntime::execute(const Record& record, const Order& order) {
    using Clock = std::chrono::steady_clock;
    Took took;
    const DeviceFunctions& vk = device->vk;
    InFlight used = take_in_flight();
    VkCommandBuffer c = used.commands;
    const VkCommandBufferBeginInfo once{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr,
                                        VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, nullptr};
    require(vk.vkBeginCommandBuffer(c, &once), "vk::raii::CommandBuffer::begin");
    const bool is_timed = timestamp_bits != 0 && order.is_waited_for;
    if (is_timed) {
        vk.vkCmdResetQueryPool(c, *queries, 0, 2);
        vk.vkCmdWriteTimestamp(c, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, *queries, 0);
    }
    const auto start = Clock::now();
    record(c);
    took.record_us = 1e3 * milliseconds(Clock::now() - start);
    if (is_timed) vk.vkCmdWriteTimestamp(c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, *queries, 1);
    // Whatever the recording wrote may be read afterwards, by a copy or by the host, and written again, as scratch is
    // by the next of several asynchronous runs.
    device->barrier(c, {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT},
                    {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
                     VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT});
    require(vk.vkEndCommandBuffer(c), "vk::raii::CommandBuffer::end");
    const auto begin = Clock::now();
    const VkFence fence = *used.fence;
    under_way.push_back(std::move(used));
    try {
        Submission submission(c, order);
        require(vk.vkQueueSubmit(queue, 1, &submission.info, fence), "vk::raii::Queue::submit");
    } catch (...) {
        under_way.pop_back();
        throw;
    }
    if (!order.is_waited_for) return took;
    while (!under_way.empty()) finish_oldest();
    took.time_ms = milliseconds(Clock::now() - begin);
    if (!is_timed) return took;
    uint64_t ticks[2] = {};
    const VkResult told = vk.vkGetQueryPoolResults(device->handle, *queries, 0, 2, sizeof ticks, ticks,
                                                   sizeof ticks[0], VK_QUERY_RESULT_64_BIT);
    if (told != VK_NOT_READY) require(told, "vk::raii::QueryPool::getResults");
    const uint64_t mask = timestamp_bits == 64 ? UINT64_MAX : (uint64_t{1} << timestamp_bits) - 1;
    took.time_ms = static_cast<double>((ticks[1] - ticks[0]) & mask) * timestamp_ns * 1e-6;
    return took;
}
