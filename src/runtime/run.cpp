// Runs plans in submissions that no driver's watchdog minds, with scratch where the caller has brought none.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime.hpp"

namespace vkattn::runtime {
namespace {

constexpr double wanted_ms = 250;  // Windows and amdgpu lose patience after about 2 s

using RecordRange = std::function<void(VkCommandBuffer commands, uint32_t first, uint32_t count)>;

void submit_in_pieces(VkattnRuntime& runtime, uint32_t segments, const RecordRange& record, VkattnRun& run) {
    uint32_t first = run.first_segment;
    if (first != 0 && first >= segments)
        fail(VKATTN_INVALID_ARGUMENT, fmt::format("{} is none of the plan's {} segments", first, segments),
             "run.first_segment");
    const Order whole = order_of(runtime, run);
    uint32_t at_once = std::max(run.segments_at_once, 1u);
    run.time_ms = run.record_us = 0;
    run.submissions = 0;
    do {
        const uint32_t count = std::min(at_once, segments - first);
        Order order;
        if (first == 0) order.wait = whole.wait;
        if (first + count >= segments) {
            order.signal = whole.signal;
            order.is_waited_for = whole.is_waited_for;
        }
        const Took took = runtime.submit([&](VkCommandBuffer c) { record(c, first, count); }, order);
        run.time_ms += took.time_ms;
        run.record_us += took.record_us;
        run.submissions++;
        first += count;
        if (!order.is_waited_for) break;
        if (run.progress != nullptr) run.progress(run.progress_user, first, segments);
        // At most twice as many: segments are not all alike.
        const double most = std::clamp(2.0 * at_once, 1.0, std::max<double>(segments, 1));
        const double fitting = took.time_ms > 0 ? wanted_ms * count / took.time_ms : most;
        at_once = static_cast<uint32_t>(std::clamp(fitting, 1.0, most));
    } while (first < segments && run.submissions != run.most_submissions);
    run.segments_at_once = at_once;
    run.first_segment = first < segments ? first : 0;
}

// The caller's arguments, with scratch for the time of this object where they have none and the plan needs some. What
// the library is to refuse is handed on as it is.
template <class Args>
class WithScratch {
  public:
    WithScratch(VkattnRuntime& runtime, const VkattnPlan* plan, const Args* args, const VkattnRun& run)
        : args_(args) {
        constexpr size_t least = offsetof(Args, scratch_address) + sizeof args->scratch_address;
        if (plan == nullptr || args == nullptr || args->struct_size < least ||
            args->struct_size > sizeof own_ || args->scratch_buffer != VK_NULL_HANDLE)
            return;
        VkattnScratch needed;
        vkattn_scratch_init(&needed);
        detail::call(vkattn_plan_scratch, plan, &needed);
        if (needed.size_bytes == 0) return;
        if (run.most_submissions != 0 || run.first_segment != 0 || run.asynchronous != 0)
            fail(VKATTN_INVALID_ARGUMENT, "has to be the caller's where a run takes longer than a call",
                 "args.scratch_buffer");
        scratch_.emplace(runtime, needed.size_bytes);
        std::memcpy(&own_, args, args->struct_size);
        own_.scratch_buffer = scratch_->buffer;
        own_.scratch_offset = 0;
        own_.scratch_bytes = 0;  // whatever it said of the caller's
        own_.scratch_address = scratch_->address;
        args_ = &own_;
    }
    const Args* get() const { return args_; }

  private:
    const Args* args_;
    Args own_{};
    std::optional<VkattnBuffer> scratch_;
};

}  // namespace

Order order_of(const VkattnRuntime& runtime, const VkattnRun& run) {
    const auto check_owner = [&](const VkattnSemaphore* semaphore, const char* field) {
        if (semaphore != nullptr && &semaphore->runtime != &runtime)
            fail(VKATTN_INVALID_ARGUMENT, "is of another runtime", field);
    };
    check_owner(run.wait_semaphore, "run.wait_semaphore");
    check_owner(run.signal_semaphore, "run.signal_semaphore");
    if (run.asynchronous != 0 && run.signal_semaphore == nullptr)
        fail(VKATTN_INVALID_ARGUMENT, "is null, and nothing would say when an asynchronous run has ended",
             "run.signal_semaphore");
    return {{run.wait_semaphore, run.wait_value},
            {run.signal_semaphore, run.signal_value},
            run.asynchronous == 0};
}

void run_forward(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnForwardArgs* args,
                 VkattnRun& run) {
    const WithScratch all(runtime, plan, args, run);
    const auto record = [&](VkCommandBuffer c, uint32_t first, uint32_t count) {
        detail::call(vkattn_cmd_forward_range, c, plan, all.get(), first, count);
    };
    submit_in_pieces(runtime, vkattn_plan_segments(plan), record, run);
}

void run_backward(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnBackwardArgs* args,
                  VkattnRun& run) {
    const WithScratch all(runtime, plan, args, run);
    const auto record = [&](VkCommandBuffer c, uint32_t first, uint32_t count) {
        detail::call(vkattn_cmd_backward_range, c, plan, all.get(), first, count);
    };
    submit_in_pieces(runtime, vkattn_plan_segments(plan), record, run);
}

// Combines and block maps have no ranges, so that each is one submission.
void run_combine(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnCombineArgs* args,
                 VkattnRun& run) {
    const auto record = [&](VkCommandBuffer c, uint32_t, uint32_t) {
        detail::call(vkattn_cmd_combine, c, plan, args);
    };
    submit_in_pieces(runtime, 1, record, run);
}

void run_block_map(VkattnRuntime& runtime, const VkattnPlan* plan, const VkattnForwardArgs* args,
                   VkattnRun& run) {
    const auto record = [&](VkCommandBuffer c, uint32_t, uint32_t) {
        detail::call(vkattn_cmd_block_map, c, plan, args);
    };
    submit_in_pieces(runtime, 1, record, run);
}

}  // namespace vkattn::runtime
