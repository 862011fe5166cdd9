// What the planner's test files share: making plans, and telling of many flaws in few words.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "plan_cases.hpp"
#include "plan_checks.hpp"

namespace vkattn::test {

using core::DeviceCaps;
using core::make_plan;
using core::Options;
using core::Plan;
using core::Problem;

inline constexpr HeadDims d64{64, 64}, d128{128, 128};
inline constexpr uint32_t million = 1u << 20;

// Flaws of many plans, each kind reported once.
class Flaws {
  public:
    ~Flaws() {
        for (const auto& [flaw, seen] : kinds_)
            FAIL_CHECK(flaw << " (" << seen.second << " times, first: " << seen.first << ")");
        CHECK_GT(plans_, 0);
    }
    Flaws() = default;
    Flaws(const Flaws&) = delete;
    Flaws& operator=(const Flaws&) = delete;

    void add(const std::string& flaw, const std::string& where, const core::Problem& problem) {
        plans_++;
        if (!flaw.empty())
            kinds_.try_emplace(kind_of(flaw), flaw + ", " + where + ", " + to_text(problem), 0)
                .first->second.second++;
    }

  private:
    // Without its numbers.
    static std::string kind_of(std::string flaw) {
        flaw.erase(std::remove_if(flaw.begin(), flaw.end(), [](char c) { return c >= '0' && c <= '9'; }),
                   flaw.end());
        return flaw;
    }

    size_t plans_ = 0;
    std::map<std::string, std::pair<std::string, size_t>> kinds_;
};

inline Shape square(uint32_t batch, uint32_t heads, uint32_t seqlen) {
    return {batch, heads, heads, seqlen, seqlen};
}

inline core::Options kernel(const char* name) {
    core::Options o;
    o.kernel = name;
    return o;
}

inline core::Options tuning(const std::string& text, const char* kernel_name = "") {
    core::Options o;
    o.kernel = kernel_name;
    o.tuning = text;
    return o;
}

inline core::Options limited(uint64_t flops, uint64_t scratch = 0, const char* kernel_name = "") {
    core::Options o;
    o.kernel = kernel_name;
    o.max_dispatch_flops = flops;
    o.max_scratch_bytes = scratch;
    return o;
}

inline VkattnProblem masked(VkattnProblem p, VkattnMaskType mask, MaskShape shape = MaskShape::whole) {
    set_mask(p, mask, shape);
    return p;
}

// Throws the reason where there is no plan.
inline core::Plan planned(const core::DeviceCaps& caps, const core::Problem& problem,
                          const core::Options& options = {}) {
    auto plan = core::make_plan(caps, problem, options);
    if (!plan) throw std::runtime_error(plan.failure().field + ": " + plan.failure().message);
    return std::move(*plan);
}

inline core::Plan planned(const core::DeviceCaps& caps, const core::Problem& problem,
                          const core::Backward& backward, const core::Options& options = {}) {
    auto plan = core::make_plan(caps, problem, backward, options);
    if (!plan) throw std::runtime_error(plan.failure().field + ": " + plan.failure().message);
    return std::move(*plan);
}

}  // namespace vkattn::test
