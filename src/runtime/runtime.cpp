#include "vkattn/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "cache_file.hpp"
#include "devices.hpp"
#include "memory.hpp"

namespace vkattn {
namespace {

constexpr uint64_t staging_bytes = uint64_t{64} << 20;
constexpr uint32_t no_family = UINT32_MAX;
constexpr uint32_t execution_words = 16;         // of the buffer that check_execution fills
constexpr uint32_t execution_word = 0x5ca1ab1e;  // what it is filled with

double milliseconds(std::chrono::steady_clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
}

// Runs a block whose vk::SystemError should reach the caller as a RuntimeError.
template <class Body>
auto with_errors(const char* what, Body body) {
    try {
        return body();
    } catch (const vk::DeviceLostError&) {
        throw RuntimeError(
            "the device is lost: its driver has reset or removed it, and the Runtime can only be destroyed; "
            "a dispatch "
            "that ran longer than the driver allows may have been the cause");
    } catch (const vk::SystemError& e) {
        throw RuntimeError(fmt::format("{}: {}", what, e.what()));
    }
}

// The extensions that the library needs, and those that the user adds.
std::vector<const char*> extensions_of(const RuntimeOptions& options, const Requirements& requirements) {
    std::vector<const char*> all = options.extra_extensions;
    const char* const* wanted = nullptr;
    const uint32_t count = requirements.extensions(&wanted);
    all.insert(all.end(), wanted, wanted + count);
    return all;
}

}  // namespace

struct Runtime::State {
    explicit State(const RuntimeOptions& options);
    ~State();

    void make_device(const RuntimeOptions& options, const Requirements& requirements);
    void load_cache();
    void save_cache() const;
    void make_context(const RuntimeOptions& options, const Requirements& requirements);
    void make_memory();
    static VKAPI_ATTR vk::Bool32 VKAPI_CALL on_message(vk::DebugUtilsMessageSeverityFlagBitsEXT,
                                                       vk::DebugUtilsMessageTypeFlagsEXT,
                                                       const vk::DebugUtilsMessengerCallbackDataEXT* data,
                                                       void* user);

    PFN_vkGetInstanceProcAddr get_proc() const {
        return instance.context.getDispatcher()->vkGetInstanceProcAddr;
    }

    runtime::Instance instance;
    std::mutex messages_mutex;
    std::vector<std::string> messages;
    vk::raii::DebugUtilsMessengerEXT messenger = nullptr;
    vk::raii::PhysicalDevice physical = nullptr;
    DeviceInfo info;
    vk::raii::Device device = nullptr;
    uint32_t family = no_family;
    uint32_t timestamp_bits = 0;
    double timestamp_ns = 1;
    vk::raii::Queue queue = nullptr;
    vk::raii::CommandPool pool = nullptr;
    vk::raii::QueryPool queries = nullptr;
    std::string cache_file;
    vk::raii::PipelineCache cache = nullptr;
    std::optional<runtime::Memory> memory;
    Context context;
    std::mutex mutex;       // queue, pool, queries, staging, executes
    bool executes = false;  // the device has been seen to do what is submitted
};

VKAPI_ATTR vk::Bool32 VKAPI_CALL
Runtime::State::on_message(vk::DebugUtilsMessageSeverityFlagBitsEXT, vk::DebugUtilsMessageTypeFlagsEXT,
                           const vk::DebugUtilsMessengerCallbackDataEXT* data, void* user) {
    auto& state = *static_cast<State*>(user);
    const std::lock_guard lock(state.messages_mutex);
    state.messages.emplace_back(data->pMessage);
    return VK_FALSE;
}

Runtime::State::State(const RuntimeOptions& options) : instance(options.validation, options.api_version) {
    using Severity = vk::DebugUtilsMessageSeverityFlagBitsEXT;
    using Type = vk::DebugUtilsMessageTypeFlagBitsEXT;
    if (options.validation)
        messenger = instance.instance.createDebugUtilsMessengerEXT({{},
                                                                    Severity::eWarning | Severity::eError,
                                                                    Type::eValidation | Type::ePerformance,
                                                                    &State::on_message,
                                                                    this});
    const auto physicals =
        with_errors("enumerating devices", [&] { return instance.instance.enumeratePhysicalDevices(); });
    std::vector<DeviceInfo> infos;
    for (const auto& p : physicals)
        infos.push_back(runtime::describe(instance, p, static_cast<uint32_t>(infos.size())));
    const uint32_t index = runtime::pick_device(infos, options.device);
    info = infos[index];
    physical = physicals[index];
    const Requirements requirements(get_proc(), *instance.instance, *physical);
    with_errors("creating the device", [&] {
        make_device(options, requirements);
        cache_file = options.pipeline_cache;
        load_cache();
        make_context(options, requirements);
        make_memory();
    });
}

void Runtime::State::make_device(const RuntimeOptions& options, const Requirements& requirements) {
    const auto families = physical.getQueueFamilyProperties();
    for (uint32_t i = 0; i < families.size() && family == no_family; i++)
        if (families[i].queueFlags & vk::QueueFlagBits::eCompute) family = i;
    if (family == no_family) throw RuntimeError(info.name + " has no compute queue");
    timestamp_bits = families[family].timestampValidBits;
    timestamp_ns = static_cast<double>(physical.getProperties().limits.timestampPeriod);

    const std::vector<const char*> extensions = extensions_of(options, requirements);
    const float priority = 1;
    const vk::DeviceQueueCreateInfo queue_info({}, family, 1, &priority);
    vk::DeviceCreateInfo device_info({}, queue_info, {}, extensions);
    device_info.setPNext(requirements.features());
    device = physical.createDevice(device_info);
    queue = device.getQueue(family, 0);
    pool = device.createCommandPool({vk::CommandPoolCreateFlagBits::eTransient, family});
    if (timestamp_bits != 0) queries = device.createQueryPool({{}, vk::QueryType::eTimestamp, 2});
}

void Runtime::State::load_cache() {
    const std::vector<char> data = runtime::read_cache_file(cache_file);
    cache = device.createPipelineCache(vk::PipelineCacheCreateInfo({}, data.size(), data.data()));
}

// Best effort, from a destructor: a cache that cannot be written costs time at the next start, nothing else.
void Runtime::State::save_cache() const {
    if (cache_file.empty()) return;
    try {
        runtime::write_cache_file(cache_file, cache.getData());
    } catch (const std::exception&) {
    }
}

void Runtime::State::make_context(const RuntimeOptions& options, const Requirements& requirements) {
    VkattnContextInfo i = context_info();
    i.get_instance_proc_addr = get_proc();
    i.instance = *instance.instance;
    i.physical_device = *physical;
    i.device = *device;
    i.api_version = instance.version;
    const std::vector<const char*> extensions = extensions_of(options, requirements);
    i.enabled_extension_count = static_cast<uint32_t>(extensions.size());
    i.enabled_extensions = extensions.data();
    i.features = requirements.features();
    i.pipeline_cache = *cache;
    context = Context(i);
}

void Runtime::State::make_memory() {
    VmaVulkanFunctions functions{};
    functions.vkGetInstanceProcAddr = get_proc();
    functions.vkGetDeviceProcAddr = instance.instance.getDispatcher()->vkGetDeviceProcAddr;
    VmaAllocatorCreateInfo i{};
    i.flags = VMA_ALLOCATOR_CREATE_BUFFER_DEVICE_ADDRESS_BIT;
    i.instance = *instance.instance;
    i.physicalDevice = *physical;
    i.device = *device;
    i.pVulkanFunctions = &functions;
    i.vulkanApiVersion = std::min(instance.version, info.api_version);
    memory.emplace(i, staging_bytes);
}

Runtime::State::~State() {
    save_cache();
}

Buffer::~Buffer() {
    if (runtime_ != nullptr) runtime_->release(*this);
}

Runtime::Runtime(const RuntimeOptions& options) : state_(std::make_unique<State>(options)) {
    probe();
}

void Runtime::probe() {
    const Context& context = state_->context;
    const uint64_t size = context.probe_size();
    if (size == 0) return;
    // A device that fails it is as good as any for everything else.
    try {
        const Buffer results = allocate(size);
        fill(results, 0);
        submit([&](VkCommandBuffer c) { context.record_probe(c, results.address()); });
        std::vector<std::byte> data(size);
        download(results, data, 0);
        context.probed(data.data(), size);
    } catch (const std::exception& e) {
        const std::lock_guard lock(state_->messages_mutex);
        state_->messages.push_back(std::string("the probe of the matrix units failed: ") + e.what());
    }
}

Runtime::~Runtime() = default;

const DeviceInfo& Runtime::device() const {
    return state_->info;
}
VkattnContext* Runtime::context() const {
    return state_->context.get();
}

RuntimeHandles Runtime::handles() const {
    return {state_->get_proc(), *state_->instance.instance,
            *state_->physical,  *state_->device,
            *state_->queue,     state_->family};
}

std::vector<std::string> Runtime::messages() const {
    const std::lock_guard lock(state_->messages_mutex);
    return state_->messages;
}

Buffer Runtime::allocate(uint64_t size_bytes) {
    Buffer b;
    if (size_bytes == 0) return b;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = (size_bytes + 3) / 4 * 4;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VmaAllocationCreateInfo memory{};
    memory.usage = VMA_MEMORY_USAGE_AUTO_PREFER_DEVICE;
    VmaAllocation allocation = nullptr;
    const VkResult r = vmaCreateBufferWithAlignment(state_->memory->allocator(), &info, &memory, 256,
                                                    &b.buffer_, &allocation, nullptr);
    if (r != VK_SUCCESS)
        throw RuntimeError(fmt::format("allocating {} bytes of device memory failed: {}", size_bytes,
                                       vk::to_string(static_cast<vk::Result>(r))));
    b.runtime_ = this;
    b.allocation_ = allocation;
    b.size_ = size_bytes;
    b.address_ = state_->device.getBufferAddress(vk::BufferDeviceAddressInfo(b.buffer_));
    return b;
}

void Runtime::release(Buffer& b) noexcept {
    vmaDestroyBuffer(state_->memory->allocator(), b.buffer_, static_cast<VmaAllocation>(b.allocation_));
}

void Runtime::upload(const Buffer& to, std::span<const std::byte> data, uint64_t offset_bytes) {
    if (offset_bytes > to.size_ || data.size() > to.size_ - offset_bytes)
        throw RuntimeError("upload past the end of the buffer");
    for (uint64_t done = 0; done < data.size(); done += staging_bytes) {
        const uint64_t bytes = std::min<uint64_t>(staging_bytes, data.size() - done);
        const std::lock_guard lock(state_->mutex);
        check_execution();  // it uses the staging memory
        std::memcpy(state_->memory->staging_data(), data.data() + done, bytes);
        vmaFlushAllocation(state_->memory->allocator(), state_->memory->staging_allocation(), 0, bytes);
        submit_locked([&](VkCommandBuffer c) {
            vk::CommandBuffer(c).copyBuffer(state_->memory->staging(), to.buffer_,
                                            vk::BufferCopy(0, offset_bytes + done, bytes),
                                            *state_->device.getDispatcher());
        });
    }
}

void Runtime::download(const Buffer& from, std::span<std::byte> data, uint64_t offset_bytes) {
    if (offset_bytes > from.size_ || data.size() > from.size_ - offset_bytes)
        throw RuntimeError("download past the end of the buffer");
    for (uint64_t done = 0; done < data.size(); done += staging_bytes) {
        const uint64_t bytes = std::min<uint64_t>(staging_bytes, data.size() - done);
        const std::lock_guard lock(state_->mutex);
        submit_locked([&](VkCommandBuffer c) {
            vk::CommandBuffer(c).copyBuffer(from.buffer_, state_->memory->staging(),
                                            vk::BufferCopy(offset_bytes + done, 0, bytes),
                                            *state_->device.getDispatcher());
        });
        vmaInvalidateAllocation(state_->memory->allocator(), state_->memory->staging_allocation(), 0, bytes);
        std::memcpy(data.data() + done, state_->memory->staging_data(), bytes);
    }
}

void Runtime::fill(const Buffer& buffer, uint32_t word) {
    if (buffer.size_ < 4) return;
    submit([&](VkCommandBuffer c) {
        vk::CommandBuffer(c).fillBuffer(buffer.buffer_, 0, buffer.size_ / 4 * 4, word,
                                        *state_->device.getDispatcher());
    });
}

double Runtime::submit(const std::function<void(VkCommandBuffer)>& record, double* record_us) {
    const std::lock_guard lock(state_->mutex);
    return submit_locked(record, record_us);
}

// Compile-only drivers, which pretend to be a GPU, accept every submission, signal its fence and do nothing. The pattern is
// written to device memory and read back into memory that holds another one, once a Runtime and before its first result.
// Plans can be made on such a device all the same.
void Runtime::check_execution() {
    State& s = *state_;
    if (s.executes) return;
    const Buffer buffer = allocate(execution_words * sizeof(uint32_t));
    auto* const words = static_cast<uint32_t*>(s.memory->staging_data());
    std::fill_n(words, execution_words, ~execution_word);
    vmaFlushAllocation(s.memory->allocator(), s.memory->staging_allocation(), 0, buffer.size_bytes());
    execute([&](VkCommandBuffer c) {
        const vk::CommandBuffer commands(c);
        const auto& functions = *s.device.getDispatcher();
        commands.fillBuffer(buffer.handle(), 0, buffer.size_bytes(), execution_word, functions);
        const vk::MemoryBarrier filled(vk::AccessFlagBits::eTransferWrite, vk::AccessFlagBits::eTransferRead);
        commands.pipelineBarrier(vk::PipelineStageFlagBits::eTransfer, vk::PipelineStageFlagBits::eTransfer,
                                 {}, filled, {}, {}, functions);
        commands.copyBuffer(buffer.handle(), s.memory->staging(), vk::BufferCopy(0, 0, buffer.size_bytes()),
                            functions);
    });
    vmaInvalidateAllocation(s.memory->allocator(), s.memory->staging_allocation(), 0, buffer.size_bytes());
    s.executes = std::all_of(words, words + execution_words, [](uint32_t w) { return w == execution_word; });
    if (!s.executes)
        throw RuntimeError(
            fmt::format("{} ({}) executes nothing: what was written to its memory did not arrive; its driver "
                        "only compiles",
                        s.info.name, s.info.driver));
}

double Runtime::submit_locked(const std::function<void(VkCommandBuffer)>& record, double* record_us) {
    check_execution();
    return execute(record, record_us);
}

double Runtime::execute(const std::function<void(VkCommandBuffer)>& record, double* record_us) {
    return with_errors("running on the device", [&] {
        State& s = *state_;
        auto buffers = s.device.allocateCommandBuffers({*s.pool, vk::CommandBufferLevel::ePrimary, 1});
        const vk::raii::CommandBuffer& c = buffers.front();
        c.begin({vk::CommandBufferUsageFlagBits::eOneTimeSubmit});
        if (s.timestamp_bits != 0) {
            c.resetQueryPool(*s.queries, 0, 2);
            c.writeTimestamp(vk::PipelineStageFlagBits::eTopOfPipe, *s.queries, 0);
        }
        const auto start = std::chrono::steady_clock::now();
        record(*c);
        if (record_us != nullptr) *record_us = 1e3 * milliseconds(std::chrono::steady_clock::now() - start);
        if (s.timestamp_bits != 0) c.writeTimestamp(vk::PipelineStageFlagBits::eBottomOfPipe, *s.queries, 1);
        // Whatever the recording wrote may be read by a copy or by the host afterwards.
        const vk::MemoryBarrier all(vk::AccessFlagBits::eMemoryWrite,
                                    vk::AccessFlagBits::eMemoryRead | vk::AccessFlagBits::eHostRead);
        c.pipelineBarrier(vk::PipelineStageFlagBits::eAllCommands,
                          vk::PipelineStageFlagBits::eAllCommands | vk::PipelineStageFlagBits::eHost, {}, all,
                          {}, {});
        c.end();
        const vk::raii::Fence fence = s.device.createFence({});
        const auto begin = std::chrono::steady_clock::now();
        s.queue.submit(vk::SubmitInfo({}, {}, *c), *fence);
        while (s.device.waitForFences(*fence, VK_TRUE, UINT64_MAX) == vk::Result::eTimeout) {
        }
        if (s.timestamp_bits == 0) return milliseconds(std::chrono::steady_clock::now() - begin);
        const auto [result, ticks] =
            s.queries.getResults<uint64_t>(0, 2, 16, 8, vk::QueryResultFlagBits::e64);
        const uint64_t mask = s.timestamp_bits == 64 ? UINT64_MAX : (uint64_t{1} << s.timestamp_bits) - 1;
        return static_cast<double>((ticks[1] - ticks[0]) & mask) * s.timestamp_ns * 1e-6;
    });
}

}  // namespace vkattn
