// From a case to a verdict: inputs, what the oracle expects, one forward on the device between guards, the comparison.
#pragma once

#include "guarded.hpp"
#include "inputs.hpp"

namespace vkattn::test {

struct Expected {
    oracle::Result exact;
    oracle::NaiveResult naive;
    oracle::StorageType storage{};
};
Expected expect(const Case& c, const Inputs& inputs);
// What the products' operands may be rounded to.
oracle::StorageType operands_of(const Case& c);

// What the device wrote, dense; of 16-bit types, as floats.
struct Outcome {
    std::vector<float> out, lse;
    bool same_bits(const Outcome& other) const;
};

// "" if the outcome obeys the error rule.
std::string compare(const Outcome& outcome, const Expected& expected);

// The memory of one forward: inputs are read-only, scratch and the output's old content are poison.
class Forward {
  public:
    Forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs, Place place,
            uint32_t old_content = poison_word);
    const VkattnForwardArgs& args() const { return args_; }
    VkBuffer out_buffer() const { return out_.buffer(); }
    Guarded& out() { return out_; }
    Guarded& scratch() { return scratch_; }
    void poison();  // scratch and outputs, as before the first run
    Outcome outcome() const;
    std::string damage() const;  // what was written, but should not have been; "" = nothing

  private:
    struct Input {
        const char* name;
        Guarded memory;
        std::vector<std::byte> content;
    };
    VkDeviceAddress add_input(Device& device, const char* name, std::span<const std::byte> content,
                              Place place, uint32_t alignment_bytes);

    std::vector<Input> inputs_;
    Tensor out_layout_;
    uint64_t lse_count_;
    uint32_t old_content_;
    Guarded out_, lse_, scratch_;
    VkattnForwardArgs args_ = forward_args();
};

// The case's plan. Throws Error.
Plan plan_of(VkattnContext* context, const Case& c);

// Doubles the case's max_flops until `plan` accepts it: tiles of large devices cost more than cases allow. Says so on
// stdout, because another limit may cut other dispatches. `plan` throws what plan_of throws.
void raise_limit(Case& c, const std::function<void(const Case&)>& plan);
// The case with a max_flops that its forward can be planned with.
Case with_possible_limit(VkattnContext* context, Case c);

// A case with all that is needed to run and judge it.
struct Job {
    Job(VkattnContext* context, const std::string& text);
    Job(const Job&) = delete;
    Forward forward(Device& device, Place place = Place::end, uint32_t old_content = poison_word) const {
        return Forward(device, plan, c, inputs, place, old_content);
    }

    Case c;
    Plan plan;
    Inputs inputs;
    Expected expected;
};

// To doctest: undamaged, and by the error rule right.
void check_right(const Job& job, const Forward& forward);

struct Report {
    std::vector<std::string> failures;
    std::string skipped;  // why the device cannot do it; "" = it did
    uint32_t segments = 0;
};
// Why a case with a max_flops tests no cut on this device, where it is planned as it is without one; "" if it does.
std::string uncut(VkattnContext* context, const Case& c, bool backward);

// At the start and at the end of guarded memory, with another poison in what nobody may look at: right, undamaged, and
// the same bits.
Report run_case(Device& device, VkattnContext* context, const Case& c);

// Contexts that cases run in. by_device: the first device's has no feature but the address, unless a case needs more,
// the second's has all. Modules for 16-bit types differ by these features.
enum class Features { by_device, all, none };

// Runs all of them on both devices, and on CPUs those of float16 on matrix units too; cases with the same pipelines
// on the same one. Reports failures and skips to doctest.
using RunCase = Report (*)(Device& device, VkattnContext* context, const Case& c);
std::vector<Report> run_cases(const std::vector<Case>& cases, RunCase run = run_case,
                              Features features = Features::by_device);

}  // namespace vkattn::test
