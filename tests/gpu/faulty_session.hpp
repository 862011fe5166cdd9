// A session makes a user's steps while a Vulkan call or an allocation fails. A step that fails has a status and a line,
// leaves nothing behind, and succeeds when it is made once more, unless the device is lost.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "api_calls.hpp"
#include "faulty_new.hpp"
#include "faulty_vulkan.hpp"

namespace vkattn::test {

class FaultySession {
  public:
    FaultySession() = default;
    FaultySession(const FaultySession&) = delete;
    virtual ~FaultySession() = default;
    const std::string& failed_step() const { return failed_step_; }
    bool ended() const { return !lost_; }  // all steps were made

  protected:
    using Step = std::function<VkattnStatus(VkattnError*)>;
    void step(const std::string& name, const Step& make) {
        if (lost_) return;
        CAPTURE(name);
        VkattnError error{};
        const VkattnStatus status = call(make, error);
        CHECK(error.status == status);
        CHECK((error.message[0] != 0) == (status != VKATTN_OK));
        if (status == VKATTN_OK) return;
        CAPTURE(error.message);
        CHECK(failed_step_.empty());
        failed_step_ = name;
        CHECK(std::strchr(error.message, '\n') == nullptr);
        lost_ = is_lost(error);
        if (lost_) return;
        const VkattnStatus again = call(make, error);
        CHECK(again == VKATTN_OK);
        lost_ = again != VKATTN_OK;  // the steps that follow have nothing to go on
    }
    // Looks at the error of a step; true if the device is lost.
    virtual bool is_lost(const VkattnError& error) const { return error.status == VKATTN_DEVICE_LOST; }

    void destroy_plans() {
        for (VkattnPlan** plan : {&forward_, &backward_, &combine_}) {
            vkattn_plan_destroy(*plan);
            *plan = nullptr;
        }
    }
    VkattnPlan *forward_ = nullptr, *backward_ = nullptr, *combine_ = nullptr;

  private:
    static VkattnStatus call(const Step& make, VkattnError& error) {
        const Allocating library(true);
        return make(&error);
    }
    std::string failed_step_;
    bool lost_ = false;
};

// Runs sessions in each of which an allocation fails: number 1, and then `distance` of the last one further on.
inline void fail_allocations(FaultyVulkan& vulkan, int least, uint64_t (*distance)(uint64_t),
                             const std::function<void()>& session) {
    const bool all = std::getenv("VKATTN_TEST_ALL_ALLOCATIONS") != nullptr;
    HostMemory& memory = host_memory();
    int failed = 0;
    memory.has_failed = true;
    for (uint64_t at = 1; memory.has_failed; at += all ? 1 : distance(at)) {
        vulkan.start();
        memory.has_failed = false;
        CAPTURE(at);
        memory.until_failure = at;
        session();
        memory.until_failure = 0;
        failed += memory.has_failed;
    }
    MESSAGE(failed << " allocations failed, one at a time");
    CHECK(failed > least);
}

inline void check_nothing_left(const FaultyVulkan& vulkan) {
    CHECK(vulkan.wrong == std::vector<std::string>{});
    CHECK(vulkan.alive() == std::vector<std::string>{});
}

}  // namespace vkattn::test
