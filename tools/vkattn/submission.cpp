#include "submission.hpp"

#include <algorithm>

namespace vkattn::tools {
namespace {

constexpr double wanted_ms = 250;  // Windows and amdgpu lose patience after about 2 s

}  // namespace

double Submitter::run(const Plan& plan, const VkattnForwardArgs& args) {
    return run(plan.segments(), [&](VkCommandBuffer c, uint32_t first, uint32_t count) {
        plan.cmd_forward(c, args, first, count);
    });
}

double Submitter::run(const Plan& plan, const VkattnBackwardArgs& args) {
    return run(plan.segments(), [&](VkCommandBuffer c, uint32_t first, uint32_t count) {
        plan.cmd_backward(c, args, first, count);
    });
}

double Submitter::run(uint32_t segments, const Record& record) {
    double ms = 0;
    uint32_t first = 0;
    record_us_ = 0;
    submissions_ = 0;
    do {
        const uint32_t count = std::min(segments_at_once_, segments - first);
        double record_us = 0;
        const double took = runtime_.submit([&](VkCommandBuffer c) { record(c, first, count); }, &record_us);
        ms += took;
        record_us_ += record_us;
        submissions_++;
        first += count;
        if (progress_ != nullptr) progress_->advance(count);
        // At most twice as many: segments are not all alike.
        const double fitting = took > 0 ? wanted_ms * count / took : segments;
        segments_at_once_ = static_cast<uint32_t>(std::clamp(fitting, 1.0, 2.0 * segments_at_once_));
    } while (first < segments);
    return ms;
}

}  // namespace vkattn::tools
