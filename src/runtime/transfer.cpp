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

}  // namespace

VkattnBuffer::VkattnBuffer(VkattnRuntime& owner, uint64_t size_bytes) : runtime(owner), size(size_bytes) {
    if (size_bytes == 0) return;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = (size_bytes + 3) / 4 * 4;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_DEVICE;
    const std::string doing = fmt::format("allocating {} bytes of device memory", size_bytes);
    check(vmaCreateBufferWithAlignment(runtime.memory->allocator(), &info, &memory, 256, &buffer, &allocation,
                                       nullptr),
          doing);
    address = runtime.device.getBufferAddress(vk::BufferDeviceAddressInfo(buffer));
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
        runtime.submit_locked([&](VkCommandBuffer c) {
            vk::CommandBuffer(c).copyBuffer(memory.staging(), buffer,
                                            vk::BufferCopy(0, offset_bytes + done, bytes),
                                            *runtime.device.getDispatcher());
        });
    }
}

void VkattnBuffer::read(uint64_t offset_bytes, void* data, uint64_t size_bytes) const {
    check_range(*this, offset_bytes, data, size_bytes, "reading");
    const Memory& memory = *runtime.memory;
    for (uint64_t done = 0; done < size_bytes; done += staging_bytes) {
        const uint64_t bytes = std::min<uint64_t>(staging_bytes, size_bytes - done);
        const std::lock_guard lock(runtime.mutex);
        runtime.submit_locked([&](VkCommandBuffer c) {
            vk::CommandBuffer(c).copyBuffer(buffer, memory.staging(),
                                            vk::BufferCopy(offset_bytes + done, 0, bytes),
                                            *runtime.device.getDispatcher());
        });
        memory.invalidate(bytes);
        std::memcpy(static_cast<std::byte*>(data) + done, memory.staging_data(), bytes);
    }
}

void VkattnBuffer::fill(uint32_t word) {
    if (size < 4) return;
    runtime.submit([&](VkCommandBuffer c) {
        vk::CommandBuffer(c).fillBuffer(buffer, 0, size / 4 * 4, word, *runtime.device.getDispatcher());
    });
}

Took VkattnRuntime::submit(const Record& record) {
    const std::lock_guard lock(mutex);
    return submit_locked(record);
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
        const vk::CommandBuffer commands(c);
        const auto& functions = *device.getDispatcher();
        commands.fillBuffer(written.buffer, 0, written.size, word, functions);
        const vk::MemoryBarrier filled(vk::AccessFlagBits::eTransferWrite, vk::AccessFlagBits::eTransferRead);
        commands.pipelineBarrier(vk::PipelineStageFlagBits::eTransfer, vk::PipelineStageFlagBits::eTransfer,
                                 {}, filled, {}, {}, functions);
        commands.copyBuffer(written.buffer, memory->staging(), vk::BufferCopy(0, 0, written.size), functions);
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

Took VkattnRuntime::submit_locked(const Record& record) {
    check_execution();
    return execute(record);
}

// Nothing that commands use may be freed before they have ended, so a wait that fails is not the last one. Memory that
// has run out may come back; a device that is lost uses nothing any more.
void VkattnRuntime::wait_for(const vk::raii::Fence& fence) {
    try {
        while (device.waitForFences(*fence, VK_TRUE, UINT64_MAX) == vk::Result::eTimeout) {
        }
    } catch (const vk::SystemError&) {
        const auto wait = [&] { return device.getDispatcher()->vkDeviceWaitIdle(*device); };
        for (VkResult r = wait(); r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
             r = wait())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        throw;
    }
}

Took VkattnRuntime::execute(const Record& record) {
    using Clock = std::chrono::steady_clock;
    Took took;
    // Not by vulkan.hpp, which allocates host memory afterwards and drops the command buffer if there is none.
    const vk::CommandBufferAllocateInfo one(*pool, vk::CommandBufferLevel::ePrimary, 1);
    vk::CommandBuffer allocated;
    vk::detail::resultCheck((*device).allocateCommandBuffers(&one, &allocated, *device.getDispatcher()),
                            "vkAllocateCommandBuffers");
    const vk::raii::CommandBuffer c(device, allocated, *pool);
    c.begin({vk::CommandBufferUsageFlagBits::eOneTimeSubmit});
    if (timestamp_bits != 0) {
        c.resetQueryPool(*queries, 0, 2);
        c.writeTimestamp(vk::PipelineStageFlagBits::eTopOfPipe, *queries, 0);
    }
    const auto start = Clock::now();
    record(*c);
    took.record_us = 1e3 * milliseconds(Clock::now() - start);
    if (timestamp_bits != 0) c.writeTimestamp(vk::PipelineStageFlagBits::eBottomOfPipe, *queries, 1);
    // Whatever the recording wrote may be read by a copy or by the host afterwards.
    const vk::MemoryBarrier all(vk::AccessFlagBits::eMemoryWrite,
                                vk::AccessFlagBits::eMemoryRead | vk::AccessFlagBits::eHostRead);
    c.pipelineBarrier(vk::PipelineStageFlagBits::eAllCommands,
                      vk::PipelineStageFlagBits::eAllCommands | vk::PipelineStageFlagBits::eHost, {}, all, {},
                      {});
    c.end();
    const vk::raii::Fence fence = device.createFence({});
    const auto begin = Clock::now();
    queue.submit(vk::SubmitInfo({}, {}, *c), *fence);
    wait_for(fence);
    took.time_ms = milliseconds(Clock::now() - begin);
    if (timestamp_bits == 0) return took;
    const auto [result, ticks] = queries.getResults<uint64_t>(0, 2, 16, 8, vk::QueryResultFlagBits::e64);
    const uint64_t mask = timestamp_bits == 64 ? UINT64_MAX : (uint64_t{1} << timestamp_bits) - 1;
    took.time_ms = static_cast<double>((ticks[1] - ticks[0]) & mask) * timestamp_ns * 1e-6;
    return took;
}
