// Things that go wrong: a Vulkan call that fails, and host memory that ends. The library returns a status with one
// line, leaks nothing, and what it has made before stays usable. Every call that can fail does, one at a time.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "api_calls.hpp"
#include "faulty_new.hpp"
#include "fixture.hpp"
#include "vulkan/functions.hpp"

namespace vkattn::test {
namespace {

// ---- Vulkan in which the call number `fail_at` fails. Pipelines and commands are made up: nothing is executed.

struct Calls {
    int made = 0, fail_at = 0;  // of those that can fail, from 1
    VkResult error = VK_SUCCESS;
    int alive = 0;                                 // modules, layouts, pipelines
    std::map<const void*, const char*> functions;  // that can fail
    std::map<std::string, int> by_name;
    uintptr_t last_pipeline = 0;
} calls;

#define FUNCTIONS(X)             \
    VKATTN_INSTANCE_FUNCTIONS(X) \
    VKATTN_DEVICE_FUNCTIONS(X)   \
    X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define X(name) PFN_##name real_##name = nullptr;
FUNCTIONS(X)
#undef X

VkResult next_result(const void* function) {
    calls.made++;
    calls.by_name[calls.functions[function]]++;
    return calls.made == calls.fail_at ? calls.error : VK_SUCCESS;
}

// Stands for the function that `Real` points to.
template <auto& Real>
struct Hook;
template <class R, class... A, R(VKAPI_PTR*& Real)(A...)>
struct Hook<Real> {
    static R VKAPI_CALL call(A... arguments) {
        const InDriver outside;
        if constexpr (std::is_same_v<R, VkResult>)
            if (const VkResult result = next_result(&Real); result != VK_SUCCESS) return result;
        return Real(arguments...);
    }
};

template <auto& Real>
struct Creation;
template <class Info, class Handle,
          VkResult(VKAPI_PTR*& Real)(VkDevice, const Info*, const VkAllocationCallbacks*, Handle*)>
struct Creation<Real> {
    static VkResult VKAPI_CALL call(VkDevice device, const Info* info, const VkAllocationCallbacks* allocator,
                                    Handle* made) {
        const VkResult result = Hook<Real>::call(device, info, allocator, made);
        if (result == VK_SUCCESS) calls.alive++;
        return result;
    }
};

template <auto& Real>
struct Destruction;
template <class Handle, void(VKAPI_PTR*& Real)(VkDevice, Handle, const VkAllocationCallbacks*)>
struct Destruction<Real> {
    static void VKAPI_CALL call(VkDevice device, Handle handle, const VkAllocationCallbacks* allocator) {
        if (handle != VK_NULL_HANDLE) calls.alive--;
        Hook<Real>::call(device, handle, allocator);
    }
};

VkResult VKAPI_CALL create_pipelines(VkDevice, VkPipelineCache, uint32_t count,
                                     const VkComputePipelineCreateInfo*, const VkAllocationCallbacks*,
                                     VkPipeline* made) {
    const InDriver outside;
    std::fill_n(made, count, VkPipeline{});
    if (const VkResult result = next_result(&real_vkCreateComputePipelines); result != VK_SUCCESS)
        return result;
    for (uint32_t i = 0; i < count; i++) made[i] = reinterpret_cast<VkPipeline>(++calls.last_pipeline);
    calls.alive += static_cast<int>(count);
    return VK_SUCCESS;
}
void VKAPI_CALL destroy_pipeline(VkDevice, VkPipeline pipeline, const VkAllocationCallbacks*) {
    if (pipeline != VK_NULL_HANDLE) calls.alive--;
}

template <auto& Real>
struct Nothing;
template <class... A, void(VKAPI_PTR*& Real)(A...)>
struct Nothing<Real> {
    static void VKAPI_CALL call(A...) {}
};

constexpr VkDeviceAddress place = uint64_t{1}
                                  << 50;  // tensors lie multiples of it apart, and nobody reads them
VkDeviceAddress VKAPI_CALL scratch_address(VkDevice, const VkBufferDeviceAddressInfo*) {
    return 20 * place;
}

template <class T>
PFN_vkVoidFunction generic(T function) {
    return reinterpret_cast<PFN_vkVoidFunction>(function);
}

PFN_vkVoidFunction replacement(std::string_view name) {
#define OWN(function, hook) \
    if (name == #function) return generic(&hook);
    OWN(vkCreateShaderModule, Creation<real_vkCreateShaderModule>::call)
    OWN(vkDestroyShaderModule, Destruction<real_vkDestroyShaderModule>::call)
    OWN(vkCreatePipelineLayout, Creation<real_vkCreatePipelineLayout>::call)
    OWN(vkDestroyPipelineLayout, Destruction<real_vkDestroyPipelineLayout>::call)
    OWN(vkCreateComputePipelines, create_pipelines)
    OWN(vkDestroyPipeline, destroy_pipeline)
    OWN(vkGetBufferDeviceAddress, scratch_address)
    OWN(vkCmdBindPipeline, Nothing<real_vkCmdBindPipeline>::call)
    OWN(vkCmdPushConstants, Nothing<real_vkCmdPushConstants>::call)
    OWN(vkCmdDispatch, Nothing<real_vkCmdDispatch>::call)
    OWN(vkCmdPipelineBarrier, Nothing<real_vkCmdPipelineBarrier>::call)
    OWN(vkCmdUpdateBuffer, Nothing<real_vkCmdUpdateBuffer>::call)
    OWN(vkCmdFillBuffer, Nothing<real_vkCmdFillBuffer>::call)
#undef OWN
#define X(function) \
    if (name == #function) return generic(&Hook<real_##function>::call);
    FUNCTIONS(X)
#undef X
    return nullptr;
}

// Keeps the real function, and gives what stands for it.
PFN_vkVoidFunction hooked(std::string_view name, PFN_vkVoidFunction real) {
    if (real == nullptr) return nullptr;
#define X(function)                                               \
    if (name == #function) {                                      \
        real_##function = reinterpret_cast<PFN_##function>(real); \
        calls.functions[&real_##function] = #function;            \
    }
    FUNCTIONS(X)
#undef X
    const PFN_vkVoidFunction ours = replacement(name);
    return ours != nullptr ? ours : real;
}

PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char* name) {
    const InDriver outside;
    return hooked(name, real_vkGetDeviceProcAddr(device, name));
}

PFN_vkGetInstanceProcAddr real_vkGetInstanceProcAddr = nullptr;
PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char* name) {
    const InDriver outside;
    const PFN_vkVoidFunction ours = hooked(name, real_vkGetInstanceProcAddr(instance, name));
    return std::string_view(name) == "vkGetDeviceProcAddr" && ours != nullptr ? generic(&device_function)
                                                                              : ours;
}

// ---- what a user does, step by step; each step is made once more if it fails

const auto recorded = reinterpret_cast<VkCommandBuffer>(uintptr_t{1});
const auto buffer = reinterpret_cast<VkBuffer>(uintptr_t{1});

class Session {
  public:
    explicit Session(Device& device) : device_(device) {}
    Session(const Session&) = delete;
    ~Session() {
        const Allocating library(true);
        for (VkattnPlan* plan : {forward_, backward_, combine_}) vkattn_plan_destroy(plan);
        vkattn_context_destroy(context_);
    }

    // Makes all steps. A step that fails has a status and a line, and succeeds afterwards, unless the device is lost.
    void run() {
        const RuntimeHandles h = device_.runtime().handles();
        VkattnContextInfo info = context_info();
        info.get_instance_proc_addr = &instance_function;
        info.instance = h.instance;
        info.physical_device = h.physical_device;
        info.device = h.device;
        info.api_version = VK_API_VERSION_1_2;
        const Requirements needed(h.get_instance_proc_addr, h.instance, h.physical_device);
        info.features = needed.features();
        VkattnProblem p = good_problem();
        p.mask = VKATTN_MASK_FLOAT;
        p.mask_rank = 2;
        p.mask_extents[0] = p.mask_extents[1] = 10;
        VkattnBackward b = backward();
        b.dbias = 1;
        VkattnCombine merge = combine();
        merge.batch = 2;
        merge.num_heads = 4;
        merge.seqlen_q = 10;
        merge.head_dim_v = 8;
        merge.num_parts = 3;
        step("context", [&](VkattnError* e) { return vkattn_context_create(&info, &context_, e); });
        step("forward",
             [&](VkattnError* e) { return vkattn_plan_create(context_, &p, nullptr, &forward_, e); });
        step("backward", [&](VkattnError* e) {
            return vkattn_backward_create(context_, &p, &b, nullptr, &backward_, e);
        });
        step("combine",
             [&](VkattnError* e) { return vkattn_combine_create(context_, &merge, &combine_, e); });
        step("check", [&](VkattnError* e) { return vkattn_plan_check(context_, &p, nullptr, nullptr, e); });
        step("describe", [&](VkattnError* e) { return describe(e); });
        step("recording", [&](VkattnError* e) { return record(e); });
        self_test();
    }
    const std::string& failed_step() const { return failed_step_; }

  private:
    template <class Step>
    static VkattnStatus call(Step make, VkattnError& error) {
        const Allocating library(true);
        return make(&error);
    }

    template <class Step>
    void step(const char* name, Step make) {
        if (lost_) return;
        CAPTURE(name);
        VkattnError error{};
        const VkattnStatus status = call(make, error);
        CHECK(error.status == status);
        if (status == VKATTN_OK) return;
        failed_step_ = name;
        CHECK(error.message[0] != 0);
        CHECK(std::strchr(error.message, '\n') == nullptr);
        lost_ = status == VKATTN_DEVICE_LOST;
        if (lost_) return;
        const VkattnStatus again = call(make, error);
        CAPTURE(error.message);
        CHECK(again == VKATTN_OK);
        lost_ = again != VKATTN_OK;  // the steps that follow have nothing to go on
    }

    VkattnStatus describe(VkattnError* error) {
        size_t length = 0;
        return vkattn_plan_describe(backward_, nullptr, 0, &length, error);
    }

    // It comes last, because nothing is executed: what the memory holds is wrong, and the verdicts are that the kernels
    // are. It is slow, and a session in which something has failed before does without it.
    void self_test() {
        if (lost_ || !failed_step_.empty()) return;
        const std::vector<std::byte> results(vkattn_self_test_size(context_));
        CHECK(!results.empty());
        step("self-test", [&](VkattnError* e) {
            return vkattn_cmd_self_test(recorded, context_, buffer, 0, 20 * place, e);
        });
        step("self-tested", [&](VkattnError* e) {
            return vkattn_context_self_tested(context_, results.data(), results.size(), e);
        });
        step("verdicts", [&](VkattnError* e) {
            size_t length = 0;
            return vkattn_self_test_verdicts(context_, nullptr, 0, &length, e);
        });
    }

    VkattnStatus record(VkattnError* error) {
        VkattnForwardArgs args = forward_args();
        args.query = place;
        args.key = 2 * place;
        args.value = 3 * place;
        args.mask = 4 * place;
        args.out = 5 * place;
        args.lse = 6 * place;
        args.scratch_buffer = buffer;
        args.scratch_address = 20 * place;
        return vkattn_cmd_forward(recorded, forward_, &args, error);
    }

    Device& device_;
    VkattnContext* context_ = nullptr;
    VkattnPlan *forward_ = nullptr, *backward_ = nullptr, *combine_ = nullptr;
    std::string failed_step_;
    bool lost_ = false;
};

// One session, after which nothing is left of what it made. Returns the step that failed, "" if none did.
std::string session(Device& device) {
    std::string failed;
    {
        Session all(device);
        all.run();
        failed = all.failed_step();
    }
    CHECK(calls.alive == 0);
    return failed;
}

struct WithoutFaults : OnDevice {
    WithoutFaults() {
        calls = {};
        real_vkGetInstanceProcAddr = device.runtime().handles().get_instance_proc_addr;
    }
    ~WithoutFaults() {
        calls.fail_at = 0;
        host_memory().until_failure = 0;
    }
};

}  // namespace

TEST_CASE_FIXTURE(WithoutFaults, "every Vulkan call of the library may fail") {
    CHECK(session(device) == "");
    const int count = calls.made;
    for (const auto& [function, name] : calls.functions) {
        const std::string_view text = name;
        const bool asks_for_shapes = text == "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
        if (asks_for_shapes && !device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) continue;  // it may, or may not
        const bool can_fail = text.find("vkCreate") == 0 || text.find("vkEnumerate") == 0 || asks_for_shapes;
        CAPTURE(text);
        CHECK((calls.by_name[name] > 0) == can_fail);
    }
    int survived = 0;
    for (const VkResult error :
         {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST, VK_ERROR_UNKNOWN})
        for (int i = 1; i <= count; i++) {
            calls.made = 0;
            calls.fail_at = i;
            calls.error = error;
            CAPTURE(i);
            CAPTURE(error);
            survived += session(device).empty();
            CHECK(calls.made >= i);
        }
    MESSAGE(count << " calls failed with each of 4 errors; " << survived << " sessions went on without one");
}

// Every allocation of the first steps, one in 31 of those that follow, which fill containers one after another, and one
// in 499 of the self-test's, which are 77,000; VKATTN_TEST_ALL_ALLOCATIONS=1: every one, in two hours.
TEST_CASE_FIXTURE(WithoutFaults, "host memory may end at every allocation of the library") {
    CHECK(session(device) == "");
    const bool all = std::getenv("VKATTN_TEST_ALL_ALLOCATIONS") != nullptr;
    HostMemory& memory = host_memory();
    int failed = 0;
    memory.has_failed = true;
    const auto step = [&](uint64_t made) { return all || made < 200 ? 1 : made < 7000 ? 31 : 499; };
    for (uint64_t allocation = 1; memory.has_failed; allocation += step(allocation)) {
        memory.has_failed = false;
        CAPTURE(allocation);
        memory.until_failure = allocation;
        session(device);
        failed += memory.has_failed;
    }
    memory.until_failure = 0;
    MESSAGE(failed << " allocations failed, one at a time");
    CHECK(failed > 400);
}

}  // namespace vkattn::test
