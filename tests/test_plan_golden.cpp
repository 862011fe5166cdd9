// Plans in a few words, for every profile and some typical problems, against tests/golden/plans.txt.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "plan_cases.hpp"
#include "plan_golden.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

struct Case {
    const char* name;
    HeadDims dims;
    Shape shape;
    Features features{};
    Layout layout = Layout::contiguous;
    bool backward = false;
    const char* kernel = "auto";
    uint32_t alignment_bytes = 16;
};

using F = Features;
constexpr VkattnDtype f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;
constexpr VkattnMaskType mask_bool = VKATTN_MASK_BOOL, mask_float = VKATTN_MASK_FLOAT;
constexpr HeadDims d64{64, 64}, d128{128, 128}, d256{256, 256}, mla{576, 512};

// clang-format off
const Case cases[] = {
    {"d64-8k", d64, {1, 16, 16, 8192, 8192}},
    {"d64-causal-1m", d64, {1, 1, 1, 1u << 20, 1u << 20, true}},
    {"d128-gqa-causal", d128, {2, 32, 8, 4096, 4096, true}, {}, Layout::bshd},
    {"d128-wide", d128, {2, 4, 4, 1024, 1024}, {}, Layout::wide},
    {"d128-decode", d128, {8, 32, 8, 1, 32768}},
    {"d59-window", {59, 59}, {1, 2, 2, 97, 1025, true, 128}, {}, Layout::contiguous, false, "auto", 4},
    {"d96-heads-70000", {96, 96}, {70000, 1, 1, 64, 64}},
    {"d256", d256, {1, 8, 8, 2048, 2048}},
    {"d576-mla", mla, {1, 128, 1, 16, 8192, true}},
    {"d576", {576, 576}, {1, 4, 4, 512, 512}},
    {"empty", d64, {1, 4, 4, 0, 512}},
    {"d64-baseline", d64, {2, 64, 64, 2048, 2048}, {}, Layout::contiguous, false, "materialized"},
    {"d128-baseline-16k", d128, {1, 1, 1, 16385, 16384}, {}, Layout::contiguous, false, "materialized"},
    {"d64-f16-8k", d64, {1, 16, 16, 8192, 8192}, F{.dtype = f16}},
    {"d128-bf16-decode", d128, {8, 32, 8, 1, 32768}, F{.dtype = bf16}},
    {"d128-f16-packed", d128, {64, 32, 8, 4, 4096, true}, F{.dtype = f16}, Layout::bshd},
    {"d128-split", d128, {1, 16, 4, 16, 131072, true}},
    {"d576-mla-split", mla, {1, 16, 1, 1, 65536}, F{.dtype = bf16}},
    {"d64-5-parts", d64, {1, 8, 8, 1024, 8192}, F{.num_splits = 5}},
    {"d64-mask", d64, {2, 16, 16, 4096, 4096}, F{.mask = mask_bool, .mask_shape = MaskShape::all_heads}},
    {"d64-key-mask-lengths", d64, {4, 8, 8, 512, 2048},
     F{.mask = mask_bool, .mask_shape = MaskShape::keys_of_batch, .kv_lengths = true}},
    {"d64-mask-2-parts", d64, {1, 8, 2, 256, 65536},
     F{.mask = mask_bool, .mask_shape = MaskShape::shared, .num_splits = 2}},
    {"d64-1m-keys-cut", d64, {1, 4, 4, 1024, 1u << 20}, F{.max_dispatch_flops = 20'000'000'000}},
    {"d64-4m-window", d64, {1, 1, 1, 1u << 22, 1u << 22, true, 1024}, F{.dtype = f16}},
    {"d128-invariant", d128, {8, 32, 8, 1, 32768}, F{.batch_invariant = true}},
    {"backward-d64-4k", d64, {1, 16, 16, 4096, 4096}, {}, Layout::contiguous, true},
    {"backward-d128-gqa-causal", d128, {2, 32, 8, 4096, 4096, true}, F{.dtype = f16}, Layout::bshd, true},
    {"backward-d576-mla", mla, {1, 16, 1, 512, 512, true}, F{.dtype = bf16}, Layout::contiguous, true},
    {"backward-d64-bias", d64, {2, 8, 8, 2048, 2048},
     F{.mask = mask_float, .mask_shape = MaskShape::all_batches}, Layout::contiguous, true},
    {"backward-d64-key-bias", d64, {2, 8, 8, 2048, 2048},
     F{.mask = mask_float, .mask_shape = MaskShape::keys}, Layout::contiguous, true},
    {"backward-d128-cut", d128, {1, 8, 1, 16384, 16384, true}, F{.max_dispatch_flops = 5'000'000'000},
     Layout::contiguous, true},
    {"backward-empty", d64, {2, 4, 4, 0, 512}, {}, Layout::contiguous, true},
};

// These cases are planned on devices with matrix units; the device part of a line says what is known of their layout.
const Shape square{1, 16, 16, 4096, 4096}, gqa{2, 32, 8, 4096, 4096, true}, n_8k{1, 16, 16, 8192, 8192};
const Case matrix_cases[] = {
    {"d64-f16-8k", d64, n_8k, F{.dtype = f16}},
    {"d128-f16-gqa-causal", d128, gqa, F{.dtype = f16}},
    {"d128-bf16-gqa-causal", d128, gqa, F{.dtype = bf16}},
    {"d576-bf16-mla", mla, {1, 128, 1, 16, 8192, true}, F{.dtype = bf16}},
    {"d128-f16-decode", d128, {8, 32, 8, 1, 32768}, F{.dtype = f16}},
    {"d64-f16-window", d64, {1, 4, 4, 65536, 65536, true, 1024}, F{.dtype = f16}},
    {"d64-f16-3-parts", d64, {1, 8, 8, 1024, 8192}, F{.dtype = f16, .num_splits = 3}},
    {"d128-f16-split", d128, {1, 16, 4, 16, 131072, true}, F{.dtype = f16}},
    {"d64-f16-invariant", d64, square, F{.dtype = f16, .batch_invariant = true}},
    {"backward-d64-f16", d64, square, F{.dtype = f16}, Layout::contiguous, true},
    {"backward-d128-bf16-gqa-causal", d128, gqa, F{.dtype = bf16}, Layout::contiguous, true},
    {"backward-d256-f16", d256, square, F{.dtype = f16}, Layout::contiguous, true},
    {"backward-d128-f16-float-mask", d128, square,
     F{.dtype = f16, .mask = mask_float, .mask_shape = MaskShape::shared}, Layout::contiguous, true},
    {"backward-d576-f16", mla, {1, 16, 1, 512, 512, true}, F{.dtype = f16}, Layout::contiguous, true},
};
// clang-format on

// Dispatches of one shape are one item: "3 x scores[16,32,32]".
std::string dispatches_of(const core::Plan& plan) {
    std::vector<std::pair<std::string, size_t>> items;
    size_t barriers = 0;
    for (const core::Dispatch& d : plan.dispatches) {
        barriers += d.barrier_before;
        const std::string text =
            fmt::format("{}[{},{},{}]", name_of(pipeline_of(plan, d)), d.groups[0], d.groups[1], d.groups[2]);
        size_t i = 0;
        while (i < items.size() && items[i].first != text) i++;
        if (i == items.size()) items.emplace_back(text, 0);
        items[i].second++;
    }
    std::string out;
    for (const auto& [text, count] : items)
        out += fmt::format("{}{} x {}", out.empty() ? "" : " + ", count, text);
    return out.empty() ? "no dispatch" : fmt::format("{}, barriers {}", out, barriers);
}

std::string line_of(const Profile& device, const Case& c) {
    VkattnProblem problem = make_problem(c.dims, c.shape, c.layout, c.alignment_bytes, c.features.dtype);
    set_features(problem, c.features);
    core::Options options = options_of(c.features);
    options.kernel = c.kernel;
    const std::string head = fmt::format("{} {}: ", device.name, c.name);
    const core::Problem p = resolved(problem);
    const auto plan = c.backward ? make_plan(device.caps, p, make_backward(p), options)
                                 : make_plan(device.caps, p, options);
    if (!plan) return head + fmt::format("UNSUPPORTED '{}' {}", plan.failure().field, plan.failure().message);
    return head + fmt::format("{} {} {}x{} threads {} shared {}; {}; parts {}, scratch {}", plan->kernel,
                              plan->tuning_row, plan->tiles.tile_q, plan->tiles.tile_kv, plan->tiles.threads,
                              plan->tiles.shared_bytes, dispatches_of(*plan), plan->num_splits,
                              plan->scratch_bytes);
}

std::vector<std::string> current_lines() {
    std::vector<std::string> lines;
    for (const Profile& device : profiles())
        for (const Case& c : cases) lines.push_back(line_of(device, c));
    // Devices with matrix units are planned for once more with these enabled, before a probe and after it.
    for (const Profile& device : matrix_devices())
        for (const Profile& state : {Profile{device.name + " unknown-layout", device.caps},
                                     Profile{device.name + " nvidia-layout", probed(device.caps)}}) {
            if (state.name.ends_with(" nvidia-layout") && device.name != "nvidia_h200") continue;
            for (const Case& c : matrix_cases) lines.push_back(line_of(state, c));
        }
    return lines;
}

}  // namespace

TEST_CASE("golden: plans are what they were") {
    check_golden("plans.txt", current_lines());
}
