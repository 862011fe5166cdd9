// From a case to a verdict: inputs, what the oracle expects, one forward on the device between guards, the comparison.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run_memory.hpp"

namespace vkattn::test {

struct Expected {
    oracle::Result exact;
    oracle::NaiveResult naive;
    oracle::StorageType storage{};
    std::vector<float> rounded{};  // out to the bit, of values=quarters; empty: by the error rule
};
Expected expect(const Case& c, const Inputs& inputs);
// What the products' operands may be rounded to.
oracle::StorageType operands_of(const Case& c);

// What the device wrote, dense; of 16-bit types, as floats.
struct Outcome {
    std::vector<float> out, lse;
    std::array<uint64_t, 4> extents{};  // of out: batch, head, row, head dim
    // The first element with other bits than `before` has, for a message; "" if there is none.
    std::string difference(const Outcome& before) const;
    bool same_bits(const Outcome& other) const { return difference(other).empty(); }
};

// A tensor and its error.
struct Judged {
    std::string tensor;
    oracle::StorageType storage{};
    oracle::Bound bound;
};

// A verdict says whether results obey the error rule, and how near they come to its bound.
struct Verdict {
    std::string failure;  // of the first tensor that breaks it; "" = none
    double worst = 0;     // the largest error as a part of what is allowed, over all tensors
    std::vector<Judged> judged;
    bool is_inexact = false;  // the failure is an error beyond its bound, and no NaN or infinity

    bool is_wrong() const { return !failure.empty() && !is_inexact; }
    // Of what no seed excuses; it takes the place of an error beyond its bound.
    void fail(std::string what) {
        failure = std::move(what);
        is_inexact = false;
    }

    // `extents`: of the tensor, outermost first; its dense elements are compared.
    void add(const char* name, std::span<const uint64_t> extents, std::span<const float> got,
             std::span<const double> exact, std::span<const float> naive, oracle::StorageType storage);
};
Verdict judge(const Outcome& outcome, const Expected& expected);
// "" if the outcome obeys the error rule.
std::string compare(const Outcome& outcome, const Expected& expected);

class Forward : public RunMemory {
  public:
    Forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs, Place place = Place::end,
            uint32_t old_content = poison_word);
    const VkattnForwardArgs& args() const { return args_; }
    void record(VkCommandBuffer commands, const Plan& plan, uint32_t first, uint32_t count) const {
        plan.cmd_forward(commands, args_, first, count);
    }
    Outcome outcome() const;
    Ran<Outcome> run(const Plan& plan) const;  // in a submission of its own

  private:
    Tensor layout_;
    VkattnForwardArgs args_ = forward_args();
};

// The case's plan. Throws Error.
Plan plan_of(VkattnContext* context, const Case& c);

// Doubles the case's max_flops until `plan` accepts it: tiles of large devices cost more than cases allow. Says so in
// the case's note, because another limit may cut other dispatches. `plan` throws what plan_of throws.
void raise_limit(Case& c, const std::function<void(const Case&)>& plan);
// The case with a max_flops that its forward can be planned with.
Case with_possible_limit(VkattnContext* context, Case c);

struct Report {
    std::vector<std::string> failures;
    std::string skipped;  // why the device cannot do it; "" = it did
    std::string note;     // what was changed of the case for this device
    std::string kernel;   // that was planned
    uint32_t segments = 0;
    double worst = 0;  // Verdict::worst
    std::vector<Judged> judged;
    size_t inexact = 0;  // how many of the failures are errors beyond their bounds

    void add(const std::string& where, const std::string& damage, const Verdict& verdict);
};
// Plans a case by `make`, which may change it. False where that is not possible, which the report says: it fails, or is
// skipped if a tuning is asked for that is beyond the device, or if `may_be_refused` is true of the message.
bool is_planned(Report& report, Case& c, Plan& plan, const std::function<void(Case&, Plan&)>& make,
                const std::function<bool(const std::string&)>& may_be_refused = {});
// is_planned, by the forward's plan with a possible limit.
bool is_planned(Report& report, VkattnContext* context, Case& c, Plan& plan,
                const std::function<bool(const std::string&)>& may_be_refused = {});
// True of what the planner says where a device cannot have such a plan for a reason that src/plan/quirks.hpp names.
bool is_quirk(const std::string& message);
// Why a case with a max_flops tests no cut on this device, where it is planned as it is without one; "" if it does.
std::string uncut(VkattnContext* context, const Case& c, bool backward);

// Runs of cases with `far`, `nonfinite` and `company`: see far_run.cpp, far_results_run.cpp, nonfinite_run.cpp and
// company_run.cpp.
Report run_far_case(Device& device, VkattnContext* context, const Case& c);
Report run_far_lse_case(Device& device, VkattnContext* context, const Case& c);
Report run_company_case(Device& device, VkattnContext* context, const Case& c);
// The inputs of `c` with the sequences of `alone`, which are its batches from `slot` on, from its head and key 0 and
// from a query row on; and their rows in what became of all.
Inputs in_company(const Case& alone, const Inputs& own, const Case& c, uint32_t slot, uint32_t first_row);
Outcome own_rows(const Case& alone, const Case& c, const Outcome& all, uint32_t slot, uint32_t first_row);
Report run_nonfinite_case(Device& device, VkattnContext* context, const Case& c);

// Runs something at the start and at the end of guarded memory: right, undamaged, and the same bits. run(place) returns
// what Ran says.
template <class Expectation, class Run>
void run_at_places(Report& report, const Expectation& expected, const Run& run) {
    std::optional<decltype(run(Place::start).result)> first;
    for (const Place place : places) {
        const std::string at = std::string("at the ") + name_of(place) + ": ";
        const auto [result, damage] = run(place);
        report.add(at, damage, judge(result, expected));
        const std::string difference = first ? result.difference(*first) : "";
        if (!difference.empty())
            report.failures.push_back(at + "other bits than at the start: " + difference);
        first = result;
    }
}

// Runs a case by run_at_places, with another poison in what nobody may look at.
Report run_case(Device& device, VkattnContext* context, const Case& c);

// A second old content of outputs: NaN, as poison_word is.
constexpr uint32_t second_poison = 0xffffffff;

std::vector<double> as_double(const std::vector<float>& x);
std::vector<double> dense(const Tensor& t);
bool equal_bits(const std::vector<float>& a, const std::vector<float>& b);
// The first element of a result with other bits than before, as in "out[0, 1] = 2, and 3 before"; "" if there is none.
std::string difference_of(const char* name, std::span<const uint64_t> extents, const std::vector<float>& now,
                          const std::vector<float>& before);

}  // namespace vkattn::test
