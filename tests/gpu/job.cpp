#include "job.hpp"

namespace vkattn::test {
namespace {

// Memory is Forward or BackwardMemory; Given are the inputs that it takes, and Wanted is what its outcome is held to.
template <class Memory, class Given, class Wanted>
class JobOf : public AnyJob {
  public:
    using MakePlan = Plan (*)(VkattnContext*, const Case&);
    JobOf(VkattnContext* context, const Case& c, MakePlan make_plan, const Given& given, const Wanted& wanted)
        : AnyJob(context, c, make_plan(context, c)), make_plan_(make_plan), given_(given), wanted_(wanted) {}
    std::unique_ptr<Work> work(Device& device, Place place, uint32_t old_content) const override {
        return std::make_unique<Run>(*this, Memory(device, plan_, c_, given_, place, old_content));
    }
    Plan another_plan() const override { return make_plan_(context_, c_); }

  private:
    class Run : public Work {
      public:
        Run(const JobOf& job, Memory memory) : job_(job), memory_(std::move(memory)) {}
        void record(VkCommandBuffer commands, const Plan& plan, uint32_t first,
                    uint32_t count) const override {
            memory_.record(commands, plan, first, count);
        }
        std::vector<std::byte> results() const override { return memory_.results(); }
        std::string failure() const override {
            const std::string damage = memory_.damage();
            return damage.empty() ? compare(memory_.outcome(), job_.wanted_) : damage;
        }

      private:
        const JobOf& job_;
        Memory memory_;
    };
    MakePlan make_plan_;
    Given given_;
    Wanted wanted_;
};

}  // namespace

std::unique_ptr<AnyJob> AnyJob::make(VkattnContext* context, const Case& given, bool backward) {
    if (backward) {
        const Case c = with_possible_backward_limit(context, given);
        const BackwardInputs inputs(c);
        using BackwardJob = JobOf<BackwardMemory, BackwardInputs, ExpectedGradients>;
        return std::make_unique<BackwardJob>(context, c, backward_plan_of, inputs,
                                             expect_gradients(c, inputs));
    }
    const Case c = with_possible_limit(context, given);
    const Inputs inputs = make_inputs(c);
    using ForwardJob = JobOf<Forward, Inputs, Expected>;
    return std::make_unique<ForwardJob>(context, c, plan_of, inputs, expect(c, inputs));
}

}  // namespace vkattn::test
