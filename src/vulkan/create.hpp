// From a request to a plan whose pipelines are built. The C ABI (api.cpp) and the self-test call it.
#pragma once

#include <memory>
#include <optional>

#include "context.hpp"

namespace vkattn::core {

// A forward, or the backward of one, as a caller wants it planned.
struct Request {
    Problem problem;
    std::optional<Backward> backward;
    Options options;
};

// Plans without the tuning rows that the context knows its driver cannot build.
Result<Plan> plan_request(VkattnContext& context, Request& request);
// Adds the plan's pipelines, which are built unless the context has them.
Result<std::unique_ptr<VkattnPlan>> with_pipelines(VkattnContext& context, Plan&& plan);
// Does both. A row that the driver cannot build is set aside for problems of this kind, and the next one is planned.
Result<std::unique_ptr<VkattnPlan>> create_plan(VkattnContext& context, Request request);

}  // namespace vkattn::core
