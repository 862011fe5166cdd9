// Faults that are planted into plans which are sound, each of which the checks must notice.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "plan_checks.hpp"
#include "plan_flaws.hpp"
#include "plan_reading.hpp"

namespace vkattn::test {

// What a sound plan is made of: a forward's, or a backward's if there is one, or a combine's.
struct Sound {
    const char* name;
    DeviceCaps caps;
    Problem problem;
    Options options;
    std::optional<core::Backward> backward;
    std::optional<core::Combine> combine = std::nullopt;
};

// This plants one fault after the other, each in a copy of the plan, and keeps those that no check notices.
class Faults {
  public:
    explicit Faults(const Sound& s);

    const Plan& plan() const { return plan_; }
    std::string flaw() const { return flaw_of_plan(plan_); }
    template <class Change>
    void plant(const std::string& what, const Change& change) {
        Plan copy = plan_;
        change(copy);
        planted_++;
        if (!is_noticed(copy)) unnoticed_ += what + "; ";
    }
    const std::string& unnoticed() const { return unnoticed_; }
    size_t planted() const { return planted_; }

  private:
    std::string flaw_of_plan(const Plan& plan) const;
    // Text that nobody can parse is noticed, too.
    bool is_noticed(const Plan& plan) const {
        try {
            return !flaw_of_plan(plan).empty();
        } catch (const std::runtime_error&) {
            return true;
        }
    }

    const Sound& s_;
    Plan plan_;
    std::string unnoticed_;
    size_t planted_ = 0;
};

// In each pipeline, and in the first and the last dispatch that has it: the others are like these.
void plant_in_work(Faults& faults);
// In all else that is no text.
void plant_in_plan(Faults& faults);
// Each number of the tuning's text, but these, is replaced by another, and is left out.
void plant_in_tuning(Faults& faults, const std::set<std::string>& but = {});

}  // namespace vkattn::test
