// Runs plans in submissions that no driver's watchdog minds.
#pragma once

#include <cstdint>
#include <functional>

#include "progress.hpp"
#include "vkattn/runtime.hpp"

namespace vkattn::tools {

// As many segments a submission as their times so far allow: one at first.
class Submitter {
  public:
    // progress, which may be null, is told of each segment that is done.
    explicit Submitter(Runtime& runtime, Phase* progress = nullptr)
        : runtime_(runtime), progress_(progress) {}

    // Returns milliseconds on the device, the submissions' sum.
    double run(const Plan& plan, const VkattnForwardArgs& args);
    double run(const Plan& plan, const VkattnBackwardArgs& args);

    // Of the last run.
    double record_us() const { return record_us_; }
    uint32_t submissions() const { return submissions_; }

  private:
    using Record = std::function<void(VkCommandBuffer commands, uint32_t first, uint32_t count)>;
    double run(uint32_t segments, const Record& record);

    Runtime& runtime_;
    Phase* progress_;
    uint32_t segments_at_once_ = 1;
    double record_us_ = 0;
    uint32_t submissions_ = 0;
};

}  // namespace vkattn::tools
