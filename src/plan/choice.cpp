#include "plan.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "build.hpp"
#include "caller_arrays.hpp"
#include "combine.hpp"
#include "kernel_rows.hpp"

namespace vkattn::core {
namespace {

constexpr const char* for_comparison = "for comparison";
constexpr const char* no_matrix_unit = "CPUs have no matrix unit, `tiles` is faster";
constexpr const char* no_dot_products = "CPUs have no 16-bit dot products, `tiles` is faster";
constexpr const char* rounds_nothing = "it rounds no operands";
constexpr const char* takes_no_float32 = "it rounds no float32";

// In order of preference. CPUs emulate matrix units, which is slower than `tiles`: on lavapipe 217 instead of 52 ms at
// D64, N 512 (docs/tuning.md).
constexpr ForwardKernel forward_kernels[] = {
    {"rows_dot", nullptr, takes_no_float32, no_dot_products, plan_forward_rows_dot},
    {"matrix_rows", nullptr, nullptr, no_matrix_unit, plan_forward_matrix_rows},
    {"rows", nullptr, nullptr, nullptr,
     plan_forward_rows},  // bound by loads on most devices, so that rounding would gain nothing
    {"matrix", nullptr, nullptr, no_matrix_unit, plan_forward_matrix},
    {"matrix_khr", for_comparison, nullptr, nullptr, plan_forward_matrix_khr},
    {"tiles_dot", nullptr, takes_no_float32, no_dot_products, plan_forward_tiles_dot},
    {"tiles", nullptr, rounds_nothing, nullptr, plan_forward_tiles},
    {"materialized", for_comparison, nullptr, nullptr, plan_materialized},
};

constexpr BackwardKernel backward_kernels[] = {
    {"matrix", nullptr, nullptr, no_matrix_unit, plan_backward_matrix},
    {"matrix_khr", for_comparison, nullptr, nullptr, plan_backward_matrix_khr},
    {"tiles_dot", nullptr, takes_no_float32, no_dot_products, plan_backward_tiles_dot},
    {"tiles", nullptr, rounds_nothing, nullptr, plan_backward_tiles},
    {"materialized", for_comparison, nullptr, nullptr, plan_materialized_backward},
};

// Tells why the planner does not choose a kernel by itself; null if it may.
template <class Kernel>
const char* why_opt_in(const Kernel& kernel, bool rounds, const DeviceCaps& caps) {
    if (kernel.opt_in_reason != nullptr) return kernel.opt_in_reason;
    if (rounds) return kernel.opt_in_for_rounding;
    return caps.type == DeviceType::cpu ? kernel.opt_in_on_cpus : nullptr;
}

// Bits of the regions with this role.
uint32_t regions_of(Role role) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < static_cast<uint32_t>(Region::count); i++)
        if (role_of(static_cast<Region>(i)) == role) bits |= 1u << i;
    return bits;
}

// Refuses a plan that needs a kernel or a form of a module which was left out of this build. A CPU does not run matrix
// kernels in their form for GPUs either: lavapipe (Mesa 26.1.6) adds the products of equal tiles in another order
// where their loops are unrolled otherwise, so that a float mask's alignment changed the last bit of dkey.
Result<bool> check_kernels(const DeviceCaps& caps, const Plan& plan) {
    for (const Pipeline& pipeline : plan.pipelines) {
        const Kernel kernel = pipeline.module.kernel;
        if (!has_kernel(caps, kernel)) return missing_kernel(kernel);
        const bool missing =
            info_of(kernel).on_matrices ? caps.missing_matrix_cpu_forms : caps.missing_cpu_forms;
        if (!missing) continue;
        if (pipeline.module.has(macros::ROLLED))
            return unsupported("options.tuning", "rolled = 1: this build has no forms for CPUs");
        if (caps.type == DeviceType::cpu && info_of(kernel).on_matrices)
            return unsupported("", "this build has no form of it for CPUs (VKATTN_CPU_FORMS)");
    }
    return true;
}

// Refuses a kernel that failed a self-test on this device, even if it is asked for by name. With 16-bit dot products
// the forward's verdict counts for the backward too, because only the forward's self-test has subnormal numbers.
Result<bool> check_verdict(const DeviceCaps& caps, const Plan& plan, std::string_view kernel) {
    // A plan that decodes keys first has decode_rows, a module for mixed types. It does not count, because the plan's
    // other kernels read what it has decoded, with modules for one type.
    const bool mixed = std::ranges::any_of(plan.pipelines, [](const Pipeline& p) {
        return p.module.has(macros::MIXED) && p.module.kernel != Kernel::decode_rows;
    });
    for (const bool backward : {true, false}) {
        if (backward != plan.backward.has_value() && (backward || !kernel.ends_with("_dot"))) continue;
        const KernelVerdict* const verdict =
            verdict_on(caps, backward, kernel, plan.problem.dtype, plan.operands, mixed);
        if (verdict != nullptr && !verdict->failure.empty())
            return unsupported("", "it failed the self-test on this device: " + verdict->failure);
    }
    return true;
}

// Puts modules of the variant that is asked for in the place of the library's.
Result<bool> take_variant(const Options& options, Plan& plan) {
    if (options.variant.empty()) return true;
    if (options.variants.empty())
        return invalid("options.variant",
                       fmt::format("the context was given no module of '{}'", excerpt(options.variant)));
    bool taken = plan.pipelines.empty();
    std::set<std::string> names;
    for (Pipeline& pipeline : plan.pipelines) {
        names.insert(name_of(pipeline.module));
        for (const Module& other : options.variants)
            if (other.kernel == pipeline.module.kernel && other.macros == pipeline.module.macros) {
                pipeline.module = other;
                taken = true;
            }
    }
    if (taken) return true;
    return unsupported("options.variant", fmt::format("'{}' has no module of this plan, which takes {}",
                                                      excerpt(options.variant), fmt::join(names, ", ")));
}

// A dispatch waits if it reads what was written, or writes what was read, or rewrites what was written, since the last
// barrier.
void place_barriers(Plan& plan) {
    const uint32_t rewritten = regions_of(Role::rewritten);
    uint32_t read = 0, written = 0;
    for (Dispatch& d : plan.dispatches) {
        const Pipeline& p = plan.pipelines[d.pipeline];
        d.barrier_before = ((p.reads & written) | (p.writes & (read | (written & rewritten)))) != 0;
        if (d.barrier_before) read = written = 0;
        read |= p.reads;
        written |= p.writes;
    }
}

template <class Kernels>
std::vector<std::string> names_of(const Kernels& kernels) {
    std::vector<std::string> names;
    for (const auto& k : kernels) names.emplace_back(k.name);
    return names;
}

// Plans with the kernel that is asked for, or with the first that fits. `rounds` is true if float32 operands of the
// products may be rounded. make(kernel) plans with one kernel.
template <class Kernels, class Make>
Result<Plan> choose_plan(const DeviceCaps& caps, const Options& options, const Kernels& kernels, bool rounds,
                         const Make& make) {
    const bool automatic = options.kernel.empty() || options.kernel == "auto";
    if (!automatic && std::none_of(std::begin(kernels), std::end(kernels),
                                   [&](const auto& k) { return options.kernel == k.name; }))
        return invalid("options.kernel",
                       fmt::format("no kernel is named '{}'; there are: auto, {}", excerpt(options.kernel),
                                   fmt::join(names_of(kernels), ", ")));
    if (const std::string why = refuse_device(caps); !why.empty()) return unsupported("device", why);
    std::vector<Refusal> refused;
    std::optional<Plan> chosen;
    Failure last;
    for (const auto& kernel : kernels) {
        const char* const reason = why_opt_in(kernel, rounds, caps);
        const bool by_name = reason != nullptr;
        const bool wanted = automatic ? !by_name && !chosen : options.kernel == kernel.name;
        if (!wanted) {
            refused.push_back({kernel.name, !automatic ? "another kernel was asked for"
                                            : by_name  ? std::string("only by name: ") + reason
                                                       : "a preferred kernel fits"});
            continue;
        }
        Result<Plan> plan = make(kernel);
        Result<bool> usable = plan ? check_kernels(caps, *plan) : plan.failure();
        if (usable) usable = check_verdict(caps, *plan, kernel.name);
        if (usable) {
            chosen = std::move(*plan);
            chosen->kernel = kernel.name;
        } else {
            last = usable.failure();
            refused.push_back({kernel.name, last.message});
        }
    }
    if (!chosen) return last;
    chosen->refused = std::move(refused);
    chosen->caller_arrays = chosen->backward ? caller_arrays_of(chosen->problem, *chosen->backward)
                                             : caller_arrays_of(chosen->problem);
    add_argument_writes(*chosen);
    if (auto ok = take_variant(options, *chosen); !ok) return ok.failure();
    place_barriers(*chosen);
    return std::move(*chosen);
}

}  // namespace

const char* name_of(Region region) {
    static constexpr const char* names[] = {
#define REGION(name, role) #name,
#include "regions.def"
    };
    return names[static_cast<size_t>(region)];
}

Role role_of(Region region) {
    static constexpr Role roles[] = {
#define REGION(name, role) Role::role,
#include "regions.def"
    };
    return roles[static_cast<size_t>(region)];
}

std::vector<std::string> kernel_names() {
    return names_of(forward_kernels);
}

std::string refuse_device(const DeviceCaps& caps) {
    if (caps.api_version < version_1_2) return "Vulkan 1.2 is needed";
    if (!caps.buffer_device_address) return "the feature bufferDeviceAddress is needed";
    if (caps.max_push_constant_bytes < max_push_bytes) return "128 bytes of push constants are needed";
    return "";
}

Failure missing_kernel(Kernel kernel) {
    return unsupported("", fmt::format("this build has no {}", info_of(kernel).name));
}

Result<VkattnDtype> operand_type(const Problem& problem, const Options& options) {
    const auto given = static_cast<unsigned>(options.precision);
    if (given > VKATTN_PRECISION_BFLOAT16)
        return invalid("options.precision",
                       fmt::format("{} is not a VkattnPrecision", static_cast<int>(given)));
    if (given == VKATTN_PRECISION_STORAGE) {
        // Decoded blocks may be rounded to the type of the query, numbers of another type may not.
        for (const VkattnDtype dtype : {problem.key_dtype, problem.value_dtype})
            if (dtype != problem.dtype && !storage_of(dtype).has_blocks()) return VKATTN_DTYPE_FLOAT32;
        return problem.dtype;
    }
    const VkattnDtype type = given == VKATTN_PRECISION_FLOAT16 ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_BFLOAT16;
    if (problem.dtype != VKATTN_DTYPE_FLOAT32 && problem.dtype != type)
        return invalid("options.precision", fmt::format("{} for a problem in {}: only float32 is rounded",
                                                        name_of(type), name_of(problem.dtype)));
    return type;
}

RowKind row_kind_of(const Problem& p, const Options& options) {
    return {p.head_dim_qk, p.head_dim_v, p.dtype, p.key_dtype, p.value_dtype, options.precision};
}

// True if options.precision has some operand rounded to another type for the products.
static bool rounds_operands(const Problem& p, const Options& options, VkattnDtype operands) {
    const auto is_rounded = [&](VkattnDtype dtype) {
        return !storage_of(dtype).has_blocks() && dtype != operands;
    };
    return options.precision != VKATTN_PRECISION_STORAGE &&
           (is_rounded(p.dtype) || is_rounded(p.key_dtype) || is_rounded(p.value_dtype));
}

Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    const auto operands = operand_type(problem, options);
    if (!operands) return operands.failure();
    return choose_plan(caps, options, forward_kernels, rounds_operands(problem, options, *operands),
                       [&](const ForwardKernel& kernel) { return kernel.make(caps, problem, options); });
}

Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                       const Options& options) {
    if (options.num_splits > 1) return invalid("options.num_splits", "the backward does not split the keys");
    if (problem.value_in_key != 0)
        return unsupported("problem.value_in_key", "only the forward takes value from key");
    for (const auto& [field, dtype] :
         {std::pair{"problem.key_dtype", problem.key_dtype}, {"problem.value_dtype", problem.value_dtype}})
        if (storage_of(dtype).has_blocks())
            return unsupported(field, fmt::format("{} has no gradient", name_of(dtype)));
    const auto operands = operand_type(problem, options);
    if (!operands) return operands.failure();
    return choose_plan(
        caps, options, backward_kernels, rounds_operands(problem, options, *operands),
        [&](const BackwardKernel& kernel) { return kernel.make(caps, problem, backward, options); });
}

Result<Plan> make_plan(const DeviceCaps& caps, const Combine& combine) {
    if (const std::string why = refuse_device(caps); !why.empty()) return unsupported("device", why);
    if (!has_kernel(caps, Kernel::combine)) return missing_kernel(Kernel::combine);
    Plan plan;
    plan.combine = combine;
    plan.caller_arrays = caller_arrays_of(combine);
    plan.kernel = "combine";
    if (auto ok = add_combine(caps, combine, PartStatistics{.sinks = true}, false, UINT64_MAX, plan); !ok)
        return ok.failure();
    return plan;
}

}  // namespace vkattn::core
