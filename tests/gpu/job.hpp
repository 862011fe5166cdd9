// A forward or a backward as one thing that can be recorded, run and judged: what the promises about running
// (behaviour.hpp) are tested with.
#pragma once

#include <memory>

#include "backward_run.hpp"

namespace vkattn::test {

// Memory of one run.
class Work {
  public:
    virtual ~Work() = default;
    // Segments first .. first + count - 1 of the plan, which may be another one of the same case.
    virtual void record(VkCommandBuffer commands, const Plan& plan, uint32_t first, uint32_t count) const = 0;
    virtual std::vector<std::byte> results() const = 0;  // all that was written, bit by bit
    virtual std::string failure() const = 0;  // memory that was damaged, or a wrong result; "" = none
};

// A case with all that is needed to run and judge it.
class AnyJob {
  public:
    static std::unique_ptr<AnyJob> make(VkattnContext* context, const Case& c, bool backward);
    virtual ~AnyJob() = default;
    virtual std::unique_ptr<Work> work(Device& device, Place place = Place::end,
                                       uint32_t old_content = poison_word) const = 0;
    virtual Plan another_plan() const = 0;
    const Plan& plan() const { return plan_; }
    const Case& given() const { return c_; }

  protected:
    AnyJob(VkattnContext* context, Case c, Plan plan)
        : context_(context), c_(std::move(c)), plan_(std::move(plan)) {}
    VkattnContext* context_;
    Case c_;
    Plan plan_;
};

}  // namespace vkattn::test
