#include "create.hpp"

#include <fmt/format.h>

namespace vkattn::core {
namespace {

// True if the failure says that this row of the tuning table is not for this driver. Only a pipeline that is built from
// the row's numbers can say so; a lost device, memory that ran out and a module of the application cannot.
bool blames_row(const Failure& failure, const Plan& plan) {
    for (const VkResult r :
         {VK_ERROR_DEVICE_LOST, VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY})
        if (failure.vk_result == r) return false;
    if (!failure.pipeline) return false;
    const Pipeline& pipeline = plan.pipelines.at(*failure.pipeline);
    return pipeline.of_tuning_row && pipeline.module.variant == 0;
}

}  // namespace

Result<std::unique_ptr<VkattnPlan>> with_pipelines(VkattnContext& context, Plan&& plan) {
    std::string label = context.vk.has_labels() ? label_of(plan) : std::string();
    auto made = std::make_unique<VkattnPlan>(VkattnPlan{&context, std::move(plan), {}, std::move(label)});
    made->pipelines.resize(made->plan.pipelines.size(), VK_NULL_HANDLE);
    for (const Dispatch& d : made->plan.dispatches) {
        if (made->pipelines[d.pipeline] != VK_NULL_HANDLE) continue;
        const Result<VkPipeline> pipeline = context.pipelines.get(made->plan.pipelines[d.pipeline]);
        if (!pipeline) {
            Failure failure = pipeline.failure();
            failure.pipeline = d.pipeline;
            return failure;
        }
        made->pipelines[d.pipeline] = *pipeline;
    }
    return made;
}

Result<Plan> plan_request(VkattnContext& context, Request& request) {
    {
        const std::lock_guard lock(context.mutex);
        const auto rejected = context.rejected_rows.find(row_kind_of(request.problem, request.options));
        if (rejected != context.rejected_rows.end()) request.options.rejected_rows = rejected->second;
        const auto variants = context.variants.find(request.options.variant);
        if (variants != context.variants.end()) request.options.variants = variants->second.modules;
    }
    return request.backward ? make_plan(context.caps, request.problem, *request.backward, request.options)
                            : make_plan(context.caps, request.problem, request.options);
}

Result<std::unique_ptr<VkattnPlan>> create_plan(VkattnContext& context, Request request) {
    std::optional<Failure> failed;
    for (;;) {
        Result<Plan> plan = plan_request(context, request);
        if (!plan) return failed ? *failed : plan.failure();
        auto made = with_pipelines(context, Plan(*plan));
        if (made) return made;
        failed = made.failure();
        // A tuning that was asked for has no next row.
        if (!request.options.tuning.empty() || !blames_row(*failed, *plan)) return *failed;
        context.messages.tell(VKATTN_MESSAGE_WARNING, [&] {
            return fmt::format("the tuning row {} is set aside, because this driver cannot build it: {}",
                               plan->tuning_row, failed->message);
        });
        const std::lock_guard lock(context.mutex);
        context.rejected_rows[row_kind_of(request.problem, request.options)].push_back(plan->tuning_row);
    }
}

}  // namespace vkattn::core
