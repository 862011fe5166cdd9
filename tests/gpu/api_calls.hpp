// Calls of the C ABI whose arguments are wrong: what every function must leave behind.
#pragma once

#include <cstring>
#include <functional>
#include <string>

#include "interposer.hpp"

namespace vkattn::test {

// An error as every function must leave it: all of it filled, one line.
struct Seen {
    VkattnStatus returned{};
    VkattnError error{};
    std::string field() const { return error.field; }
};

template <class Function, class... Args>
Seen call(Function function, Args... args) {
    Seen seen;
    std::memset(&seen.error, 0x55, sizeof seen.error);
    seen.returned = function(args..., &seen.error);
    CHECK(seen.error.status == seen.returned);
    REQUIRE(std::memchr(seen.error.field, 0, sizeof seen.error.field) != nullptr);
    REQUIRE(std::memchr(seen.error.message, 0, sizeof seen.error.message) != nullptr);
    CHECK(std::strchr(seen.error.message, '\n') == nullptr);
    CHECK((seen.error.message[0] != 0) == (seen.returned != VKATTN_OK));
    // The error is optional.
    CHECK(function(args..., static_cast<VkattnError*>(nullptr)) == seen.returned);
    return seen;
}

inline void check_invalid(const Seen& seen, const std::string& field) {
    CAPTURE(seen.error.message);
    CHECK(seen.returned == VKATTN_INVALID_ARGUMENT);
    CHECK(seen.field() == field);
}

inline VkattnProblem good_problem() {
    VkattnProblem p = problem();
    p.batch = 2;
    p.num_heads_q = 4;
    p.num_heads_kv = 2;
    p.seqlen_q = p.seqlen_kv = 10;
    p.head_dim_qk = p.head_dim_v = 8;
    return p;
}

using Spoil = std::function<void(VkattnProblem&)>;

inline Seen create_with(VkattnContext* context, const VkattnProblem& p,
                        const VkattnOptions* options = nullptr) {
    VkattnPlan* plan = reinterpret_cast<VkattnPlan*>(1);
    // Twice, by `call`: a plan that does come out must not leak.
    const auto create = [&](VkattnError* error) {
        const VkattnStatus status = vkattn_plan_create(context, &p, options, &plan, error);
        CHECK((plan != nullptr) == (status == VKATTN_OK));
        vkattn_plan_destroy(plan);
        return status;
    };
    return call(create);
}

// AllFeatures holds what a context needs to use all features of the Runtime's device.
struct AllFeatures {
    explicit AllFeatures(Device& device)
        : needed(device.runtime().handles().get_instance_proc_addr, device.runtime().handles().instance,
                 device.runtime().handles().physical_device) {
        const RuntimeHandles h = device.runtime().handles();
        info.get_instance_proc_addr = h.get_instance_proc_addr;
        info.instance = h.instance;
        info.physical_device = h.physical_device;
        info.device = h.device;
        info.api_version = VK_API_VERSION_1_2;
        info.features = needed.features();
    }
    Requirements needed;
    VkattnContextInfo info = context_info();
};

// No pipelines are built in these tests, and a plan is never run.
struct Abi : Recorded {
    Abi() { between.pretend = true; }
    Context fresh = between.context();
    VkattnContext* c = fresh.get();
};

}  // namespace vkattn::test
