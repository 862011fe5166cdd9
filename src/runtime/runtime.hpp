// What the handles of runtime.h stand for. Everything here throws: vkattn::Error, or VulkanError where Vulkan
// failed.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cache_file.hpp"
#include "devices.hpp"
#include "memory.hpp"
#include "vkattn/vkattn.hpp"

namespace vkattn::runtime {

// This is VkattnRuntimeOptions with no null left.
struct Options {
    std::string device, pipeline_cache;
    std::vector<const char*> extra_extensions;
    uint32_t api_version = default_api_version;
    bool validation = false;
    VkattnSelfTest self_test = VKATTN_SELF_TEST_ONCE;
    // Told of each step of the self-test; true stops it.
    std::function<bool(uint32_t done, uint32_t steps, const char* doing)> self_test_stops =
        [](uint32_t, uint32_t, const char*) { return false; };
    // Told once why the cache file could not be written. Does not throw.
    std::function<void(const char* why)> cache_failed = [](const char*) {};
};

using Record = std::function<void(VkCommandBuffer)>;

constexpr VkBufferUsageFlags buffer_usage =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

struct Took {
    double time_ms = 0, record_us = 0;  // as in VkattnRun
};

// Sharing says what a device can export by file descriptors, and which extensions this takes.
struct Sharing {
    Sharing(const Instance& instance, VkPhysicalDevice device);
    bool memory = false, semaphores = false;
    std::vector<const char*> extensions;
};

// A submission uses these until it has ended.
struct InFlight {
    InFlight(const Device& device, VkCommandPool pool);
    InFlight(InFlight&& other) noexcept
        : fence(std::move(other.fence)),
          commands(std::exchange(other.commands, VK_NULL_HANDLE)),
          device_(other.device_),
          pool_(other.pool_) {}
    ~InFlight();

    Owned<VkFence> fence;
    VkCommandBuffer commands = VK_NULL_HANDLE;

  private:
    const Device* device_;
    VkCommandPool pool_;
};

// A submission waits for `wait` before it begins, and signals `signal` at its end. A null semaphore is none.
struct Timeline {
    const VkattnSemaphore* semaphore = nullptr;
    uint64_t value = 0;
};
struct Order {
    Timeline wait, signal;
    bool is_waited_for = true;  // by the call that submits
};

}  // namespace vkattn::runtime

struct VkattnRuntime {
    explicit VkattnRuntime(const vkattn::runtime::Options& options);
    VkattnRuntime(const VkattnRuntime&) = delete;
    VkattnRuntime& operator=(const VkattnRuntime&) = delete;
    ~VkattnRuntime();

    // Records, submits, and waits for it and for all that was submitted before. The caller of submit_locked holds the
    // mutex.
    vkattn::runtime::Took submit(const vkattn::runtime::Record& record,
                                 const vkattn::runtime::Order& order = {});
    vkattn::runtime::Took submit_locked(const vkattn::runtime::Record& record,
                                        const vkattn::runtime::Order& order = {});
    // Throws if the device executes nothing. The caller holds the mutex; the staging memory is overwritten once.
    void check_execution();
    void add_message(std::string text);
    void save_cache();  // writes the pipelines to the cache file, if there is one

    vkattn::runtime::Instance instance;
    mutable std::mutex messages_mutex;
    std::deque<std::string> messages;  // whose elements stay where they are
    vkattn::runtime::Owned<VkDebugUtilsMessengerEXT, VkInstance> messenger;
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    VkattnDeviceInfo info{};
    std::optional<vkattn::runtime::Device> device;
    uint32_t family = UINT32_MAX;
    std::optional<vkattn::runtime::Sharing> sharing;
    uint32_t timestamp_bits = 0;
    double timestamp_ns = 1;
    VkQueue queue = VK_NULL_HANDLE;
    vkattn::runtime::Owned<VkCommandPool> pool;
    vkattn::runtime::Owned<VkQueryPool> queries;
    std::string cache_file;
    std::function<void(const char* why)> cache_failed;  // until it has been told
    vkattn::runtime::CacheKey cache_key;
    std::string kept_verdicts;  // of the self-test, as the file had them
    vkattn::runtime::Owned<VkPipelineCache> cache;
    std::optional<vkattn::runtime::Memory> memory;
    vkattn::Context context;
    VkattnRuntimeHandles handles{};
    std::mutex mutex;       // queue, pool, queries, under_way, at_rest, staging, executes
    bool executes = false;  // the device has been seen to do what is submitted

  private:
    void make_device(const vkattn::runtime::Options& options, const vkattn::Requirements& requirements);
    void load_cache();
    void keep(const std::string& section, const std::vector<char>& content);
    void keep_verdicts(std::string_view text);
    template <class Keep>
    void try_to(const Keep& keep);
    void make_context(const vkattn::runtime::Options& options, const vkattn::Requirements& requirements);
    void make_memory();
    void probe();
    void self_test(const vkattn::runtime::Options& options);
    bool test_kernels(const vkattn::runtime::Options& options);
    vkattn::runtime::Took execute(const vkattn::runtime::Record& record,
                                  const vkattn::runtime::Order& order = {});
    vkattn::runtime::InFlight take_in_flight();
    void finish_oldest();
    void wait_for(VkFence fence);

    std::deque<vkattn::runtime::InFlight> under_way;  // in the order of their submission
    std::vector<vkattn::runtime::InFlight> at_rest;
};

struct VkattnBuffer {
    VkattnBuffer(VkattnRuntime& owner, uint64_t size_bytes, bool exportable = false);
    VkattnBuffer(const VkattnBuffer&) = delete;
    VkattnBuffer& operator=(const VkattnBuffer&) = delete;
    ~VkattnBuffer();

    void write(uint64_t offset_bytes, const void* data, uint64_t size_bytes);
    void read(uint64_t offset_bytes, void* data, uint64_t size_bytes) const;
    void fill(uint32_t word);

    VkattnRuntime& runtime;
    uint64_t size = 0;
    bool is_exportable = false;  // it has memory of its own, which other APIs can import
    VkBuffer buffer = VK_NULL_HANDLE;
    VmaAllocation allocation = nullptr;
    VkDeviceAddress address = 0;
};

// This is a timeline semaphore. Its functions throw as everything here does.
struct VkattnSemaphore {
    VkattnSemaphore(VkattnRuntime& owner, uint64_t value);

    int export_fd() const;
    bool wait(uint64_t value, uint64_t timeout_ns) const;  // false if the time has passed
    void signal(uint64_t value) const;

    VkattnRuntime& runtime;
    vkattn::runtime::Owned<VkSemaphore> handle;
};

namespace vkattn::runtime {

struct SharedMemory {
    int fd;
    uint32_t type;
    uint64_t size_bytes;
};
SharedMemory export_memory(const VkattnBuffer& buffer);

// The order that a run of this runtime asks for. Throws what run.wait_semaphore and its neighbours are refused for.
Order order_of(const VkattnRuntime& runtime, const VkattnRun& run);

// See vkattn_runtime_run_forward and the functions behind it.
void run_forward(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnForwardArgs* args,
                 VkattnRun& run);
void run_backward(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnBackwardArgs* args,
                  VkattnRun& run);
void run_combine(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnCombineArgs* args,
                 VkattnRun& run);
void run_block_map(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnForwardArgs* args,
                   VkattnRun& run);

}  // namespace vkattn::runtime
