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

// Calls a function that makes something of what it is given. Twice, by `call`: what does come out must not leak.
template <class Made, class Create, class... Args>
Seen make(void (*destroy)(Made*), Create create, Args... args) {
    Made* made = reinterpret_cast<Made*>(1);
    return call([&](VkattnError* error) {
        const VkattnStatus status = create(args..., &made, error);
        CHECK((made != nullptr) == (status == VKATTN_OK));
        destroy(made);
        return status;
    });
}
inline Seen create_with(VkattnContext* context, const VkattnProblem& p,
                        const VkattnOptions* options = nullptr) {
    return make(vkattn_plan_destroy, vkattn_plan_create, context, &p, options);
}
inline Seen create_backward(VkattnContext* context, const VkattnProblem* p, const VkattnBackward* backward,
                            const VkattnOptions* options = nullptr) {
    return make(vkattn_plan_destroy, vkattn_backward_create, context, p, backward, options);
}

// AllFeatures holds what a context needs to use all features of the Runtime's device.
struct AllFeatures {
    explicit AllFeatures(Device& device)
        : needed(device.runtime().handles().get_instance_proc_addr, device.runtime().handles().instance,
                 device.runtime().handles().physical_device) {
        info = context_info_of(device.runtime().handles());
        info.features = needed.features();
    }
    Requirements needed;
    VkattnContextInfo info;
};

struct BackwardTensor {
    const char* name;
    VkDeviceAddress VkattnBackwardArgs::*address;
    bool is_output = false;
};
inline constexpr BackwardTensor backward_tensors[] = {{"query", &VkattnBackwardArgs::query},
                                                      {"key", &VkattnBackwardArgs::key},
                                                      {"value", &VkattnBackwardArgs::value},
                                                      {"out", &VkattnBackwardArgs::out},
                                                      {"lse", &VkattnBackwardArgs::lse},
                                                      {"dout", &VkattnBackwardArgs::dout},
                                                      {"dlse", &VkattnBackwardArgs::dlse},
                                                      {"mask", &VkattnBackwardArgs::mask},
                                                      {"dquery", &VkattnBackwardArgs::dquery, true},
                                                      {"dkey", &VkattnBackwardArgs::dkey, true},
                                                      {"dvalue", &VkattnBackwardArgs::dvalue, true},
                                                      {"dbias", &VkattnBackwardArgs::dbias, true},
                                                      {"dsinks", &VkattnBackwardArgs::dsinks, true}};

// No pipelines are built in these tests, and a plan is never run.
struct Abi : Recorded {
    Abi() { between.pretend = true; }
    Context fresh = between.context();
    VkattnContext* c = fresh.get();
    const VkCommandBuffer commands = reinterpret_cast<VkCommandBuffer>(uintptr_t{16});  // reaches no driver
};

}  // namespace vkattn::test
