// From a case to a verdict: inputs, what the oracle expects, one forward on the device between guards, the comparison.
#pragma once

#include "cases.hpp"
#include "guarded.hpp"

namespace vkattn::test {

// A strided tensor as it lies in memory; whatever no element covers is poison.
struct Tensor {
    uint64_t batch = 0, heads = 0, seqlen = 0, dim = 0;
    VkattnStrides strides{};
    std::vector<float> image;

    uint64_t at(uint64_t b, uint64_t h, uint64_t s) const {
        return b * strides.batch + h * strides.head + s * strides.seq;
    }
    uint64_t span() const;  // in elements
    std::vector<float> gather(
        const std::vector<float>& from) const;  // dense, in (batch, head, seq, dim) order
    std::span<const std::byte> bytes() const { return std::as_bytes(std::span(image)); }
};

// 0 .. 3: query, key, value, out; strides resolved, image all poison. Throws CaseError if it is too large.
Tensor tensor_of(const Case& c, int tensor);

struct Inputs {
    Tensor query, key, value;
};

// The same values for the same case. Keys and values of rows that no query row sees stay poison.
Inputs make_inputs(const Case& c);

// Keys that some query row sees, by the definition: row after row.
std::vector<bool> visible_keys(const VkattnProblem& p);

struct Expected {
    oracle::Result exact;
    oracle::NaiveResult naive;
};
Expected expect(const Case& c, const Inputs& inputs);

// What the device wrote, dense.
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
    Outcome outcome() const;
    std::string damage() const;  // what was written, but should not have been; "" = nothing

  private:
    const Inputs& inputs_;
    Tensor out_layout_;
    uint64_t lse_count_;
    uint32_t old_content_;
    Guarded query_, key_, value_, out_, lse_, scratch_;
    VkattnForwardArgs args_ = forward_args();
};

struct Report {
    std::vector<std::string> failures;
    std::string skipped;  // why the device cannot do it; "" = it did
};

// At the start and at the end of guarded memory: right, undamaged, and the same bits.
Report run_case(Device& device, VkattnContext* context, const Case& c);

// All of them on both devices; cases with the same pipelines on the same one. Reports failures and skips to doctest.
void run_cases(const std::vector<Case>& cases);

}  // namespace vkattn::test
