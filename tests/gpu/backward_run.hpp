// From a case to a verdict on its gradients: as forward_run.hpp, for the backward.
#pragma once

#include "forward_run.hpp"
#include "oracle/backward.hpp"

namespace vkattn::test {

// Tensors of a case's backward. out and lse are the oracle's, out as its storage type has it, unless run_backward_case
// replaces them.
struct BackwardInputs {
    BackwardInputs(const Case& c, Poison poison = Poison::nan);
    Inputs forward;
    Tensor out, dout;
    std::vector<float> lse, dlse;  // dlse is empty unless the case has one
};

// dquery, dkey, dvalue or dout, by the strides that the case has for it.
Tensor gradient_tensor(const Case& c, int tensor, Poison poison = Poison::nan);

struct ExpectedGradients {
    oracle::Gradients exact;
    oracle::NaiveGradients naive;
    oracle::StorageTypes storage;
};
ExpectedGradients expect_gradients(const Case& c, const BackwardInputs& inputs);

struct Gradients {
    std::vector<float> query, key, value, mask,
        sinks;                             // dense; the last two are empty unless the case has them
    std::array<uint64_t, 4> extents[3]{};  // of the first three: batch, head, row, head dim
    std::string difference(const Gradients& before) const;  // as of Outcome
    bool same_bits(const Gradients& other) const { return difference(other).empty(); }
};

Verdict judge(const Gradients& got, const ExpectedGradients& expected);
// "" if every gradient obeys the error rule.
std::string compare(const Gradients& got, const ExpectedGradients& expected);

class BackwardMemory : public RunMemory {
  public:
    BackwardMemory(Device& device, const Plan& plan, const Case& c, const BackwardInputs& inputs,
                   Place place = Place::end, uint32_t old_content = poison_word);
    const VkattnBackwardArgs& args() const { return args_; }
    void record(VkCommandBuffer commands, const Plan& plan, uint32_t first, uint32_t count) const {
        plan.cmd_backward(commands, args_, first, count);
    }
    Gradients outcome() const;
    Ran<Gradients> run(const Plan& plan) const;  // in a submission of its own

  private:
    Tensor layouts_[3];  // query, key, value
    VkattnDtype dtype_;
    VkattnBackwardArgs args_ = backward_args();
};

Plan backward_plan_of(VkattnContext* context, const Case& c);
Case with_possible_backward_limit(VkattnContext* context, Case c);

// is_planned, by the backward's plan with a possible limit.
bool is_planned_backward(Report& report, VkattnContext* context, Case& c, Plan& plan);

Report run_backward_case(Device& device, VkattnContext* context, const Case& c);
// That of a case with `nonfinite`: see nonfinite_run.cpp.
Report run_nonfinite_backward_case(Device& device, VkattnContext* context, const Case& c);

}  // namespace vkattn::test
