// What the fuzzers share: they make problems, backwards, combines and options of an input's bytes, and check what the
// library says of them. Most fields are legal beside each other, so that inputs get past validation; any of them may
// hold anything.
#pragma once

#include <cstdint>
#include <string>

#include <fuzzer/FuzzedDataProvider.h>

#include "plan/plan.hpp"

namespace vkattn::fuzz {

// An input's bytes, from which values are taken until there are none left; then all is 0.
class Bytes : public FuzzedDataProvider {
  public:
    using FuzzedDataProvider::FuzzedDataProvider;

    // True about once in `n` times.
    bool one_in(uint8_t n) { return ConsumeIntegral<uint8_t>() % n == n - 1; }
    uint32_t below(uint32_t n) { return ConsumeIntegralInRange<uint32_t>(0, n - 1); }
    uint64_t from(uint64_t low, uint64_t high) { return ConsumeIntegralInRange<uint64_t>(low, high); }
    // Of all magnitudes up to 2^bits - 1, most of them small.
    uint64_t number(uint32_t bits) {
        const uint32_t length = below(bits + 1);
        return length == 0 ? 0 : from(0, UINT64_MAX >> (64 - length));
    }
    // One of the numbers at which arithmetic goes wrong, or any number.
    uint64_t hostile();
};

// Ends the process, as libFuzzer wants it of an input that has found something. Says what and where.
[[noreturn]] void found(const std::string& what);
inline void check(bool holds, const char* what) {
    if (!holds) found(what);
}
// A check's flaw must be "".
inline void check_flaw(const std::string& flaw) {
    if (!flaw.empty()) found(flaw);
}
// True if VKATTN_FUZZ_FAULT is set: then each target spoils what the library said, which its checks must notice.
bool has_planted_fault();
// A failure has a status of the contract, names a field where an argument is wrong, and says why in one line.
void check_failure(const core::Failure& failure);

VkattnProblem problem_of(Bytes& bytes);
VkattnBackward backward_of(Bytes& bytes, const VkattnProblem& problem);
VkattnCombine combine_of(Bytes& bytes);
core::Options options_of(Bytes& bytes);
core::DeviceCaps device_of(Bytes& bytes);
// Gives half of the inputs a device whose accumulators may become right operands, and most of those a tuning that says
// whether products are turned. It takes its bytes after all others, so that inputs without them mean what they did.
void turn_products(Bytes& bytes, core::DeviceCaps& caps, core::Options& options);

}  // namespace vkattn::fuzz
