// What an embedder waits for on the host: the first use, with and without a pipeline cache, and every one after it.
#pragma once

#include <functional>

#include "common.hpp"

namespace vkattn::tools {

struct Startup {
    // Context, first plan and its recording, with an empty VkPipelineCache (drivers have caches of their own), then
    // with what that start left in it.
    double cold_ms = 0, warm_ms = 0;
    double plan_us = 0;    // a plan for another number of keys, median
    double record_us = 0;  // its recording, median
    uint32_t built = 0;    // pipelines that these plans built
};

// What is timed: a plan of a problem, and its recording with addresses at which there need be nothing.
struct StartupWork {
    std::function<Plan(VkattnContext*, const VkattnProblem&)> plan;
    std::function<void(VkCommandBuffer, const Plan&, const Buffer& scratch)> record;
};

// Nothing is executed. `problem`: dense, laid out by set_dense_layout; bshd: so.
Startup measure_startup(Runtime& runtime, const VkattnProblem& problem, bool bshd, const StartupWork& work);

}  // namespace vkattn::tools
