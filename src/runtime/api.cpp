// The C functions of the runtime: checks what they are given, keeps exceptions in.
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "cache_file.hpp"
#include "guarded.hpp"
#include "runtime.hpp"
#include "struct_sizes.hpp"

using namespace vkattn;
using namespace vkattn::core;

namespace vkattn::core {

// What the runtime's structs were in version 0.1, and have become.
VKATTN_FIRST_VERSION(VkattnDeviceInfo, refusal, (FirstVersion{1184, 864, 0}))
VKATTN_FIRST_VERSION(VkattnRuntimeOptions, validation, (FirstVersion{48, 40, 7}))
VKATTN_LATER_VERSIONS(VkattnRuntimeOptions, self_test, 56, 72, 88)
VKATTN_FIRST_VERSION(VkattnRun, progress_user, (FirstVersion{48, 40, 7}))
VKATTN_LATER_VERSIONS(VkattnRun, most_submissions, 88, 96)

}  // namespace vkattn::core

namespace {

constexpr const char* lost =
    "the device is lost: its driver has reset or removed it, and the runtime can only be closed; a dispatch "
    "that "
    "ran longer than the driver allows may have been the cause";

// Runs the body of an API function, which throws or returns. `doing`: what messages say of a Vulkan call that fails.
template <class Body>
VkattnStatus answer(VkattnError* error, const char* doing, Body body) {
    return guarded(error, [&]() -> Result<bool> {
        try {
            body();
            return true;
        } catch (const Error& e) {
            return Failure{e.status(), e.field(), e.message(), e.vk_result()};
        } catch (const runtime::VulkanError& e) {
            const VkResult result = e.result();
            if (result == VK_ERROR_DEVICE_LOST) return Failure{VKATTN_DEVICE_LOST, "", lost, result};
            const bool host = result == VK_ERROR_OUT_OF_HOST_MEMORY;
            return Failure{host ? VKATTN_OUT_OF_HOST_MEMORY : VKATTN_DEVICE_ERROR, "",
                           fmt::format("{}: {}", doing, e.what()), result};
        }
    });
}

[[noreturn]] void refuse(const char* field, const char* message = "is null") {
    runtime::fail(VKATTN_INVALID_ARGUMENT, message, field);
}

// Returns the caller's struct, with the defaults of the fields that it lacks.
template <class T>
T read_from(const char* name, const T* given) {
    T defaults{};
    defaults.struct_size = sizeof defaults;
    const Result<T> read = read_struct(name, given, defaults);
    if (!read) runtime::fail(read.failure().status, read.failure().message, read.failure().field.c_str());
    return *read;
}

// Writes as much of a struct as the caller has.
template <class T>
void write_to(T* given, const T& made) {
    const size_t size = given->struct_size;
    std::memcpy(given, &made, size);
    given->struct_size = size;
}

runtime::Options read_options(const VkattnRuntimeOptions* given) {
    runtime::Options chosen;
    if (given == nullptr) return chosen;
    const VkattnRuntimeOptions o = read_from("options", given);
    if (o.device != nullptr) chosen.device = o.device;
    if (o.pipeline_cache != nullptr) chosen.pipeline_cache = o.pipeline_cache;
    if (runtime::is_foreign_file(chosen.pipeline_cache))
        refuse("options.pipeline_cache", "is a file that vkattn has not written, which it would replace");
    if (o.extra_extension_count != 0 && o.extra_extensions == nullptr)
        refuse("options.extra_extensions", "is null, but its count is not 0");
    chosen.extra_extensions.assign(o.extra_extensions, o.extra_extensions + o.extra_extension_count);
    if (o.api_version != 0) chosen.api_version = o.api_version;
    if (chosen.api_version < VK_API_VERSION_1_2) refuse("options.api_version", "is below Vulkan 1.2");
    chosen.validation = o.validation != 0;
    if (o.self_test > VKATTN_SELF_TEST_NEVER) refuse("options.self_test", "is not a VkattnSelfTest");
    chosen.self_test = static_cast<VkattnSelfTest>(o.self_test);
    if (o.self_test_progress != nullptr)
        chosen.self_test_stops = [o](uint32_t done, uint32_t steps, const char* doing) {
            return o.self_test_progress(o.self_test_user, done, steps, doing) != 0;
        };
    if (o.cache_failed != nullptr)
        chosen.cache_failed = [o](const char* why) {
            try {
                o.cache_failed(o.cache_user, why);
            } catch (...) {  // it may be called by a destructor
            }
        };
    return chosen;
}

// Gives the caller, who may only ask for its length, what is to be said of a device.
VkattnStatus give_text(std::string (*text_of)(uint32_t), uint32_t index, char* text, size_t capacity,
                       size_t* length, VkattnError* error) {
    return answer(error, "asking the device", [&] {
        if (length == nullptr) refuse("length");
        if (text == nullptr && capacity != 0) refuse("text");
        const std::string all = text_of(index);
        *length = all.size();
        if (capacity != 0) copy_text(text, capacity, all);
    });
}

// Makes an object of the runtime for the caller, who gets null where it fails. `field`: what the argument is called.
template <class T, class... Args>
void give_new(T** made, const char* field, VkattnRuntime* runtime, Args... args) {
    if (made == nullptr) refuse(field);
    *made = nullptr;
    if (runtime == nullptr) refuse("runtime");
    *made = std::make_unique<T>(*runtime, args...).release();
}

// Runs body(VkattnRun&) and gives the caller, who may not want it, what the run took.
template <class Body>
VkattnStatus run(VkattnRuntime* runtime, VkattnRun* given, VkattnError* error, Body body) {
    return answer(error, "running on the device", [&] {
        if (runtime == nullptr) refuse("runtime");
        VkattnRun run{};
        if (given != nullptr) run = read_from("run", given);
        body(run);
        if (given != nullptr) write_to(given, run);
    });
}

}  // namespace

VkattnStatus vkattn_runtime_devices(VkattnDeviceInfo* devices, uint32_t capacity, uint32_t* count,
                                    VkattnError* error) {
    return answer(error, "enumerating devices", [&] {
        if (count == nullptr) refuse("count");
        *count = 0;
        size_t distance = 0;  // between the caller's structs
        if (capacity != 0) distance = read_from("devices", devices).struct_size;
        const std::vector<VkattnDeviceInfo> all = runtime::list_devices();
        char* at = reinterpret_cast<char*>(devices);
        for (size_t i = 0; i < std::min<size_t>(capacity, all.size()); i++, at += distance) {
            std::memcpy(at, &all[i], distance);
            std::memcpy(at, &distance, sizeof distance);
        }
        *count = static_cast<uint32_t>(all.size());
    });
}

VkattnStatus vkattn_runtime_profile(uint32_t index, char* text, size_t capacity, size_t* length,
                                    VkattnError* error) {
    return give_text(runtime::device_profile, index, text, capacity, length, error);
}

VkattnStatus vkattn_runtime_units(uint32_t index, char* text, size_t capacity, size_t* length,
                                  VkattnError* error) {
    return give_text(runtime::device_units, index, text, capacity, length, error);
}

VkattnStatus vkattn_runtime_open(const VkattnRuntimeOptions* options, VkattnRuntime** runtime,
                                 VkattnError* error) {
    return answer(error, "creating the device", [&] {
        if (runtime == nullptr) refuse("runtime");
        *runtime = nullptr;
        *runtime = std::make_unique<VkattnRuntime>(read_options(options)).release();
    });
}

void vkattn_runtime_close(VkattnRuntime* runtime) {
    delete runtime;
}

VkattnStatus vkattn_runtime_save_cache(VkattnRuntime* runtime, VkattnError* error) {
    return answer(error, "saving the pipeline cache", [&] {
        if (runtime == nullptr) refuse("runtime");
        runtime->save_cache();
    });
}

VkattnContext* vkattn_runtime_context(const VkattnRuntime* runtime) {
    return runtime != nullptr ? runtime->context.get() : nullptr;
}

const VkattnDeviceInfo* vkattn_runtime_device(const VkattnRuntime* runtime) {
    return runtime != nullptr ? &runtime->info : nullptr;
}

const VkattnRuntimeHandles* vkattn_runtime_handles(const VkattnRuntime* runtime) {
    return runtime != nullptr ? &runtime->handles : nullptr;
}

const char* vkattn_runtime_message(const VkattnRuntime* runtime, uint32_t index) {
    if (runtime == nullptr) return nullptr;
    const std::lock_guard lock(runtime->messages_mutex);
    return index < runtime->messages.size() ? runtime->messages[index].c_str() : nullptr;
}

VkattnStatus vkattn_buffer_create(VkattnRuntime* runtime, uint64_t size_bytes, VkattnBuffer** buffer,
                                  VkattnError* error) {
    return answer(error, "allocating device memory",
                  [&] { give_new(buffer, "buffer", runtime, size_bytes); });
}

void vkattn_buffer_destroy(VkattnBuffer* buffer) {
    delete buffer;
}

VkDeviceAddress vkattn_buffer_address(const VkattnBuffer* buffer) {
    return buffer != nullptr ? buffer->address : 0;
}

VkBuffer vkattn_buffer_handle(const VkattnBuffer* buffer) {
    return buffer != nullptr ? buffer->buffer : VK_NULL_HANDLE;
}

uint64_t vkattn_buffer_size(const VkattnBuffer* buffer) {
    return buffer != nullptr ? buffer->size : 0;
}

VkattnStatus vkattn_buffer_write(VkattnBuffer* buffer, uint64_t offset_bytes, const void* data,
                                 uint64_t size_bytes, VkattnError* error) {
    return answer(error, "writing to device memory", [&] {
        if (buffer != nullptr) return buffer->write(offset_bytes, data, size_bytes);
        if (offset_bytes != 0 || size_bytes != 0) refuse("buffer");
    });
}

VkattnStatus vkattn_buffer_read(const VkattnBuffer* buffer, uint64_t offset_bytes, void* data,
                                uint64_t size_bytes, VkattnError* error) {
    return answer(error, "reading from device memory", [&] {
        if (buffer != nullptr) return buffer->read(offset_bytes, data, size_bytes);
        if (offset_bytes != 0 || size_bytes != 0) refuse("buffer");
    });
}

VkattnStatus vkattn_buffer_fill(VkattnBuffer* buffer, uint32_t word, VkattnError* error) {
    return answer(error, "filling device memory", [&] {
        if (buffer != nullptr) buffer->fill(word);
    });
}

VkattnStatus vkattn_buffer_create_exportable(VkattnRuntime* runtime, uint64_t size_bytes,
                                             VkattnBuffer** buffer, VkattnError* error) {
    return answer(error, "allocating device memory",
                  [&] { give_new(buffer, "buffer", runtime, size_bytes, true); });
}

VkattnStatus vkattn_buffer_export(const VkattnBuffer* buffer, int* fd, uint64_t* memory_bytes,
                                  uint32_t* memory_type, VkattnError* error) {
    return answer(error, "exporting device memory", [&] {
        if (buffer == nullptr) refuse("buffer");
        if (fd == nullptr) refuse("fd");
        if (memory_bytes == nullptr) refuse("memory_bytes");
        if (memory_type == nullptr) refuse("memory_type");
        const runtime::SharedMemory shared = runtime::export_memory(*buffer);
        *fd = shared.fd;
        *memory_bytes = shared.size_bytes;
        *memory_type = shared.type;
    });
}

VkattnStatus vkattn_semaphore_create(VkattnRuntime* runtime, uint64_t value, VkattnSemaphore** semaphore,
                                     VkattnError* error) {
    return answer(error, "creating a semaphore", [&] { give_new(semaphore, "semaphore", runtime, value); });
}

void vkattn_semaphore_destroy(VkattnSemaphore* semaphore) {
    delete semaphore;
}

VkattnStatus vkattn_semaphore_export(const VkattnSemaphore* semaphore, int* fd, VkattnError* error) {
    return answer(error, "exporting a semaphore", [&] {
        if (semaphore == nullptr) refuse("semaphore");
        if (fd == nullptr) refuse("fd");
        *fd = semaphore->export_fd();
    });
}

VkattnStatus vkattn_semaphore_wait(const VkattnSemaphore* semaphore, uint64_t value, uint64_t timeout_ns,
                                   int* has_passed, VkattnError* error) {
    return answer(error, "waiting for a semaphore", [&] {
        if (semaphore == nullptr) refuse("semaphore");
        if (has_passed == nullptr) refuse("has_passed");
        *has_passed = semaphore->wait(value, timeout_ns) ? 1 : 0;
    });
}

VkattnStatus vkattn_semaphore_signal(const VkattnSemaphore* semaphore, uint64_t value, VkattnError* error) {
    return answer(error, "signalling a semaphore", [&] {
        if (semaphore == nullptr) refuse("semaphore");
        semaphore->signal(value);
    });
}

VkattnStatus vkattn_runtime_run_forward(VkattnRuntime* runtime, const VkattnPlan* plan,
                                        const VkattnForwardArgs* args, VkattnRun* run, VkattnError* error) {
    return ::run(runtime, run, error, [&](VkattnRun& r) { runtime::run_forward(*runtime, plan, args, r); });
}

VkattnStatus vkattn_runtime_run_backward(VkattnRuntime* runtime, const VkattnPlan* plan,
                                         const VkattnBackwardArgs* args, VkattnRun* run, VkattnError* error) {
    return ::run(runtime, run, error, [&](VkattnRun& r) { runtime::run_backward(*runtime, plan, args, r); });
}

VkattnStatus vkattn_runtime_run_combine(VkattnRuntime* runtime, const VkattnPlan* plan,
                                        const VkattnCombineArgs* args, VkattnRun* run, VkattnError* error) {
    return ::run(runtime, run, error, [&](VkattnRun& r) { runtime::run_combine(*runtime, plan, args, r); });
}

VkattnStatus vkattn_runtime_run_block_map(VkattnRuntime* runtime, const VkattnPlan* plan,
                                          const VkattnForwardArgs* args, VkattnRun* run, VkattnError* error) {
    return ::run(runtime, run, error, [&](VkattnRun& r) { runtime::run_block_map(*runtime, plan, args, r); });
}

VkattnStatus vkattn_runtime_submit(VkattnRuntime* runtime, VkattnRecord record, void* user, VkattnRun* run,
                                   VkattnError* error) {
    return ::run(runtime, run, error, [&](VkattnRun& r) {
        if (record == nullptr) refuse("record");
        const runtime::Took took = runtime->submit(
            [&](VkCommandBuffer commands) {
                VkattnError failed{};
                failed.status = record(commands, user, &failed);
                if (failed.status != VKATTN_OK) throw Error(failed);
            },
            runtime::order_of(*runtime, r));
        r.time_ms = took.time_ms;
        r.record_us = took.record_us;
        r.submissions = 1;
    });
}

void vkattn_runtime_barrier(const VkattnRuntime* runtime, VkCommandBuffer command_buffer) {
    if (runtime == nullptr || command_buffer == nullptr) return;
    constexpr VkPipelineStageFlags copies = VK_PIPELINE_STAGE_TRANSFER_BIT;
    runtime->device->barrier(
        command_buffer, {VKATTN_LAST_STAGES | copies, VKATTN_LAST_ACCESS | VK_ACCESS_TRANSFER_WRITE_BIT},
        {VKATTN_FIRST_STAGES | copies, VKATTN_FIRST_ACCESS | VK_ACCESS_TRANSFER_READ_BIT});
}
