// The runtime in C++20: owning handles and exceptions over the C functions of runtime.h, where the contract stands.
// Header-only, as vkattn.hpp is over vkattn.h.
//
// Errors are exceptions: RuntimeError for what the functions of runtime.h return, vkattn::Error for those of vkattn.h.
// An exception that leaves the function given to Runtime::submit reaches submit's caller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "vkattn/runtime.h"
#include "vkattn/vkattn.hpp"

namespace vkattn {

// The runtime throws it: there is no Vulkan, no such device, or no memory; the device is lost; or an argument is at
// fault.
class RuntimeError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
    explicit RuntimeError(const VkattnError& error)
        : std::runtime_error(Error(error).what()), status_(error.status), field_(error.field) {}
    VkattnStatus status() const { return status_; }
    // The argument at fault, as "options.pipeline_cache", or "". what() begins with it.
    const std::string& field() const { return field_; }

  private:
    VkattnStatus status_ = VKATTN_DEVICE_ERROR;
    std::string field_;
};

namespace detail {

template <class Function, class... Args>
void call_runtime(Function function, Args... args) {
    VkattnError error;
    if (function(args..., &error) != VKATTN_OK) throw RuntimeError(error);
}

}  // namespace detail

// This is VkattnDeviceInfo with strings of its own.
struct DeviceInfo {
    DeviceInfo() = default;
    explicit DeviceInfo(const VkattnDeviceInfo& d)
        : index(d.index),
          name(d.name),
          driver(d.driver),
          uuid(d.uuid),
          type(d.type),
          vendor_id(d.vendor_id),
          api_version(d.api_version),
          subgroup_size(d.subgroup_size),
          shared_memory_bytes(d.shared_memory_bytes),
          max_invocations(d.max_invocations),
          refusal(d.refusal) {}

    uint32_t index = 0;
    std::string name, driver, uuid, type;
    uint32_t vendor_id = 0;
    uint32_t api_version = 0;
    uint32_t subgroup_size = 0;
    uint32_t shared_memory_bytes = 0;
    uint32_t max_invocations = 0;
    std::string refusal;
};

// This is VkattnRuntimeOptions with strings of its own.
struct RuntimeOptions {
    std::string device;
    bool validation = false;
    std::vector<const char*> extra_extensions;
    std::string pipeline_cache;
    uint32_t api_version = VK_API_VERSION_1_3;
    VkattnSelfTest self_test = VKATTN_SELF_TEST_ONCE;
    // Returns true to stop the self-test; see VkattnRuntimeOptions::self_test_progress. An exception stops it, too, and
    // leaves the constructor of Runtime.
    std::function<bool(uint32_t done, uint32_t steps, const char* doing)> self_test_progress;
    // See VkattnRuntimeOptions::cache_failed. The destructor of Runtime calls it, too, so that it must not throw.
    std::function<void(const std::string& why)> cache_failed;
};

using RuntimeHandles = VkattnRuntimeHandles;

inline VkattnRun run_info() {
    VkattnRun r;
    vkattn_run_init(&r);
    return r;
}

// See vkattn_runtime_devices.
inline std::vector<DeviceInfo> list_devices() {
    uint32_t count = 0;
    detail::call_runtime(vkattn_runtime_devices, nullptr, 0u, &count);
    VkattnDeviceInfo unknown;
    vkattn_device_info_init(&unknown);
    std::vector<VkattnDeviceInfo> devices(count, unknown);
    detail::call_runtime(vkattn_runtime_devices, devices.data(), count, &count);
    return {devices.begin(), devices.begin() + std::min<std::ptrdiff_t>(count, std::ssize(devices))};
}

namespace detail {
template <class Function>
std::string device_text(Function function, uint32_t index) {
    size_t length = 0;
    call_runtime(function, index, nullptr, size_t{0}, &length);
    std::string text(length + 1, '\0');
    call_runtime(function, index, text.data(), text.size(), &length);
    text.resize(length);
    return text;
}
}  // namespace detail

// See vkattn_runtime_profile.
inline std::string device_profile(uint32_t index) {
    return detail::device_text(vkattn_runtime_profile, index);
}

// See vkattn_runtime_units: JSON.
inline std::string device_units(uint32_t index) {
    return detail::device_text(vkattn_runtime_units, index);
}

// See vkattn_buffer_create. A buffer must not outlive its Runtime.
class Buffer {
  public:
    Buffer() = default;
    VkattnBuffer* get() const { return handle_.get(); }
    VkDeviceAddress address() const { return vkattn_buffer_address(get()); }
    VkBuffer handle() const { return vkattn_buffer_handle(get()); }
    uint64_t size_bytes() const { return vkattn_buffer_size(get()); }

  private:
    friend class Runtime;
    explicit Buffer(VkattnBuffer* buffer) : handle_(buffer) {}
    detail::Handle<VkattnBuffer, vkattn_buffer_destroy> handle_;
};

class Runtime {
  public:
    explicit Runtime(const RuntimeOptions& options = {}) : cache_failed_(options.cache_failed) {
        VkattnRuntimeOptions o;
        vkattn_runtime_options_init(&o);
        o.device = options.device.c_str();
        o.validation = options.validation;
        o.extra_extension_count = static_cast<uint32_t>(options.extra_extensions.size());
        o.extra_extensions = options.extra_extensions.data();
        o.pipeline_cache = options.pipeline_cache.c_str();
        o.api_version = options.api_version;
        o.self_test = static_cast<uint64_t>(options.self_test);
        struct Call {
            const RuntimeOptions& options;
            std::exception_ptr thrown;
        } call{options, nullptr};
        o.self_test_user = &call;
        if (options.self_test_progress)
            o.self_test_progress = [](void* user, uint32_t done, uint32_t steps, const char* doing) {
                auto& made = *static_cast<Call*>(user);
                try {
                    return made.options.self_test_progress(done, steps, doing) ? 1 : 0;
                } catch (...) {
                    made.thrown = std::current_exception();
                    return 1;
                }
            };
        o.cache_user = &cache_failed_;
        if (cache_failed_)
            o.cache_failed = [](void* user, const char* why) {
                (*static_cast<const std::function<void(const std::string&)>*>(user))(why);
            };
        VkattnRuntime* made = nullptr;
        detail::call_runtime(vkattn_runtime_open, &o, &made);
        handle_ = Handle(made);
        if (call.thrown) std::rethrow_exception(call.thrown);
        device_ = DeviceInfo(*vkattn_runtime_device(made));
    }
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    VkattnRuntime* get() const { return handle_.get(); }
    VkattnContext* context() const { return vkattn_runtime_context(get()); }
    const DeviceInfo& device() const { return device_; }
    RuntimeHandles handles() const { return *vkattn_runtime_handles(get()); }

    Plan plan(const VkattnProblem& problem, const VkattnOptions& options = vkattn::options()) const {
        return Plan(context(), problem, options);
    }
    Plan backward_plan(const VkattnProblem& problem, const VkattnBackward& backward,
                       const VkattnOptions& options = vkattn::options()) const {
        return Plan(context(), problem, backward, options);
    }
    Plan combine_plan(const VkattnCombine& combine) const { return Plan(context(), combine); }
    Plan block_map_plan(const VkattnProblem& problem) const { return Plan::of_block_map(context(), problem); }

    Buffer allocate(uint64_t size_bytes) {
        VkattnBuffer* made = nullptr;
        detail::call_runtime(vkattn_buffer_create, get(), size_bytes, &made);
        return Buffer(made);
    }
    void upload(const Buffer& to, std::span<const std::byte> data, uint64_t offset_bytes = 0) {
        detail::call_runtime(vkattn_buffer_write, to.get(), offset_bytes, data.data(), data.size());
    }
    void download(const Buffer& from, std::span<std::byte> data, uint64_t offset_bytes = 0) {
        detail::call_runtime(vkattn_buffer_read, from.get(), offset_bytes, data.data(), data.size());
    }
    void fill(const Buffer& buffer, uint32_t word) {
        detail::call_runtime(vkattn_buffer_fill, buffer.get(), word);
    }

    // Brings scratch where the arguments have none, submits in pieces, waits; see vkattn_runtime_run_forward. `last`:
    // what the last run of the plan returned, for its pace.
    VkattnRun run(const Plan& plan, const VkattnForwardArgs& args, VkattnRun last = run_info()) {
        detail::call_runtime(vkattn_runtime_run_forward, get(), plan.get(), &args, &last);
        return last;
    }
    VkattnRun run(const Plan& plan, const VkattnBackwardArgs& args, VkattnRun last = run_info()) {
        detail::call_runtime(vkattn_runtime_run_backward, get(), plan.get(), &args, &last);
        return last;
    }
    VkattnRun run(const Plan& plan, const VkattnCombineArgs& args, VkattnRun last = run_info()) {
        detail::call_runtime(vkattn_runtime_run_combine, get(), plan.get(), &args, &last);
        return last;
    }
    VkattnRun run_block_map(const Plan& plan, const VkattnForwardArgs& args, VkattnRun last = run_info()) {
        detail::call_runtime(vkattn_runtime_run_block_map, get(), plan.get(), &args, &last);
        return last;
    }

    // Records through `record`, submits, waits; see vkattn_runtime_submit. Returns milliseconds on the device.
    double submit(const std::function<void(VkCommandBuffer)>& record) {
        struct Call {
            const std::function<void(VkCommandBuffer)>& record;
            std::exception_ptr thrown;
        } call{record, nullptr};
        const VkattnRecord kept = [](VkCommandBuffer commands, void* user, VkattnError*) {
            auto& made = *static_cast<Call*>(user);
            try {
                made.record(commands);
                return VKATTN_OK;
            } catch (...) {
                made.thrown = std::current_exception();
                return VKATTN_INTERNAL_ERROR;
            }
        };
        VkattnRun run = run_info();
        VkattnError error;
        const VkattnStatus status = vkattn_runtime_submit(get(), kept, &call, &run, &error);
        if (call.thrown) std::rethrow_exception(call.thrown);
        if (status != VKATTN_OK) throw RuntimeError(error);
        return run.time_ms;
    }
    // Records the barrier between two recordings in one submission; see vkattn_runtime_barrier.
    void barrier(VkCommandBuffer commands) const { vkattn_runtime_barrier(get(), commands); }

    // Writes the pipeline cache now, and throws where it cannot, which the destructor does not; see
    // vkattn_runtime_save_cache.
    void save_cache() { detail::call_runtime(vkattn_runtime_save_cache, get()); }

    // Returns the messages so far; none is good. See vkattn_runtime_message. Those of the validation layer may have
    // several lines.
    std::vector<std::string> messages() const {
        std::vector<std::string> all;
        while (const char* text = vkattn_runtime_message(get(), static_cast<uint32_t>(all.size())))
            all.emplace_back(text);
        return all;
    }

  private:
    using Handle = detail::Handle<VkattnRuntime, vkattn_runtime_close>;
    std::function<void(const std::string&)> cache_failed_;  // outlives handle_, which calls it
    Handle handle_;
    DeviceInfo device_;
};

}  // namespace vkattn
