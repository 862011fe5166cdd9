// Pipelines that several threads want while the driver builds one: who waits for whom, and what a failure leaves
// behind.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "cases.hpp"
#include "fixture.hpp"
#include "interposer.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

// A driver that stays inside every call of vkCreateComputePipelines until the test releases it. Its patience ends after
// two seconds, so that a thread which waits where it must not makes a check fail instead of hanging the test.
class SlowDriver {
  public:
    explicit SlowDriver(Interposer& between) : between_(between) {
        between_.before_pipeline = [this](std::string_view) { return build(); };
    }
    SlowDriver(const SlowDriver&) = delete;
    ~SlowDriver() { between_.before_pipeline = nullptr; }

    // Tells whether so many calls have begun before the patience ends.
    bool saw_calls(int count, std::chrono::milliseconds patience = std::chrono::seconds(2)) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return calls_ >= count; });
    }
    bool is_building() {
        const std::lock_guard lock(mutex_);
        return inside_ != 0;
    }
    int calls() {
        const std::lock_guard lock(mutex_);
        return calls_;
    }
    // All calls that are inside, and all that follow, return this; `throws` of them end with an exception instead.
    void release(VkResult verdict = VK_SUCCESS, int throws = 0) {
        const std::lock_guard lock(mutex_);
        released_ = true;
        verdict_ = verdict;
        throws_ = throws;
        changed_.notify_all();
    }

  private:
    VkResult build() {
        std::unique_lock lock(mutex_);
        calls_++;
        inside_++;
        changed_.notify_all();
        changed_.wait_for(lock, std::chrono::seconds(2), [&] { return released_; });
        inside_--;
        if (throws_ == 0) return verdict_;
        throws_--;
        throw std::bad_alloc();
    }

    Interposer& between_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int calls_ = 0, inside_ = 0, throws_ = 0;
    bool released_ = false;
    VkResult verdict_ = VK_SUCCESS;
};

// Creates a plan on a thread of its own.
class Planner {
  public:
    Planner(const Context& context, const std::string& text)
        : problem_(parse_case(text, "here").problem), thread_([this, c = context.get()] {
              status_ = vkattn_plan_create(c, &problem_, nullptr, &plan_, nullptr);
          }) {}
    Planner(const Planner&) = delete;
    ~Planner() {
        join();
        vkattn_plan_destroy(plan_);
    }
    VkattnStatus status() {
        join();
        return status_;
    }
    const std::vector<VkPipeline>& pipelines() {
        join();
        return plan_->pipelines;
    }

  private:
    void join() {
        if (thread_.joinable()) thread_.join();
    }

    VkattnProblem problem_;
    VkattnPlan* plan_ = nullptr;
    VkattnStatus status_ = VKATTN_INTERNAL_ERROR;
    std::thread thread_;  // uses the others, so it is the last to be made
};

// How long a second thread is given to come to a pipeline that a first one builds. A test that is right passes however
// long it takes.
constexpr std::chrono::milliseconds to_arrive{200};

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a plan whose pipelines are there does not wait while another is built") {
    between.pretend = true;
    const Context fresh = between.context();
    const Buffer memory = runtime.allocate(4096);
    { const Plan ready(fresh, parse_case("s=33", "here").problem); }
    SlowDriver driver(between);
    Planner other(fresh, "s=33 d=16");
    REQUIRE(driver.saw_calls(1));
    const auto start = Clock::now();
    const Plan plan(fresh, parse_case("s=34", "here").problem);
    VkattnForwardArgs args = forward_args();
    args.query = args.key = args.value = memory.address();
    args.out = memory.address() + 2048;
    plan.cmd_forward(reinterpret_cast<VkCommandBuffer>(uintptr_t{16}), args);
    const double ms = Milliseconds(Clock::now() - start).count();
    const bool still_building = driver.is_building();
    driver.release();
    CHECK(still_building);
    CHECK(other.status() == VKATTN_OK);
    CHECK(driver.calls() == 1);
    const std::string told = fmt::format("created and recorded in {:.3f} ms beside a build", ms);
    MESSAGE(told);
}

TEST_CASE_FIXTURE(Recorded, "two threads that want different pipelines build them at the same time") {
    between.pretend = true;
    const Context fresh = between.context();
    SlowDriver driver(between);
    Planner first(fresh, "s=33"), second(fresh, "s=33 d=16");
    CHECK(driver.saw_calls(2, std::chrono::seconds(1)));
    driver.release();
    CHECK(first.status() == VKATTN_OK);
    CHECK(second.status() == VKATTN_OK);
}

TEST_CASE_FIXTURE(Recorded, "two threads that want the same pipeline build it once") {
    between.pretend = true;
    const Context fresh = between.context();
    SlowDriver driver(between);
    Planner first(fresh, "s=33");
    REQUIRE(driver.saw_calls(1));
    Planner second(fresh, "s=34");
    CHECK_FALSE(driver.saw_calls(2, to_arrive));
    driver.release();
    REQUIRE(first.status() == VKATTN_OK);
    REQUIRE(second.status() == VKATTN_OK);
    CHECK(first.pipelines() == second.pipelines());
    CHECK(driver.calls() == 1);
    CHECK(fresh.get()->pipelines.size() == 1);
}

TEST_CASE_FIXTURE(Recorded, "a build that fails ends for all who wait, and is tried again later") {
    between.pretend = true;
    const Context fresh = between.context();
    SlowDriver driver(between);
    {
        Planner first(fresh, "s=33");
        REQUIRE(driver.saw_calls(1));
        Planner second(fresh, "s=34");
        CHECK_FALSE(driver.saw_calls(2, to_arrive));
        driver.release(VK_ERROR_OUT_OF_DEVICE_MEMORY);
        CHECK(first.status() == VKATTN_DEVICE_ERROR);
        CHECK(second.status() == VKATTN_DEVICE_ERROR);
    }
    CHECK(fresh.get()->pipelines.size() == 0);
    const int failed = driver.calls();
    CHECK(failed == 1);  // who waits takes the failure of the one that builds
    driver.release(VK_SUCCESS);
    CHECK(Planner(fresh, "s=33").status() == VKATTN_OK);
    CHECK(driver.calls() == failed + 1);
}

TEST_CASE_FIXTURE(Recorded, "a build that ends with an exception is taken over by who waits for it") {
    between.pretend = true;
    const int alive = between.objects_alive();
    {
        const Context fresh = between.context();
        SlowDriver driver(between);
        Planner first(fresh, "s=33");
        REQUIRE(driver.saw_calls(1));
        Planner second(fresh, "s=34");
        CHECK_FALSE(driver.saw_calls(2, to_arrive));
        driver.release(VK_SUCCESS, 1);
        CHECK(first.status() == VKATTN_OUT_OF_HOST_MEMORY);
        CHECK(second.status() == VKATTN_OK);
        CHECK(driver.calls() == 2);
        CHECK(fresh.get()->pipelines.size() == 1);
    }
    CHECK(between.objects_alive() == alive);
}
