#include "submission.hpp"

#include <algorithm>

namespace vkattn::tools {
namespace {

constexpr double wanted_ms = 250;  // Windows and amdgpu lose patience after about 2 s

}  // namespace

double Submitter::run(const Plan& plan, const VkattnForwardArgs& args) {
    const uint32_t segments = plan.segments();
    double ms = 0;
    uint32_t first = 0;
    record_us_ = 0;
    submissions_ = 0;
    do {
        const uint32_t count = std::min(segments_at_once_, segments - first);
        double record_us = 0;
        const double took =
            runtime_.submit([&](VkCommandBuffer c) { plan.cmd_forward(c, args, first, count); }, &record_us);
        ms += took;
        record_us_ += record_us;
        submissions_++;
        first += count;
        // At most twice as many: segments are not all alike.
        const double fitting = took > 0 ? wanted_ms * count / took : segments;
        segments_at_once_ = static_cast<uint32_t>(std::clamp(fitting, 1.0, 2.0 * segments_at_once_));
    } while (first < segments);
    return ms;
}

}  // namespace vkattn::tools
