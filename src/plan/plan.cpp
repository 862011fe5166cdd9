#include "plan.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

// In order of preference.
constexpr Kernel kernels[] = {
    {"tiles", true, plan_forward_tiles},
    {"materialized", false, plan_materialized},
};

// What no kernel of this version does.
Result<bool> check_supported(const Problem& p) {
    if (p.dtype != VKATTN_DTYPE_FLOAT32)
        return unsupported("problem.dtype", fmt::format("no kernel stores {} yet", name_of(p.dtype)));
    if (p.mask != VKATTN_MASK_NONE) return unsupported("problem.mask", "no kernel reads a mask yet");
    if (p.kv_lengths != 0) return unsupported("problem.kv_lengths", "no kernel reads kv lengths yet");
    if (p.align == VKATTN_ALIGN_OFFSETS)
        return unsupported("problem.align", "no kernel reads an offset per batch yet");
    return true;
}

// A dispatch waits if it reads what was written, or writes what was read or written, since the last barrier. No two
// dispatches of a plan write the same element of an output, so outputs alone make nobody wait.
void place_barriers(Plan& plan) {
    constexpr uint32_t outputs = bit(Region::out) | bit(Region::lse);
    uint32_t read = 0, written = 0;
    for (Dispatch& d : plan.dispatches) {
        d.barrier_before = ((d.reads & written) | (d.writes & (read | (written & ~outputs)))) != 0;
        if (d.barrier_before) read = written = 0;
        read |= d.reads;
        written |= d.writes;
    }
}

}  // namespace

const char* name_of(Variant variant) {
    static constexpr const char* names[] = {
#define VKATTN_VARIANT(name, file, macros, needs) #name,
#include "variants.def"
#undef VKATTN_VARIANT
    };
    return names[static_cast<size_t>(variant)];
}

const char* name_of(Region region) {
    static constexpr const char* names[] = {"query", "key",        "value",         "out",       "lse",
                                            "mask",  "kv_lengths", "query_offsets", "arguments", "scores"};
    return names[static_cast<size_t>(region)];
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Kernel& k : kernels) names.emplace_back(k.name);
    return names;
}

std::string refuse_device(const DeviceCaps& caps) {
    if (caps.api_version < version_1_2) return "Vulkan 1.2 is needed";
    if (!caps.buffer_device_address) return "the feature bufferDeviceAddress is needed";
    if (caps.max_push_constant_bytes < sizeof(shared::ForwardPush))
        return "128 bytes of push constants are needed";
    return "";
}

Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Options& options) {
    if (const std::string why = refuse_device(caps); !why.empty()) return unsupported("device", why);
    const bool automatic = options.kernel.empty() || options.kernel == "auto";
    if (!automatic && std::none_of(std::begin(kernels), std::end(kernels),
                                   [&](const Kernel& k) { return options.kernel == k.name; }))
        return invalid("options.kernel", fmt::format("no kernel is named '{}'; there are: auto, {}",
                                                     options.kernel, fmt::join(kernel_names(), ", ")));
    if (auto ok = check_supported(problem); !ok) return ok.failure();
    std::vector<Refusal> refused;
    std::optional<Plan> chosen;
    Failure last;
    for (const Kernel& kernel : kernels) {
        const bool wanted = automatic ? kernel.automatic && !chosen : options.kernel == kernel.name;
        if (!wanted) {
            const char* why = !automatic         ? "another kernel was asked for"
                              : kernel.automatic ? "a preferred kernel fits"
                                                 : "only by name: for comparison";
            refused.push_back({kernel.name, why});
            continue;
        }
        Result<Plan> plan = kernel.make(caps, problem, options);
        if (plan) {
            chosen = std::move(*plan);
            chosen->kernel = kernel.name;
        } else {
            last = plan.failure();
            refused.push_back({kernel.name, last.message});
        }
    }
    if (!chosen) return last;
    chosen->refused = std::move(refused);
    place_barriers(*chosen);
    return std::move(*chosen);
}

}  // namespace vkattn::core
