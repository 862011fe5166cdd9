// Things that go wrong: a Vulkan call that fails, and host memory that ends. The library returns a status with one
// line, leaks nothing, and what it has made before stays usable. Every call that can fail does, one at a time.
#include <set>

#include "faulty_session.hpp"
#include "vulkan/functions.hpp"

namespace vkattn::test {
namespace {

// Tensors lie multiples of it apart, and nobody reads them.
constexpr VkDeviceAddress place = uint64_t{1} << 50;

const auto recorded = reinterpret_cast<VkCommandBuffer>(uintptr_t{1});
const auto buffer = reinterpret_cast<VkBuffer>(uintptr_t{1});

class Session : public FaultySession {
  public:
    explicit Session(Device& device) : device_(device) {}
    ~Session() override {
        const Allocating library(true);
        destroy_plans();
        vkattn_context_destroy(context_);
    }

    void run() {
        AllFeatures all(device_);
        VkattnContextInfo& info = all.info;
        info.get_instance_proc_addr = FaultyVulkan::between(info.get_instance_proc_addr);
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
        step("describe", [&](VkattnError* e) {
            size_t length = 0;
            return vkattn_plan_describe(backward_, nullptr, 0, &length, e);
        });
        step("recording", [&](VkattnError* e) { return record(e); });
        self_test();
    }

  private:
    // It comes last, because nothing is executed: what the memory holds is wrong, and the verdicts are that the kernels
    // are. It is slow, and a session in which something has failed before does without it.
    void self_test() {
        if (!ended() || !failed_step().empty()) return;
        const std::vector<std::byte> results(vkattn_self_test_size(context_));
        CHECK(!results.empty());
        step("build", [&](VkattnError* e) { return vkattn_self_test_build(context_, 0, e); });
        step("self-test", [&](VkattnError* e) {
            return vkattn_cmd_self_test(recorded, context_, buffer, 0, FaultyVulkan::pretended_address, e);
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
        args.scratch_address = FaultyVulkan::pretended_address;
        return vkattn_cmd_forward(recorded, forward_, &args, error);
    }

    Device& device_;
    VkattnContext* context_ = nullptr;
};

// Nothing is executed in these tests.
struct WithoutFaults : OnDevice {
    WithoutFaults() {
        vulkan.pretend = true;
        vulkan.install();
    }
    ~WithoutFaults() {
        vulkan.remove();
        host_memory().until_failure = 0;
    }
    // One session, after which nothing is left of what it made. Returns the step that failed, "" if none did.
    std::string session() {
        std::string failed;
        {
            Session all(device);
            all.run();
            failed = all.failed_step();
        }
        check_nothing_left(vulkan);
        return failed;
    }
    FaultyVulkan vulkan;
};

}  // namespace

TEST_CASE_FIXTURE(WithoutFaults, "every Vulkan call of the library may fail") {
    CHECK(session() == "");
    const auto count = static_cast<int>(vulkan.calls.size());
    const std::set<std::string> called(vulkan.calls.begin(), vulkan.calls.end());
#define X(function) #function,
    for (const std::string name : {VKATTN_INSTANCE_FUNCTIONS(X) VKATTN_DEVICE_FUNCTIONS(X)
                                       X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)}) {
#undef X
        const bool asks_for_shapes = name == "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
        if (asks_for_shapes && !device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) continue;  // it may, or may not
        const bool can_fail =
            name.starts_with("vkCreate") || name.starts_with("vkEnumerate") || asks_for_shapes;
        CAPTURE(name);
        CHECK(called.contains(name) == can_fail);
    }
    int survived = 0;
    for (const VkResult error :
         {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST, VK_ERROR_UNKNOWN})
        for (int i = 1; i <= count; i++) {
            vulkan.start(i, error);
            CAPTURE(i);
            CAPTURE(error);
            survived += session().empty();
            CHECK(vulkan.calls.size() >= static_cast<size_t>(i));
        }
    MESSAGE(count << " calls failed with each of 4 errors; " << survived << " sessions went on without one");
}

// Every allocation of the first steps, and one in 23 of those that follow, which fill containers one after another: a
// session makes 4,000 and more, by the device's kernels. VKATTN_TEST_ALL_ALLOCATIONS=1: every one.
TEST_CASE_FIXTURE(WithoutFaults, "host memory may end at every allocation of the library") {
    CHECK(session() == "");
    const auto distance = [](uint64_t at) -> uint64_t { return at < 200 ? 1 : 23; };
    fail_allocations(vulkan, 300, distance, [&] { session(); });
}

}  // namespace vkattn::test
