// The C functions of the runtime: what they refuse, and that a run brings scratch and submits in pieces. And its memory
// where the device has none left.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "runtime/memory.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

struct OnRuntime : OnDevice {
    VkattnRuntime* const r = runtime.get();
};

std::vector<std::pair<uint32_t, uint32_t>> seen_progress;  // segments done, and of how many

VkattnRun run_with_progress() {
    VkattnRun run = run_info();
    run.progress = [](void* user, uint32_t done, uint32_t segments) {
        static_cast<decltype(seen_progress)*>(user)->emplace_back(done, segments);
    };
    run.progress_user = &seen_progress;
    seen_progress.clear();
    return run;
}

VkattnProblem one_key() {
    VkattnProblem p = problem();
    p.seqlen_q = p.seqlen_kv = 1;
    p.head_dim_qk = p.head_dim_v = 8;
    return p;
}

}  // namespace

TEST_CASE_FIXTURE(OnRuntime, "a run brings scratch, submits in pieces and tells of its progress") {
    for (const char* text : {"b=3 h=2 sq=5 skv=203 splits=4 lengths=203,0,60 causal max_flops=20000",
                             "b=2 h=3 s=33 kernel=materialized max_scratch=9728"}) {
        const Job job(runtime.context(), text);
        CAPTURE(job.c.text);
        const uint32_t segments = job.plan.segments();
        CHECK(segments > 1);
        CHECK(job.plan.scratch().size_bytes > 0);
        const Forward whole = job.forward(device), own = job.forward(device), pieces = job.forward(device);
        runtime.submit([&](VkCommandBuffer c) { job.plan.cmd_forward(c, whole.args()); });

        // Scratch of the caller's, and all segments at once.
        VkattnRun run = run_with_progress();
        run.segments_at_once = segments;
        run = runtime.run(job.plan, own.args(), run);
        check_right(job, own);
        CHECK(run.submissions == 1);
        CHECK(seen_progress == decltype(seen_progress){{segments, segments}});

        // Scratch of the run's, and one segment at first.
        VkattnForwardArgs args = pieces.args();
        args.scratch_buffer = VK_NULL_HANDLE;
        args.scratch_address = 0;
        run = runtime.run(job.plan, args, run_with_progress());
        check_right(job, pieces);
        CHECK(pieces.outcome().same_bits(whole.outcome()));
        CHECK(run.submissions > 1);
        CHECK(run.submissions <= segments);
        CHECK(run.time_ms > 0);
        CHECK(run.segments_at_once >= 1);
        CHECK(seen_progress.size() == run.submissions);
        CHECK(seen_progress.front() == std::pair{1u, segments});
        CHECK(seen_progress.back() == std::pair{segments, segments});
    }
}

TEST_CASE_FIXTURE(OnRuntime,
                  "a run of several calls returns between its submissions, and ends with the same bits") {
    const Job job(runtime.context(), "b=3 h=2 sq=5 skv=203 splits=4 lengths=203,0,60 causal max_flops=20000");
    const uint32_t segments = job.plan.segments();
    REQUIRE(segments > 3);
    const Forward whole = job.forward(device), pieces = job.forward(device);
    runtime.run(job.plan, whole.args());

    VkattnRun run = run_with_progress();
    run.most_submissions = 1;
    uint32_t calls = 0;
    do {
        const uint32_t first = run.first_segment;
        run = runtime.run(job.plan, pieces.args(), run);
        calls++;
        CHECK(run.submissions == 1);
        CHECK((run.first_segment == 0 || run.first_segment > first));
        CHECK(seen_progress.back().first == (run.first_segment == 0 ? segments : run.first_segment));
        REQUIRE(calls <= segments);
    } while (run.first_segment != 0);
    CHECK(calls > 1);
    check_right(job, pieces);
    CHECK(pieces.outcome().same_bits(whole.outcome()));

    const auto refused = [&](uint32_t most_submissions, uint32_t first_segment,
                             const VkattnForwardArgs& args) {
        VkattnRun other = run_info();
        other.most_submissions = most_submissions;
        other.first_segment = first_segment;
        return call(vkattn_runtime_run_forward, r, job.plan.get(), &args, &other);
    };
    check_invalid(refused(0, segments, pieces.args()), "run.first_segment");
    VkattnForwardArgs without_scratch = pieces.args();
    without_scratch.scratch_buffer = VK_NULL_HANDLE;
    check_invalid(refused(1, 0, without_scratch), "args.scratch_buffer");
    check_invalid(refused(0, 1, without_scratch), "args.scratch_buffer");
}

TEST_CASE_FIXTURE(OnRuntime, "runs of one plan on several threads have scratch of their own") {
    const Job job(runtime.context(), "b=2 h=3 s=33 kernel=materialized max_scratch=9728");
    constexpr size_t threads = 3;
    std::vector<Forward> memory;
    for (size_t i = 0; i < threads; i++) memory.push_back(job.forward(device));
    std::vector<std::thread> all;
    for (const Forward& forward : memory)
        all.emplace_back([&] {
            VkattnForwardArgs args = forward.args();
            args.scratch_buffer = VK_NULL_HANDLE;
            VkattnRun run = run_info();
            CHECK(vkattn_runtime_run_forward(r, job.plan.get(), &args, &run, nullptr) == VKATTN_OK);
            CHECK(run.submissions > 1);
        });
    for (std::thread& thread : all) thread.join();
    for (const Forward& forward : memory) check_right(job, forward);
}

// They share the staging buffer, the queue and the command pool.
TEST_CASE_FIXTURE(OnRuntime, "threads that copy to and from buffers of their own get back what they wrote") {
    constexpr size_t words = 1 << 18, rounds = 100;
    std::atomic<size_t> wrong = 0;
    const auto copies = [&](uint32_t mark) {
        const Buffer own = runtime.allocate(words * sizeof mark);
        std::vector<uint32_t> got(words);
        for (uint32_t round = 0; round < rounds; round++, mark++) {
            const std::vector<uint32_t> sent(words, mark);
            runtime.upload(own, std::as_bytes(std::span(sent)));
            runtime.download(own, std::as_writable_bytes(std::span(got)));
            wrong += got != sent;
        }
    };
    std::thread first(copies, 1000), second(copies, 2000);
    first.join();
    second.join();
    CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(OnRuntime, "a run executes a backward and a combine") {
    const Case c = parse_case("b=2 hq=4 hkv=2 sq=41 skv=71 causal");
    const BackwardInputs inputs(c);
    const Plan gradients = backward_plan_of(runtime.context(), c);
    const BackwardMemory memory(device, gradients, c, inputs);
    CHECK(runtime.run(gradients, memory.args()).submissions >= 1);
    CHECK(memory.damage() == "");
    CHECK(compare(memory.outcome(), expect_gradients(c, inputs)) == "");

    // Two parts of equal weight give their mean.
    VkattnCombine merge = combine();
    merge.num_parts = 2;
    merge.seqlen_q = 1;
    merge.head_dim_v = 2;
    RunMemory parts(device);
    const float given[] = {1, 2, 3, 4}, weights[] = {0, 0};
    VkattnCombineArgs args = combine_args();
    args.parts = parts.input("parts", std::as_bytes(std::span(given)));
    args.parts_lse = parts.input("parts_lse", std::as_bytes(std::span(weights)));
    args.out = parts.output("out", 2 * sizeof(float));
    CHECK(runtime.run(runtime.combine_plan(merge), args).submissions == 1);
    CHECK(parts.floats("out") == std::vector<float>{2, 3});
}

TEST_CASE_FIXTURE(OnRuntime, "a run refuses what a recording refuses, and names the argument") {
    const Plan plan = runtime.plan(one_key()), gradients = runtime.backward_plan(one_key(), backward());
    const VkattnForwardArgs args = forward_args();
    VkattnRun run = run_info();
    const auto forward = [&](VkattnRuntime* of, const VkattnPlan* p, const VkattnForwardArgs* a) {
        return call(vkattn_runtime_run_forward, of, p, a, &run);
    };
    check_invalid(forward(nullptr, plan.get(), &args), "runtime");
    check_invalid(forward(r, nullptr, &args), "plan");
    check_invalid(forward(r, gradients.get(), &args), "plan");
    check_invalid(forward(r, plan.get(), nullptr), "args");
    check_invalid(forward(r, plan.get(), &args), "args.query");
    for (const size_t size : {size_t{0}, sizeof args + 8}) {
        VkattnForwardArgs other = args;
        other.struct_size = size;
        check_invalid(forward(r, plan.get(), &other), "args.struct_size");
    }
    run.struct_size = 0;
    check_invalid(forward(r, plan.get(), &args), "run.struct_size");
    const VkattnBackwardArgs backward = backward_args();
    check_invalid(call(vkattn_runtime_run_backward, r, plan.get(), &backward, nullptr), "plan");
    const VkattnCombineArgs merge = combine_args();
    check_invalid(call(vkattn_runtime_run_combine, r, plan.get(), &merge, nullptr), "plan");
    check_invalid(call(vkattn_runtime_run_block_map, r, plan.get(), &args, nullptr), "plan");
    CHECK_THROWS_AS(runtime.run(plan, args), RuntimeError);
}

TEST_CASE_FIXTURE(OnRuntime, "what a recording returns or throws, its submission does") {
    const VkattnRecord refuse = [](VkCommandBuffer, void* user, VkattnError* error) {
        std::strcpy(error->field, static_cast<const char*>(user));
        std::strcpy(error->message, "is mine");
        return VKATTN_UNSUPPORTED;
    };
    char name[] = "args.own";
    const Seen seen = call(vkattn_runtime_submit, r, refuse, static_cast<void*>(name), nullptr);
    CHECK(seen.returned == VKATTN_UNSUPPORTED);
    CHECK(seen.field() == "args.own");
    CHECK(std::string(seen.error.message) == "is mine");
    check_invalid(call(vkattn_runtime_submit, r, nullptr, nullptr, nullptr), "record");
    check_invalid(call(vkattn_runtime_submit, nullptr, refuse, static_cast<void*>(name), nullptr), "runtime");
    CHECK_THROWS_AS(runtime.submit([](VkCommandBuffer) { throw std::out_of_range("mine"); }),
                    std::out_of_range);
    CHECK(runtime.submit([](VkCommandBuffer) {}) >= 0);  // and the next one goes on
}

TEST_CASE_FIXTURE(OnRuntime, "the runtime's C functions refuse nulls and sizes they do not know") {
    VkattnRuntimeOptions options;
    vkattn_runtime_options_init(&options);
    VkattnRuntime* opened = r;
    check_invalid(call(vkattn_runtime_open, &options, nullptr), "runtime");
    options.struct_size++;
    check_invalid(call(vkattn_runtime_open, &options, &opened), "options.struct_size");
    CHECK(opened == nullptr);
    options.struct_size--;
    options.api_version = VK_API_VERSION_1_1;
    check_invalid(call(vkattn_runtime_open, &options, &opened), "options.api_version");
    options.api_version = 0;
    options.extra_extension_count = 1;
    check_invalid(call(vkattn_runtime_open, &options, &opened), "options.extra_extensions");
    vkattn_runtime_close(nullptr);
    CHECK(vkattn_runtime_context(nullptr) == nullptr);
    CHECK(vkattn_runtime_device(nullptr) == nullptr);
    CHECK(vkattn_runtime_handles(nullptr) == nullptr);
    CHECK(vkattn_runtime_message(nullptr, 0) == nullptr);
    CHECK(vkattn_runtime_message(r, UINT32_MAX) == nullptr);
    vkattn_runtime_barrier(r, nullptr);

    VkattnBuffer* buffer = nullptr;
    check_invalid(call(vkattn_buffer_create, nullptr, uint64_t{4}, &buffer), "runtime");
    check_invalid(call(vkattn_buffer_create, r, uint64_t{4}, nullptr), "buffer");
    vkattn_buffer_destroy(nullptr);
    CHECK(vkattn_buffer_address(nullptr) == 0);
    CHECK(vkattn_buffer_size(nullptr) == 0);
    const uint64_t none = 0, word = 4;
    CHECK(call(vkattn_buffer_write, nullptr, none, nullptr, none).returned == VKATTN_OK);
    check_invalid(call(vkattn_buffer_write, nullptr, none, &word, word), "buffer");
    const Buffer some = runtime.allocate(4);
    check_invalid(call(vkattn_buffer_write, some.get(), none, nullptr, word), "data");
    check_invalid(call(vkattn_buffer_read, some.get(), word, nullptr, word), "size_bytes");
    check_invalid(call(vkattn_buffer_read, some.get(), none, nullptr, word), "data");
}

TEST_CASE_FIXTURE(OnRuntime, "devices and profiles are told as far as the caller has room") {
    uint32_t count = 0;
    check_invalid(call(vkattn_runtime_devices, nullptr, 0u, static_cast<uint32_t*>(nullptr)), "count");
    check_invalid(call(vkattn_runtime_devices, nullptr, 1u, &count), "devices");
    CHECK(call(vkattn_runtime_devices, nullptr, 0u, &count).returned == VKATTN_OK);
    REQUIRE(count >= 1);
    std::vector<VkattnDeviceInfo> devices(count + 1);
    check_invalid(call(vkattn_runtime_devices, devices.data(), count, &count), "devices.struct_size");
    for (VkattnDeviceInfo& d : devices) vkattn_device_info_init(&d);
    const auto all = static_cast<uint32_t>(devices.size()) - 1;
    CHECK(call(vkattn_runtime_devices, devices.data(), all + 1, &count).returned == VKATTN_OK);
    CHECK(count == all);
    CHECK(devices[all].name[0] == 0);  // one more than there are
    const VkattnDeviceInfo& mine = devices.at(vkattn_runtime_device(r)->index);
    CHECK(std::memcmp(&mine, vkattn_runtime_device(r), sizeof mine) == 0);

    const std::string profile = device_profile(mine.index);
    char part[9];
    size_t length = 0;
    CHECK(call(vkattn_runtime_profile, mine.index, part, sizeof part, &length).returned == VKATTN_OK);
    CHECK(part == profile.substr(0, 8));
    CHECK(length == profile.size());
    check_invalid(call(vkattn_runtime_profile, all, part, sizeof part, &length), "index");
}

TEST_CASE_FIXTURE(OnRuntime, "the barrier orders what two recordings do") {
    if (!device.validated()) return skip("the runtime's barrier: the validation layer is not installed");
    const Buffer from = runtime.allocate(256), to = runtime.allocate(256);
    const auto copy = [&](bool with_barrier) {
        runtime.submit([&](VkCommandBuffer c) {
            const VkBufferCopy all{0, 0, from.size_bytes()};
            device.vk().vkCmdFillBuffer(c, from.handle(), 0, from.size_bytes(), 7);
            if (with_barrier) runtime.barrier(c);
            device.vk().vkCmdCopyBuffer(c, from.handle(), to.handle(), 1, &all);
        });
        return device.take_messages().size();
    };
    CHECK(copy(true) == 0);
    CHECK(copy(false) > 0);  // synchronization validation would say so
}

namespace {

// Counts the blocks of host memory that an allocator has.
struct Counted {
    static inline std::mutex mutex;
    static inline std::map<void*, size_t> blocks;  // with their sizes

    static void* VKAPI_CALL allocate(void*, size_t size, size_t alignment, VkSystemAllocationScope) {
        const size_t unit = std::max(alignment, sizeof(void*));
        void* const block = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
        const std::lock_guard lock(mutex);
        if (block != nullptr) blocks[block] = size;
        return block;
    }
    static void VKAPI_CALL release(void*, void* block) {
        const std::lock_guard lock(mutex);
        blocks.erase(block);
        std::free(block);
    }
    static void* VKAPI_CALL reallocate(void* user, void* old, size_t size, size_t alignment,
                                       VkSystemAllocationScope scope) {
        void* const block = size != 0 ? allocate(user, size, alignment, scope) : nullptr;
        if (old != nullptr && block != nullptr) std::memcpy(block, old, std::min(size, blocks.at(old)));
        if (old != nullptr && (block != nullptr || size == 0)) release(user, old);
        return block;
    }
};

}  // namespace

// test_runtime_faults.cpp sees to it that no object of Vulkan is left.
TEST_CASE_FIXTURE(OnDevice, "a runtime without memory for its staging buffer leaves nothing behind") {
    VkAllocationCallbacks host{};
    host.pfnAllocation = &Counted::allocate;
    host.pfnReallocation = &Counted::reallocate;
    host.pfnFree = &Counted::release;
    const RuntimeHandles h = runtime.handles();
    VmaVulkanFunctions functions{};
    functions.vkGetInstanceProcAddr = h.get_instance_proc_addr;
    functions.vkGetDeviceProcAddr = reinterpret_cast<PFN_vkGetDeviceProcAddr>(
        h.get_instance_proc_addr(h.instance, "vkGetDeviceProcAddr"));
    functions.vkAllocateMemory = [](auto...) { return VK_ERROR_OUT_OF_DEVICE_MEMORY; };
    VmaAllocatorCreateInfo info{};
    info.instance = h.instance;
    info.physicalDevice = h.physical_device;
    info.device = h.device;
    info.pAllocationCallbacks = &host;
    info.pVulkanFunctions = &functions;
    info.vulkanApiVersion = VK_API_VERSION_1_2;
    CHECK_THROWS_WITH_AS(runtime::Memory(info, 1 << 20),
                         "allocating the staging buffer failed: ErrorOutOfDeviceMemory", Error);
    CHECK(Counted::blocks.empty());
    functions.vkAllocateMemory = nullptr;
    {
        const runtime::Memory memory(info, 1 << 20);
        CHECK(memory.staging_data() != nullptr);
        CHECK_FALSE(Counted::blocks.empty());
    }
    CHECK(Counted::blocks.empty());
}
