#include "job.hpp"

#include <cstring>

namespace vkattn::test {
namespace {

void append(std::vector<std::byte>& to, const std::vector<float>& more) {
    const auto bytes = std::as_bytes(std::span(more));
    to.insert(to.end(), bytes.begin(), bytes.end());
}

// "damage" or the verdict.
std::string first_of(const std::string& damage, const std::string& failure) {
    return damage.empty() ? failure : damage;
}

class ForwardJob : public AnyJob {
  public:
    ForwardJob(VkattnContext* context, const Case& c)
        : AnyJob(context, c, plan_of(context, c)), inputs_(make_inputs(c)), expected_(expect(c, inputs_)) {}
    std::unique_ptr<Work> work(Device& device, Place place, uint32_t old_content) const override {
        return std::make_unique<Run>(*this, Forward(device, plan_, c_, inputs_, place, old_content));
    }
    Plan another_plan() const override { return plan_of(context_, c_); }

  private:
    class Run : public Work {
      public:
        Run(const ForwardJob& job, Forward memory) : job_(job), memory_(std::move(memory)) {}
        void record(VkCommandBuffer commands, const Plan& plan, uint32_t first,
                    uint32_t count) const override {
            plan.cmd_forward(commands, memory_.args(), first, count);
        }
        std::vector<std::byte> results() const override {
            const Outcome outcome = memory_.outcome();
            std::vector<std::byte> all;
            append(all, outcome.out);
            append(all, outcome.lse);
            return all;
        }
        std::string failure() const override {
            return first_of(memory_.damage(), compare(memory_.outcome(), job_.expected_));
        }

      private:
        const ForwardJob& job_;
        Forward memory_;
    };
    Inputs inputs_;
    Expected expected_;
};

class BackwardJob : public AnyJob {
  public:
    BackwardJob(VkattnContext* context, const Case& c)
        : AnyJob(context, c, backward_plan_of(context, c)),
          inputs_(c),
          expected_(expect_gradients(c, inputs_)) {}
    std::unique_ptr<Work> work(Device& device, Place place, uint32_t old_content) const override {
        return std::make_unique<Run>(*this, BackwardMemory(device, plan_, c_, inputs_, place, old_content));
    }
    Plan another_plan() const override { return backward_plan_of(context_, c_); }

  private:
    class Run : public Work {
      public:
        Run(const BackwardJob& job, BackwardMemory memory) : job_(job), memory_(std::move(memory)) {}
        void record(VkCommandBuffer commands, const Plan& plan, uint32_t first,
                    uint32_t count) const override {
            plan.cmd_backward(commands, memory_.args(), first, count);
        }
        std::vector<std::byte> results() const override {
            const Gradients gradients = memory_.gradients();
            std::vector<std::byte> all;
            for (const auto* x : {&gradients.query, &gradients.key, &gradients.value, &gradients.mask})
                append(all, *x);
            return all;
        }
        std::string failure() const override {
            return first_of(memory_.damage(), compare(memory_.gradients(), job_.expected_));
        }

      private:
        const BackwardJob& job_;
        BackwardMemory memory_;
    };
    BackwardInputs inputs_;
    ExpectedGradients expected_;
};

}  // namespace

std::unique_ptr<AnyJob> AnyJob::make(VkattnContext* context, const Case& c, bool backward) {
    if (backward) return std::make_unique<BackwardJob>(context, with_possible_backward_limit(context, c));
    return std::make_unique<ForwardJob>(context, with_possible_limit(context, c));
}

}  // namespace vkattn::test
