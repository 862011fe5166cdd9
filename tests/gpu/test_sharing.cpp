// These tests are about memory that one device exports and another one imports, and about semaphores that order runs
// with other work.
#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include "api_calls.hpp"
#include "case_suite.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

struct OnRuntime : OnDevice {
    VkattnRuntime* const r = runtime.get();
    const VkattnRuntimeHandles& handles = *vkattn_runtime_handles(r);
};

// Makes a call that has to succeed. call() makes each twice, which is for refusals.
template <class Function, class... Args>
void require(Function function, Args... args) {
    VkattnError error{};
    const VkattnStatus status = function(args..., &error);
    CAPTURE(error.message);
    REQUIRE(status == VKATTN_OK);
}

template <class Function>
Function function_of(const VkattnRuntimeHandles& of, const char* name) {
    const auto get = reinterpret_cast<PFN_vkGetDeviceProcAddr>(
        of.get_instance_proc_addr(of.instance, "vkGetDeviceProcAddr"));
    return reinterpret_cast<Function>(get(of.device, name));
}

// This is a buffer whose memory another device has exported.
class Imported {
  public:
    Imported(const VkattnRuntimeHandles& to, int fd, uint64_t buffer_bytes, uint64_t memory_bytes,
             uint32_t memory_type)
        : to_(to) {
        constexpr auto type = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
        const VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                        nullptr, type};
        VkBufferCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
        info.pNext = &external;
        info.size = buffer_bytes;
        info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                     VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
        REQUIRE(function_of<PFN_vkCreateBuffer>(to, "vkCreateBuffer")(to.device, &info, nullptr, &buffer) ==
                VK_SUCCESS);
        VkMemoryRequirements needs{};
        function_of<PFN_vkGetBufferMemoryRequirements>(to, "vkGetBufferMemoryRequirements")(to.device, buffer,
                                                                                            &needs);
        CHECK(needs.size <= memory_bytes);
        CHECK((needs.memoryTypeBits >> memory_type & 1) == 1);
        const VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, nullptr,
                                              VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};
        const VkMemoryDedicatedAllocateInfo dedicated{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO,
                                                      &flags, VK_NULL_HANDLE, buffer};
        const VkImportMemoryFdInfoKHR imported{VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, &dedicated, type,
                                               fd};
        const VkMemoryAllocateInfo memory{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &imported, memory_bytes,
                                          memory_type};
        REQUIRE(function_of<PFN_vkAllocateMemory>(to, "vkAllocateMemory")(to.device, &memory, nullptr,
                                                                          &memory_) == VK_SUCCESS);
        REQUIRE(function_of<PFN_vkBindBufferMemory>(to, "vkBindBufferMemory")(to.device, buffer, memory_,
                                                                              0) == VK_SUCCESS);
    }
    Imported(const Imported&) = delete;
    Imported& operator=(const Imported&) = delete;
    ~Imported() {
        function_of<PFN_vkDestroyBuffer>(to_, "vkDestroyBuffer")(to_.device, buffer, nullptr);
        function_of<PFN_vkFreeMemory>(to_, "vkFreeMemory")(to_.device, memory_, nullptr);
    }

    VkBuffer buffer = VK_NULL_HANDLE;

  private:
    const VkattnRuntimeHandles& to_;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
};

void copy(Runtime& on, VkBuffer from, VkBuffer to, uint64_t size_bytes) {
    const auto record =
        function_of<PFN_vkCmdCopyBuffer>(*vkattn_runtime_handles(on.get()), "vkCmdCopyBuffer");
    const VkBufferCopy all{0, 0, size_bytes};
    on.submit([&](VkCommandBuffer c) { record(c, from, to, 1, &all); });
}

}  // namespace

TEST_CASE_FIXTURE(OnRuntime, "another device reads and writes exported memory, and outlives its buffer") {
    constexpr uint64_t count = 1001, bytes = count * sizeof(uint32_t);
    VkattnBuffer* buffer = nullptr;
    VkattnError error{};
    if (vkattn_buffer_create_exportable(r, bytes, &buffer, &error) == VKATTN_UNSUPPORTED)
        return skip(error.message);
    REQUIRE(error.status == VKATTN_OK);
    CHECK(vkattn_buffer_size(buffer) == bytes);
    CHECK(vkattn_buffer_address(buffer) % 256 == 0);
    std::vector<uint32_t> words(count), got(count);
    for (uint32_t i = 0; i < count; i++) words[i] = 3 * i + 1;
    require(vkattn_buffer_write, buffer, 0, words.data(), bytes);

    int fd = -1, unused = -1;
    uint64_t memory_bytes = 0;
    uint32_t memory_type = UINT32_MAX;
    require(vkattn_buffer_export, buffer, &unused, &memory_bytes, &memory_type);
    close(unused);  // each export is a descriptor of its own
    require(vkattn_buffer_export, buffer, &fd, &memory_bytes, &memory_type);
    CHECK(memory_bytes >= bytes);

    RuntimeOptions options;
    options.device = vkattn_runtime_device(r)->uuid;
    Runtime other(options);
    {
        const Imported imported(*vkattn_runtime_handles(other.get()), fd, (bytes + 3) / 4 * 4, memory_bytes,
                                memory_type);
        const Buffer own = other.allocate(bytes);
        copy(other, imported.buffer, vkattn_buffer_handle(own.get()), bytes);
        other.download(own, std::as_writable_bytes(std::span(got)));
        CHECK(got == words);

        for (uint32_t& word : words) word += 7;
        other.upload(own, std::as_bytes(std::span(words)));
        copy(other, vkattn_buffer_handle(own.get()), imported.buffer, bytes);
        require(vkattn_buffer_read, buffer, 0, got.data(), bytes);
        CHECK(got == words);

        vkattn_buffer_destroy(buffer);
        copy(other, imported.buffer, vkattn_buffer_handle(own.get()), bytes);
        std::fill(got.begin(), got.end(), 0);
        other.download(own, std::as_writable_bytes(std::span(got)));
        CHECK(got == words);
    }
}

TEST_CASE_FIXTURE(OnRuntime,
                  "a run begins when its semaphore has the value, and signals another at its end") {
    VkattnSemaphore *begin = nullptr, *end = nullptr;
    require(vkattn_semaphore_create, r, 5, &begin);
    require(vkattn_semaphore_create, r, 0, &end);
    const auto has = [](const VkattnSemaphore* semaphore, uint64_t value) {
        int has_passed = -1;
        require(vkattn_semaphore_wait, semaphore, value, 0, &has_passed);
        return has_passed == 1;
    };
    CHECK(has(begin, 5));
    CHECK(!has(begin, 6));

    const Job job(runtime.context(), "b=3 h=2 sq=5 skv=203 splits=4 lengths=203,0,60 causal max_flops=20000");
    REQUIRE(job.plan.segments() > 1);
    const Forward memory = job.forward(device);
    VkattnRun run = run_info();
    run.wait_semaphore = begin;
    run.wait_value = 6;
    run.signal_semaphore = end;
    run.signal_value = 3;
    std::atomic<bool> signalled = false;
    std::jthread host([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        CHECK(!has(end, 1));
        signalled = true;
        require(vkattn_semaphore_signal, begin, 6);
    });
    run = runtime.run(job.plan, memory.args(), run);
    CHECK(signalled);
    host.join();
    CHECK(has(end, 3));
    CHECK(!has(end, 4));
    check_right(job, memory);

    // If a run takes several calls, the first one waits, and the last one signals.
    run.wait_value = 6;
    run.signal_value = 9;
    run.most_submissions = run.segments_at_once = 1;
    do {
        CHECK(!has(end, 4));
        run = runtime.run(job.plan, memory.args(), run);
        run.wait_value = UINT64_MAX;  // which it never has
    } while (run.first_segment != 0);
    CHECK(has(end, 9));
    run.wait_value = 6;

    RuntimeOptions options;
    options.device = vkattn_runtime_device(r)->uuid;
    Runtime other(options);
    const VkattnForwardArgs args = memory.args();
    check_invalid(call(vkattn_runtime_run_forward, other.get(), job.plan.get(), &args, &run),
                  "run.wait_semaphore");
    run.wait_semaphore = nullptr;
    check_invalid(call(vkattn_runtime_run_forward, other.get(), job.plan.get(), &args, &run),
                  "run.signal_semaphore");
    int fd = -1;
    VkattnError error{};
    if (vkattn_semaphore_export(begin, &fd, &error) == VKATTN_OK)
        close(fd);
    else
        CHECK(error.status == VKATTN_UNSUPPORTED);
    vkattn_semaphore_destroy(begin);
    vkattn_semaphore_destroy(end);
}

TEST_CASE_FIXTURE(OnRuntime, "asynchronous runs end in order, and what waits has waited for all of them") {
    VkattnSemaphore *begin = nullptr, *end = nullptr;
    require(vkattn_semaphore_create, r, 0, &begin);
    require(vkattn_semaphore_create, r, 0, &end);
    const auto has = [&](uint64_t value, uint64_t timeout_ns) {
        int has_passed = -1;
        require(vkattn_semaphore_wait, end, value, timeout_ns, &has_passed);
        return has_passed == 1;
    };
    const Job job(runtime.context(), "h=2 sq=5 skv=203 causal");
    REQUIRE(job.plan.segments() == 1);
    REQUIRE(job.plan.scratch().size_bytes == 0);
    const Forward memory = job.forward(device);
    VkattnRun run = run_info();
    run.asynchronous = 1;
    const VkattnForwardArgs args = memory.args();
    check_invalid(call(vkattn_runtime_run_forward, r, job.plan.get(), &args, &run), "run.signal_semaphore");

    // These wait on the device, and the calls return all the same.
    run.wait_semaphore = begin;
    run.wait_value = 1;
    run.signal_semaphore = end;
    for (uint64_t i = 1; i <= 5; i++) {
        run.signal_value = i;
        run = runtime.run(job.plan, memory.args(), run);
        CHECK(run.first_segment == 0);
    }
    CHECK(!has(1, 20'000'000));
    require(vkattn_semaphore_signal, begin, 1);
    CHECK(has(5, UINT64_MAX));
    check_right(job, memory);

    // These are more than may be under way at once.
    for (uint64_t i = 6; i <= 60; i++) {
        run.signal_value = i;
        run = runtime.run(job.plan, memory.args(), run);
    }
    const Buffer other = runtime.allocate(4);
    require(vkattn_buffer_fill, other.get(), 1);
    CHECK(has(60, 0));
    check_right(job, memory);

    const Job split(runtime.context(), "h=2 sq=5 skv=203 splits=4");
    const Forward parts = split.forward(device);
    VkattnForwardArgs without = parts.args();
    without.scratch_buffer = VK_NULL_HANDLE;
    run.signal_value = 61;
    check_invalid(call(vkattn_runtime_run_forward, r, split.plan.get(), &without, &run),
                  "args.scratch_buffer");

    // A submission of the caller's has the same order.
    run.wait_value = 2;
    run.signal_value = 62;
    const auto record = [](VkCommandBuffer, void*, VkattnError*) { return VKATTN_OK; };
    require(vkattn_runtime_submit, r, +record, nullptr, &run);
    CHECK(!has(62, 0));
    require(vkattn_semaphore_signal, begin, 2);
    CHECK(has(62, UINT64_MAX));
    vkattn_semaphore_destroy(begin);
    vkattn_semaphore_destroy(end);
}

TEST_CASE_FIXTURE(OnRuntime, "sharing refuses null and what cannot be exported") {
    VkattnBuffer* buffer = nullptr;
    int fd = -1, passed = 0;
    uint64_t bytes = 0;
    uint32_t type = 0;
    check_invalid(call(vkattn_buffer_create_exportable, nullptr, 4, &buffer), "runtime");
    check_invalid(call(vkattn_buffer_create_exportable, r, 4, nullptr), "buffer");
    check_invalid(call(vkattn_buffer_create_exportable, r, 0, &buffer), "size_bytes");
    const Buffer plain = runtime.allocate(4);
    check_invalid(call(vkattn_buffer_export, plain.get(), &fd, &bytes, &type), "buffer");
    check_invalid(call(vkattn_buffer_export, nullptr, &fd, &bytes, &type), "buffer");
    check_invalid(call(vkattn_buffer_export, plain.get(), nullptr, &bytes, &type), "fd");
    check_invalid(call(vkattn_buffer_export, plain.get(), &fd, nullptr, &type), "memory_bytes");
    check_invalid(call(vkattn_buffer_export, plain.get(), &fd, &bytes, nullptr), "memory_type");
    VkattnSemaphore* semaphore = nullptr;
    check_invalid(call(vkattn_semaphore_create, nullptr, 0, &semaphore), "runtime");
    check_invalid(call(vkattn_semaphore_create, r, 0, nullptr), "semaphore");
    check_invalid(call(vkattn_semaphore_export, nullptr, &fd), "semaphore");
    check_invalid(call(vkattn_semaphore_wait, nullptr, 0, 0, &passed), "semaphore");
    check_invalid(call(vkattn_semaphore_signal, nullptr, 0), "semaphore");
    require(vkattn_semaphore_create, r, 0, &semaphore);
    check_invalid(call(vkattn_semaphore_export, semaphore, nullptr), "fd");
    check_invalid(call(vkattn_semaphore_wait, semaphore, 0, 0, nullptr), "has_passed");
    vkattn_semaphore_destroy(semaphore);
    vkattn_semaphore_destroy(nullptr);
}
