// Runs plans in submissions that no driver's watchdog minds.
#pragma once

#include <cstdint>

#include "vkattn/runtime.hpp"

namespace vkattn::tools {

// As many segments a submission as their times so far allow: one at first.
class Submitter {
  public:
    explicit Submitter(Runtime& runtime) : runtime_(runtime) {}

    // Returns milliseconds on the device, the submissions' sum.
    double run(const Plan& plan, const VkattnForwardArgs& args);

    // Of the last run.
    double record_us() const { return record_us_; }
    uint32_t submissions() const { return submissions_; }

  private:
    Runtime& runtime_;
    uint32_t segments_at_once_ = 1;
    double record_us_ = 0;
    uint32_t submissions_ = 0;
};

}  // namespace vkattn::tools
