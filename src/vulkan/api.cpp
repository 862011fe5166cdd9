// The C ABI: checks the structs, keeps exceptions in, turns Results into statuses.
#include <cstring>
#include <memory>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "caps.hpp"
#include "context.hpp"
#include "create.hpp"
#include "device_tests/probe.hpp"
#include "features.hpp"
#include "guarded.hpp"
#include "record.hpp"
#include "self_test.hpp"
#include "struct_sizes.hpp"
#include "vkattn/vkattn.h"

using namespace vkattn::core;

struct VkattnRequirements {
    Features features;
};

namespace {

template <class T>
T zeroed() {
    T t;
    std::memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    return t;
}

Result<bool> create_context(const VkattnContextInfo* given, VkattnContext** out) {
    if (out == nullptr) return invalid("context", "is null");
    *out = nullptr;
    const auto info = read_struct("info", given, zeroed<VkattnContextInfo>());
    if (!info) return info.failure();
    auto context = make_context(*info);
    if (!context) return context.failure();
    *out = context->release();
    return true;
}

Result<Problem> read_problem(const VkattnProblem* given) {
    const auto read = read_struct("problem", given, default_problem());
    if (!read) return read.failure();
    return resolve(*read);
}

Result<Options> read_options(const VkattnOptions* given) {
    Options chosen;
    if (given == nullptr) return chosen;
    const auto o = read_struct("options", given, default_options());
    if (!o) return o.failure();
    if (o->kernel != nullptr) chosen.kernel = o->kernel;
    if (o->tuning != nullptr) chosen.tuning = o->tuning;
    if (o->variant != nullptr) chosen.variant = o->variant;
    chosen.max_scratch_bytes = o->max_scratch_bytes;
    chosen.max_dispatch_flops = o->max_dispatch_flops;
    chosen.num_splits = o->num_splits;
    chosen.batch_invariant = o->batch_invariant != 0;
    chosen.precision = o->precision;
    return chosen;
}

Result<Request> read_request(const VkattnProblem* problem, const VkattnOptions* options) {
    const auto read = read_problem(problem);
    if (!read) return read.failure();
    auto chosen = read_options(options);
    if (!chosen) return chosen.failure();
    return Request{*read, std::nullopt, std::move(*chosen)};
}

Result<Request> read_request(const VkattnProblem* problem, const VkattnBackward* backward,
                             const VkattnOptions* options) {
    const auto read = read_problem(problem);
    if (!read) return read.failure();
    const auto given = backward != nullptr ? read_struct("backward", backward, default_backward())
                                           : Result<VkattnBackward>(default_backward());
    if (!given) return given.failure();
    auto wanted = resolve(*read, *given);
    if (!wanted) return wanted.failure();
    auto chosen = read_options(options);
    if (!chosen) return chosen.failure();
    return Request{*read, *wanted, std::move(*chosen)};
}

Result<Combine> read_combine(const VkattnCombine* given) {
    const auto read = read_struct("combine", given, default_combine());
    if (!read) return read.failure();
    return resolve(*read);
}

// Fills what the caller's struct has room for.
Result<bool> write_info(const Plan& plan, VkattnPlanInfo* given) {
    const auto read = read_struct("info", given, zeroed<VkattnPlanInfo>());
    if (!read) return read.failure();
    VkattnPlanInfo info = *read;
    copy_text(info.kernel, sizeof info.kernel, plan.kernel);
    copy_text(info.tuning_row, sizeof info.tuning_row, plan.tuning_row);
    info.segments = static_cast<uint32_t>(plan.dispatches.size());
    info.num_splits = plan.num_splits;
    info.scratch_bytes = plan.scratch_bytes;
    info.flops = info.max_segment_flops = 0;
    for (const Dispatch& d : plan.dispatches) {
        info.max_segment_flops = std::max(info.max_segment_flops, d.flops);
        info.flops += std::min(d.flops, UINT64_MAX - info.flops);
    }
    std::memcpy(given, &info, given->struct_size);
    return true;
}

// The answer of the three calls that plan and build nothing.
Result<bool> answer(const Result<Plan>& plan, VkattnPlanInfo* info) {
    if (!plan) return plan.failure();
    return info != nullptr ? write_info(*plan, info) : true;
}

// A shape whose pipeline cannot be built is left out: its results stay zero, which says nothing.
Result<bool> record_probe(VkCommandBuffer commands, VkattnContext& context, VkDeviceAddress results) {
    VkattnPlan plan{&context, probe_plan(context.caps), {}, "vkattn probe of the matrix units"};
    plan.pipelines.resize(plan.plan.pipelines.size(), VK_NULL_HANDLE);
    std::vector<Dispatch> built;
    for (const Dispatch& d : plan.plan.dispatches) {
        const Result<VkPipeline> pipeline = context.pipelines.get(plan.plan.pipelines[d.pipeline]);
        if (!pipeline && pipeline.failure().status == VKATTN_DEVICE_LOST) return pipeline.failure();
        if (!pipeline) {
            context.messages.tell(VKATTN_MESSAGE_WARNING, [&] {
                return "the probe leaves out a shape of the matrix unit: " + pipeline.failure().message;
            });
            continue;
        }
        plan.pipelines[d.pipeline] = *pipeline;
        built.push_back(d);
    }
    plan.plan.dispatches = std::move(built);
    return vkattn::core::record_probe(commands, plan, results);
}

Result<Plan> plan_combine(const VkattnContext& context, const VkattnCombine* given) {
    const auto combine = read_combine(given);
    if (!combine) return combine.failure();
    return make_plan(context.caps, *combine);
}

Result<Plan> plan_block_map(const VkattnContext& context, const VkattnProblem* given) {
    const auto problem = read_problem(given);
    if (!problem) return problem.failure();
    return make_block_map_plan(context.caps, *problem);
}

// Creates a plan of a pass that takes no options: plan_of(context, given) plans it.
template <class Given>
Result<bool> create(VkattnContext* context, const Given* given,
                    Result<Plan> (*plan_of)(const VkattnContext&, const Given*), VkattnPlan** out) {
    if (out == nullptr) return invalid("plan", "is null");
    *out = nullptr;
    if (context == nullptr) return invalid("context", "is null");
    Result<Plan> plan = plan_of(*context, given);
    if (!plan) return plan.failure();
    auto made = with_pipelines(*context, std::move(*plan));
    if (!made) return made.failure();
    *out = made->release();
    return true;
}

// Checks whether there would be such a plan.
template <class Given>
Result<bool> check(VkattnContext* context, const Given* given,
                   Result<Plan> (*plan_of)(const VkattnContext&, const Given*), VkattnPlanInfo* info) {
    if (context == nullptr) return invalid("context", "is null");
    return answer(plan_of(*context, given), info);
}

// Records all segments of such a plan, by `record`.
template <class Args>
Result<bool> record_all(VkCommandBuffer commands, const VkattnPlan* plan, const Args* given,
                        Result<bool> (*record)(VkCommandBuffer, const VkattnPlan&, const Args&)) {
    if (commands == VK_NULL_HANDLE) return invalid("command_buffer", "is null");
    if (plan == nullptr) return invalid("plan", "is null");
    const auto args = read_struct("args", given, zeroed<Args>());
    if (!args) return args.failure();
    return record(commands, *plan, *args);
}

// Gives the caller, who may only ask for its length, a text.
Result<bool> give_text(const std::string& all, char* text, size_t capacity, size_t* length) {
    if (text == nullptr && capacity != 0) return invalid("text", "is null, but capacity is not 0");
    if (length != nullptr) *length = all.size();
    if (capacity != 0) copy_text(text, capacity, all);
    return true;
}

// Segments first .. first + count-1 of a plan, by `record`.
template <class Args>
Result<bool> record_range(VkCommandBuffer commands, const VkattnPlan* plan, const Args* given, uint32_t first,
                          uint32_t count,
                          Result<bool> (*record)(VkCommandBuffer, const VkattnPlan&, const Args&, uint32_t,
                                                 uint32_t)) {
    if (commands == VK_NULL_HANDLE) return invalid("command_buffer", "is null");
    if (plan == nullptr) return invalid("plan", "is null");
    const auto args = read_struct("args", given, zeroed<Args>());
    if (!args) return args.failure();
    const uint32_t segments = vkattn_plan_segments(plan);
    if (first > segments) return invalid("first", fmt::format("{}: there are {} segments", first, segments));
    if (count > segments - first)
        return invalid("count", fmt::format("{} from {} on: there are {} segments", count, first, segments));
    return record(commands, *plan, *args, first, count);
}

}  // namespace

extern "C" {

const char* vkattn_version(void) {
#define VKATTN_TEXT(x) #x
#define VKATTN_VERSION_TEXT(a, b, c) VKATTN_TEXT(a) "." VKATTN_TEXT(b) "." VKATTN_TEXT(c)
    return VKATTN_VERSION_TEXT(VKATTN_VERSION_MAJOR, VKATTN_VERSION_MINOR, VKATTN_VERSION_PATCH);
}

const char* vkattn_status_name(VkattnStatus status) {
    switch (status) {
        case VKATTN_OK:
            return "OK";
        case VKATTN_INVALID_ARGUMENT:
            return "INVALID_ARGUMENT";
        case VKATTN_UNSUPPORTED:
            return "UNSUPPORTED";
        case VKATTN_OUT_OF_HOST_MEMORY:
            return "OUT_OF_HOST_MEMORY";
        case VKATTN_DEVICE_ERROR:
            return "DEVICE_ERROR";
        case VKATTN_INTERNAL_ERROR:
            return "INTERNAL_ERROR";
        case VKATTN_DEVICE_LOST:
            return "DEVICE_LOST";
        default:
            return "UNKNOWN";
    }
}

void vkattn_problem_init_sized(VkattnProblem* problem, size_t struct_size) {
    init_struct(problem, struct_size, default_problem());
}
void vkattn_options_init_sized(VkattnOptions* options, size_t struct_size) {
    init_struct(options, struct_size, default_options());
}
void vkattn_context_info_init_sized(VkattnContextInfo* info, size_t struct_size) {
    init_struct(info, struct_size, zeroed<VkattnContextInfo>());
}
void vkattn_module_init_sized(VkattnModule* module, size_t struct_size) {
    init_struct(module, struct_size, zeroed<VkattnModule>());
}
void vkattn_forward_args_init_sized(VkattnForwardArgs* args, size_t struct_size) {
    init_struct(args, struct_size, zeroed<VkattnForwardArgs>());
}
void vkattn_scratch_init_sized(VkattnScratch* scratch, size_t struct_size) {
    init_struct(scratch, struct_size, zeroed<VkattnScratch>());
}
void vkattn_plan_info_init_sized(VkattnPlanInfo* info, size_t struct_size) {
    init_struct(info, struct_size, zeroed<VkattnPlanInfo>());
}
void vkattn_combine_init_sized(VkattnCombine* combine, size_t struct_size) {
    init_struct(combine, struct_size, default_combine());
}
void vkattn_backward_init_sized(VkattnBackward* backward, size_t struct_size) {
    init_struct(backward, struct_size, default_backward());
}
void vkattn_backward_args_init_sized(VkattnBackwardArgs* args, size_t struct_size) {
    init_struct(args, struct_size, zeroed<VkattnBackwardArgs>());
}
void vkattn_combine_args_init_sized(VkattnCombineArgs* args, size_t struct_size) {
    init_struct(args, struct_size, zeroed<VkattnCombineArgs>());
}

VkattnStatus vkattn_requirements_create(PFN_vkGetInstanceProcAddr get, VkInstance instance,
                                        VkPhysicalDevice device, VkattnRequirements** requirements,
                                        VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (requirements == nullptr) return invalid("requirements", "is null");
        *requirements = nullptr;
        if (get == nullptr) return invalid("get_instance_proc_addr", "is null");
        if (instance == VK_NULL_HANDLE) return invalid("instance", "is null");
        if (device == VK_NULL_HANDLE) return invalid("physical_device", "is null");
        const auto vk = load_instance_functions(get, instance);
        if (!vk) return vk.failure();
        // An instance of 1.2 or later is the caller's promise, checked again in vkattn_context_create.
        const DeviceCaps caps = query_supported_caps(*vk, device, VK_API_VERSION_1_4);
        if (const std::string why = refuse_device(caps); !why.empty())
            return unsupported("physical_device", why);
        *requirements = new VkattnRequirements{{*vk, device}};
        return true;
    });
}

void vkattn_requirements_destroy(VkattnRequirements* requirements) {
    delete requirements;
}

uint32_t vkattn_requirements_extensions(const VkattnRequirements* requirements,
                                        const char* const** extensions) {
    if (extensions != nullptr)
        *extensions = requirements != nullptr ? requirements->features.extensions().data() : nullptr;
    return requirements != nullptr ? static_cast<uint32_t>(requirements->features.extensions().size()) : 0;
}

const VkPhysicalDeviceFeatures2* vkattn_requirements_features(const VkattnRequirements* requirements) {
    return requirements != nullptr ? &requirements->features.chain() : nullptr;
}

VkattnStatus vkattn_requirements_merge(VkattnRequirements* requirements, void* chain, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (requirements == nullptr) return invalid("requirements", "is null");
        if (chain == nullptr) return invalid("chain", "is null");
        requirements->features.merge_into(*static_cast<VkBaseOutStructure*>(chain));
        return true;
    });
}

VkattnStatus vkattn_context_create(const VkattnContextInfo* info, VkattnContext** context,
                                   VkattnError* error) {
    return guarded(error, [&] { return create_context(info, context); });
}

void vkattn_context_destroy(VkattnContext* context) {
    delete context;
}

uint64_t vkattn_probe_size(const VkattnContext* context) {
    if (context == nullptr) return 0;
    try {
        return context->probed ? 0 : probe_size(context->caps);
    } catch (...) {
        return 0;
    }
}

VkattnStatus vkattn_cmd_probe(VkCommandBuffer commands, VkattnContext* context, VkDeviceAddress results,
                              VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (commands == VK_NULL_HANDLE) return invalid("command_buffer", "is null");
        if (context == nullptr) return invalid("context", "is null");
        if (vkattn_probe_size(context) == 0) return true;
        if (results == 0 || results % 4 != 0)
            return invalid("results", "is null, or not a multiple of 4 bytes");
        return record_probe(commands, *context, results);
    });
}

VkattnStatus vkattn_context_probed(VkattnContext* context, const void* results, uint64_t size_bytes,
                                   VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        const uint64_t size = vkattn_probe_size(context);
        if (size_bytes != size)
            return invalid("size_bytes",
                           fmt::format("{} is not the {} of vkattn_probe_size", size_bytes, size));
        if (size == 0) return true;
        if (results == nullptr) return invalid("results", "is null");
        const auto* const bytes = static_cast<const std::byte*>(results);
        if (!has_probe_results(context->caps, bytes))
            return invalid("results",
                           "hold nothing of any shape: the probe was not executed, its writes were not made "
                           "visible to the host, or the driver builds none of its pipelines");
        note_probe(context->caps, bytes);
        context->probed = true;
        for (const MatrixShape& s : context->caps.matrices)
            if (s.layout == 0)
                context->messages.tell(VKATTN_MESSAGE_INFO, [&] {
                    return fmt::format("the probe found no layout that kernels know of {}x{}x{} in {}", s.m,
                                       s.n, s.k, name_of(s.dtype));
                });
        return true;
    });
}

VkattnStatus vkattn_context_add_module(VkattnContext* context, const VkattnModule* module,
                                       VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        const auto given = read_struct("module", module, zeroed<VkattnModule>());
        if (!given) return given.failure();
        return add_module(*context, *given);
    });
}

VkattnStatus vkattn_probe_results(const VkattnContext* context, char* text, size_t capacity, size_t* length,
                                  VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        const std::string all = context->probed ? probe_text(context->caps, vkattn_version()) : "";
        return give_text(all, text, capacity, length);
    });
}

uint64_t vkattn_self_test_size(const VkattnContext* context) {
    if (context == nullptr) return 0;
    try {
        return self_test_size(context->caps);
    } catch (...) {
        return 0;
    }
}

uint32_t vkattn_self_test_count(const VkattnContext* context) {
    if (context == nullptr) return 0;
    try {
        return static_cast<uint32_t>(pending_tests(context->caps).size());
    } catch (...) {
        return 0;
    }
}

VkattnStatus vkattn_self_test_build(VkattnContext* context, uint32_t index, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        return build_self_test(*context, index);
    });
}

VkattnStatus vkattn_cmd_self_test(VkCommandBuffer commands, VkattnContext* context, VkBuffer buffer,
                                  VkDeviceSize offset, VkDeviceAddress address, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (commands == VK_NULL_HANDLE) return invalid("command_buffer", "is null");
        if (context == nullptr) return invalid("context", "is null");
        if (self_test_size(context->caps) == 0) return true;
        if (buffer == VK_NULL_HANDLE) return invalid("buffer", "is null");
        if (offset % 4 != 0) return invalid("offset", "is not a multiple of 4 bytes");
        if (address == 0 || address % scratch_alignment != 0)
            return invalid("address",
                           fmt::format("is null, or not a multiple of {} bytes", scratch_alignment));
        return record_self_test(commands, *context, {buffer, offset, address});
    });
}

VkattnStatus vkattn_context_self_tested(VkattnContext* context, const void* results, uint64_t size_bytes,
                                        VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        if (size_bytes == 0 && self_test_size(context->caps) == 0) return true;
        if (results == nullptr) return invalid("results", "is null");
        return note_self_test(*context, {static_cast<const std::byte*>(results), size_bytes});
    });
}

VkattnStatus vkattn_self_test_verdicts(const VkattnContext* context, char* text, size_t capacity,
                                       size_t* length, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        return give_text(verdicts_text(context->caps, vkattn_version()), text, capacity, length);
    });
}

VkattnStatus vkattn_plan_create(VkattnContext* context, const VkattnProblem* problem,
                                const VkattnOptions* options, VkattnPlan** plan, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (plan == nullptr) return invalid("plan", "is null");
        *plan = nullptr;
        if (context == nullptr) return invalid("context", "is null");
        auto request = read_request(problem, options);
        if (!request) return request.failure();
        auto made = create_plan(*context, std::move(*request));
        if (!made) return made.failure();
        *plan = made->release();
        return true;
    });
}

VkattnStatus vkattn_backward_create(VkattnContext* context, const VkattnProblem* problem,
                                    const VkattnBackward* backward, const VkattnOptions* options,
                                    VkattnPlan** plan, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (plan == nullptr) return invalid("plan", "is null");
        *plan = nullptr;
        if (context == nullptr) return invalid("context", "is null");
        auto request = read_request(problem, backward, options);
        if (!request) return request.failure();
        auto made = create_plan(*context, std::move(*request));
        if (!made) return made.failure();
        *plan = made->release();
        return true;
    });
}

VkattnStatus vkattn_plan_check(VkattnContext* context, const VkattnProblem* problem,
                               const VkattnOptions* options, VkattnPlanInfo* info, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        auto request = read_request(problem, options);
        if (!request) return request.failure();
        return answer(plan_request(*context, *request), info);
    });
}

VkattnStatus vkattn_backward_check(VkattnContext* context, const VkattnProblem* problem,
                                   const VkattnBackward* backward, const VkattnOptions* options,
                                   VkattnPlanInfo* info, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (context == nullptr) return invalid("context", "is null");
        auto request = read_request(problem, backward, options);
        if (!request) return request.failure();
        return answer(plan_request(*context, *request), info);
    });
}

VkattnStatus vkattn_combine_check(VkattnContext* context, const VkattnCombine* given, VkattnPlanInfo* info,
                                  VkattnError* error) {
    return guarded(error, [&] { return check(context, given, plan_combine, info); });
}

VkattnStatus vkattn_block_map_check(VkattnContext* context, const VkattnProblem* problem,
                                    VkattnPlanInfo* info, VkattnError* error) {
    return guarded(error, [&] { return check(context, problem, plan_block_map, info); });
}

VkattnStatus vkattn_plan_info(const VkattnPlan* plan, VkattnPlanInfo* info, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (plan == nullptr) return invalid("plan", "is null");
        return write_info(plan->plan, info);
    });
}

void vkattn_plan_destroy(VkattnPlan* plan) {
    delete plan;
}

VkattnStatus vkattn_plan_scratch(const VkattnPlan* plan, VkattnScratch* scratch, VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (plan == nullptr) return invalid("plan", "is null");
        if (const auto read = read_struct("scratch", scratch, zeroed<VkattnScratch>()); !read)
            return read.failure();
        scratch->size_bytes = plan->plan.scratch_bytes;
        scratch->alignment_bytes = scratch_alignment;
        return true;
    });
}

VkattnStatus vkattn_plan_describe(const VkattnPlan* plan, char* text, size_t capacity, size_t* length,
                                  VkattnError* error) {
    return guarded(error, [&]() -> Result<bool> {
        if (plan == nullptr) return invalid("plan", "is null");
        return give_text(describe(plan->plan), text, capacity, length);
    });
}

uint32_t vkattn_plan_segments(const VkattnPlan* plan) {
    return plan != nullptr ? static_cast<uint32_t>(plan->plan.dispatches.size()) : 0;
}

VkattnStatus vkattn_cmd_forward(VkCommandBuffer commands, const VkattnPlan* plan,
                                const VkattnForwardArgs* args, VkattnError* error) {
    return vkattn_cmd_forward_range(commands, plan, args, 0, vkattn_plan_segments(plan), error);
}

VkattnStatus vkattn_cmd_forward_range(VkCommandBuffer commands, const VkattnPlan* plan,
                                      const VkattnForwardArgs* args, uint32_t first, uint32_t count,
                                      VkattnError* error) {
    return guarded(error, [&] { return record_range(commands, plan, args, first, count, record_forward); });
}

VkattnStatus vkattn_cmd_backward(VkCommandBuffer commands, const VkattnPlan* plan,
                                 const VkattnBackwardArgs* args, VkattnError* error) {
    return vkattn_cmd_backward_range(commands, plan, args, 0, vkattn_plan_segments(plan), error);
}

VkattnStatus vkattn_cmd_backward_range(VkCommandBuffer commands, const VkattnPlan* plan,
                                       const VkattnBackwardArgs* args, uint32_t first, uint32_t count,
                                       VkattnError* error) {
    return guarded(error, [&] { return record_range(commands, plan, args, first, count, record_backward); });
}

VkattnStatus vkattn_combine_create(VkattnContext* context, const VkattnCombine* combine, VkattnPlan** plan,
                                   VkattnError* error) {
    return guarded(error, [&] { return create(context, combine, plan_combine, plan); });
}

VkattnStatus vkattn_block_map_create(VkattnContext* context, const VkattnProblem* problem, VkattnPlan** plan,
                                     VkattnError* error) {
    return guarded(error, [&] { return create(context, problem, plan_block_map, plan); });
}

VkattnStatus vkattn_cmd_combine(VkCommandBuffer commands, const VkattnPlan* plan,
                                const VkattnCombineArgs* args, VkattnError* error) {
    return guarded(error, [&] { return record_all(commands, plan, args, record_combine); });
}

VkattnStatus vkattn_cmd_block_map(VkCommandBuffer commands, const VkattnPlan* plan,
                                  const VkattnForwardArgs* args, VkattnError* error) {
    return guarded(error, [&] { return record_all(commands, plan, args, record_block_map); });
}

}  // extern "C"
