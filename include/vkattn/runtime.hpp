// The batteries-included layer: owns instance, device, queue and buffers, for callers without a Vulkan
// application. Everything it does goes through vkattn.h; an embedder with its own device needs none of it.
//
// Errors are exceptions: vkattn::Error for what the library refuses, vkattn::RuntimeError for everything else
// (no Vulkan, no such device, out of memory, device lost), each with one line of text.
//
// Thread safety: plan() and command recording are free-threaded; submissions and transfers take a lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "vkattn/vkattn.hpp"

namespace vkattn {

class RuntimeError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct DeviceInfo {
    uint32_t index = 0;  // in vkEnumeratePhysicalDevices order
    std::string name;
    std::string driver;  // driver name and its own version text
    std::string uuid;    // 32 hex digits
    std::string type;    // discrete, integrated, virtual, cpu, other
    uint32_t vendor_id = 0;
    uint32_t api_version = 0;  // VK_MAKE_API_VERSION
    uint32_t subgroup_size = 0;
    uint32_t shared_memory_bytes = 0;
    uint32_t max_invocations = 0;
    std::string refusal;  // why vkattn cannot use it; "" if it can
};

// All Vulkan devices of this machine. Throws RuntimeError where there is no Vulkan loader.
std::vector<DeviceInfo> list_devices();

// A device as text in the format of tests/profiles: all that the planner asks of one, and more. `index`: of list_devices.
// Throws RuntimeError.
std::string device_profile(uint32_t index);

// A shape of the matrix unit and the types of its elements, as profiles name them: A x B + C = result.
struct MatrixUnit {
    uint32_t m, n, k;
    std::string a, b, c, result;
    bool usable;  // has what the matrix kernels need
};

// What a device has beside float32 arithmetic. A reason is "" where the thing is there.
struct DeviceUnits {
    std::vector<MatrixUnit> matrices;
    std::string no_matrices;           // why the matrix kernels cannot use these, or there are none
    std::string no_bfloat16;           // arithmetic; tensors of bfloat16 need none
    std::string no_bfloat16_matrices;  // operands of the matrix unit
    std::string no_dot_products;       // of packed 8-bit integers, accelerated; vkattn uses none yet
};

// `index`: of list_devices. Throws RuntimeError.
DeviceUnits device_units(uint32_t index);

struct RuntimeOptions {
    // Index, part of the name (any case) or UUID. "": the environment's VKATTN_DEVICE, else the first usable
    // of discrete, integrated, virtual, CPU.
    std::string device;
    bool validation = false;  // the Khronos layer, core and synchronization checks; see Runtime::messages
    std::vector<const char*> extra_extensions;  // device extensions to enable on top
    // File of compiled pipelines: read at the start if it is there, written at the end. "": none.
    std::string pipeline_cache;
    // The instance is of this Vulkan version, or of an older one that the loader has; at least 1.2.
    uint32_t api_version = VK_API_VERSION_1_3;
};

struct RuntimeHandles {
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family;
};

class Runtime;

// Device memory with an address. Empty buffers (0 bytes) are legal and have address 0. Must not outlive its
// Runtime.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer();
    VkDeviceAddress address() const { return address_; }  // a multiple of 256
    VkBuffer handle() const { return buffer_; }
    uint64_t size_bytes() const { return size_; }

  private:
    friend class Runtime;
    void swap(Buffer& other) noexcept {
        std::swap(runtime_, other.runtime_);
        std::swap(buffer_, other.buffer_);
        std::swap(allocation_, other.allocation_);
        std::swap(address_, other.address_);
        std::swap(size_, other.size_);
    }
    Runtime* runtime_ = nullptr;
    VkBuffer buffer_ = VK_NULL_HANDLE;
    void* allocation_ = nullptr;
    VkDeviceAddress address_ = 0;
    uint64_t size_ = 0;
};

class Runtime {
  public:
    explicit Runtime(const RuntimeOptions& options = {});
    ~Runtime();
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    const DeviceInfo& device() const;
    RuntimeHandles handles() const;
    VkattnContext* context() const;

    Plan backward_plan(const VkattnProblem& problem, const VkattnBackward& backward,
                       const VkattnOptions& options = vkattn::options()) const {
        return Plan(context(), problem, backward, options);
    }
    Plan plan(const VkattnProblem& problem, const VkattnOptions& options = vkattn::options()) const {
        return Plan(context(), problem, options);
    }

    Buffer allocate(uint64_t size_bytes);
    void upload(const Buffer& to, std::span<const std::byte> data, uint64_t offset_bytes = 0);
    void download(const Buffer& from, std::span<std::byte> data, uint64_t offset_bytes = 0);
    void fill(const Buffer& buffer, uint32_t word);  // every 4 bytes; a trailing part of a word stays

    // Records through `record`, submits, waits. Returns the time on the device in milliseconds, by timestamps
    // around the recording (by the host's clock where the queue has none). record_us: time spent in `record`.
    // The first call of this, upload, download or fill throws RuntimeError on a device that executes nothing, as
    // compile-only drivers do; plans can be made on such a device.
    double submit(const std::function<void(VkCommandBuffer)>& record, double* record_us = nullptr);

    // Messages of the validation layer so far, each one line or more; empty is good. Only with
    // options.validation.
    std::vector<std::string> messages() const;

  private:
    friend class Buffer;
    void release(Buffer& buffer) noexcept;
    void probe();
    void check_execution();
    double execute(const std::function<void(VkCommandBuffer)>& record, double* record_us = nullptr);
    double submit_locked(const std::function<void(VkCommandBuffer)>& record, double* record_us = nullptr);
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace vkattn
