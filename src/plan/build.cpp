#include "launch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

namespace vkattn::core {
namespace {

constexpr float log2_e = 1.44269504088896340736f;

// A Cut's words follow each other as they do in the push constants: they are copied at once.
template <class Push>
constexpr CutPlace place_of_cut() {
    if constexpr (requires(Push p) { p.end_step; }) {
        static_assert(offsetof(Push, end_step) == offsetof(Push, first_x) + offsetof(Cut, end_step));
        return {offsetof(Push, first_x), sizeof(Cut)};
    } else if constexpr (requires(Push p) { p.first_x; }) {
        static_assert(offsetof(Push, first_z) == offsetof(Push, first_x) + 8);
        return {offsetof(Push, first_x), 12};
    }
    return {0, 0};
}

}  // namespace

Scales scales_of(const Problem& p) {
    // A capped score less an lse must stay above NO_MAXIMUM of shaders/lib/scores.glsl, in base 2. Kernels divide by
    // the cap, which must not be subnormal.
    const float softcap =
        p.softcap > 0 ? std::clamp(p.softcap, std::numeric_limits<float>::min(), 4.4e37f) : 0;
    const float unit = has_natural_scores(p) ? 1 : log2_e;
    return {p.softmax_scale * unit, softcap * unit};
}

bool needs_arguments(const Problem& p) {
    return !p.narrow_strides() || p.mask != VKATTN_MASK_NONE ||
           std::ranges::any_of(optional_arrays(p), &OptionalArray::asked);
}

shared::ForwardArguments forward_arguments(const Problem& p) {
    shared::ForwardArguments a{};
    std::ranges::copy(p.stride_bytes(), a.stride);
    set_term_arguments(a, p);
    a.class_heads = a.class_batches = 1;
    for (const OptionalArray& array : optional_arrays(p)) a.present |= array.given ? array.present_bit : 0;
    return a;
}

void place_arguments(Plan& plan) {
    const Problem& p = plan.problem;
    using Arguments = shared::ForwardArguments;
    const auto patch = [&](size_t at, Region region) {
        plan.argument_patches.push_back({static_cast<uint32_t>(at), region});
    };
    if (p.mask != VKATTN_MASK_NONE) patch(offsetof(Arguments, mask), Region::mask);
    patch(offsetof(Arguments, classes), Region::arguments);  // until there are classes
    for (const OptionalArray& array : optional_arrays(p))
        if (array.at) patch(*array.at, array.given ? array.region : Region::arguments);
    reserve_scratch(plan, Region::arguments,
                    ceil_div(plan.arguments.size(), ARGUMENT_PART_BYTES) * uint64_t{ARGUMENT_PART_BYTES});
}

void add_argument_writes(Plan& plan) {
    static_assert(sizeof(push::write_arguments::words) == ARGUMENT_PART_BYTES);
    if (plan.dispatches.empty()) return;
    std::vector<Dispatch> writes;
    for (size_t first = 0; first < plan.arguments.size(); first += ARGUMENT_PART_BYTES) {
        const size_t bytes = std::min<size_t>(ARGUMENT_PART_BYTES, plan.arguments.size() - first);
        Launch<kernels::write_arguments> launch;
        launch.module = {Kernel::write_arguments, macros::F32};
        launch.writes = bit(Region::arguments);
        std::memcpy(launch.push.words, plan.arguments.data() + first, bytes);
        VKATTN_PATCH(launch, block, Region::arguments, first);
        for (const Patch& patch : plan.argument_patches)
            if (patch.at >= first && patch.at < first + bytes)
                launch.patch(offsetof(push::write_arguments, words) + patch.at - first, patch.region,
                             patch.add);
        Dispatch d;
        d.pipeline = add_pipeline(plan, launch.pipeline());
        d.groups = {1, 1, 1};
        writes.push_back(d);
    }
    plan.dispatches.insert(plan.dispatches.begin(), writes.begin(), writes.end());
}

bool has_dot_products(const DeviceCaps& caps, VkattnDtype dtype) {
    return caps.storage_16bit && ((dtype == VKATTN_DTYPE_FLOAT16 && caps.dot_float16) ||
                                  (dtype == VKATTN_DTYPE_BFLOAT16 && caps.dot_bfloat16));
}

Result<bool> check_dot_products(const DeviceCaps& caps, VkattnDtype dtype) {
    if (dtype == VKATTN_DTYPE_FLOAT32)
        return unsupported("", "its products are of 16-bit types, not float32");
    if (has_dot_products(caps, dtype)) return true;
    return unsupported("", fmt::format("the device has no 16-bit dot products of {}", name_of(dtype)));
}

bool sees_one_key(const Problem& p) {
    if (p.seqlen_q == 0) return false;
    const Problem::Keys keys = p.visible_keys(0, p.seqlen_q - 1);
    return p.key_limit == 1 || (keys.begin < keys.end && p.bound_lo == p.bound_hi);
}

Module module_for(Kernel kernel, const Problem& problem, const DeviceCaps& caps, bool dot) {
    if (!problem.has_mixed_types()) return module_for(kernel, problem.dtype, caps, dot);
    return {kernel, macros::MIXED | (caps.storage_16bit ? 0 : macros::PACKED)};
}

Module module_for(Kernel kernel, VkattnDtype dtype, const DeviceCaps& caps, bool dot) {
    if (dtype == VKATTN_DTYPE_FLOAT32) return {kernel, macros::F32};
    const uint32_t type = dtype == VKATTN_DTYPE_FLOAT16 ? macros::F16 : macros::BF16;
    return {kernel, type | (dot ? macros::DOT : caps.storage_16bit ? 0 : macros::PACKED)};
}

CutPlace cut_place(Kernel kernel) {
    static constexpr CutPlace places[] = {
#define KERNEL(kernel) place_of_cut<push::kernel>(),
#include "kernels.def"
    };
    return places[static_cast<size_t>(kernel)];
}

uint32_t constant_of(Kernel kernel, const ConstantValues& constants, std::string_view name) {
    const auto names = info_of(kernel).constants;
    for (size_t i = 0; i < names.size(); i++)
        if (names[i] == name) return constants[i];
    return 0;
}

uint32_t constant_of(const Pipeline& pipeline, std::string_view name) {
    return constant_of(pipeline.module.kernel, pipeline.constants, name);
}

void add_dispatch(Plan& plan, uint32_t pipeline, std::array<uint64_t, 3> groups, const Cut& cut,
                  uint64_t flops) {
    Dispatch d;
    d.pipeline = pipeline;
    for (size_t i = 0; i < 3; i++) d.groups[i] = static_cast<uint32_t>(groups[i]);
    d.cut = cut;
    d.flops = flops;
    plan.dispatches.push_back(d);
}

Cut cut_of(const Box& box) {
    Cut cut;
    for (size_t i = 0; i < 3; i++) cut.first[i] = static_cast<uint32_t>(box.first[i]);
    return cut;
}

uint64_t scratch_limit(const DeviceCaps& caps, const Options& options) {
    return std::min(options.max_scratch_bytes != 0 ? options.max_scratch_bytes : default_max_scratch_bytes,
                    caps.max_buffer_bytes);
}

uint64_t scratch_left(const DeviceCaps& caps, const Options& options, const Plan& plan) {
    uint64_t most = scratch_limit(caps, options);
    if (options.max_scratch_bytes == 0)  // spilled dS has a limit of its own (spill.cpp)
        for (const ScratchRegion& r : plan.scratch)
            if (r.region == Region::spill) most = std::min(most + r.size_bytes, caps.max_buffer_bytes);
    return most - std::min(most, plan.scratch_bytes);
}

Plan begin_plan(const Problem& problem, const TileChoice& tiles, bool arguments) {
    Plan plan;
    plan.problem = problem;
    plan.tuning_row = tiles.row;
    plan.tuning = tiles.tuning();
    plan.tiles = {tiles.tile_q(), tiles.tile_kv(), tiles.threads(), tiles.pool_vec4 * 16};
    if (arguments && !problem.empty_output() && needs_arguments(problem)) {
        const shared::ForwardArguments a = forward_arguments(problem);
        plan.arguments.resize(sizeof a);
        std::memcpy(plan.arguments.data(), &a, sizeof a);
        place_arguments(plan);
    }
    return plan;
}

void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes) {
    plan.scratch.push_back({region, plan.scratch_bytes, size_bytes});
    plan.scratch_bytes += (size_bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

// A dispatch of this size takes a second on a slow device of the type; drivers kill what runs for two (Windows,
// amdgpu). The rates are guesses on the low side: lavapipe on 2 cores does 2e10 flops a second, an H200 3.5e13.
uint64_t dispatch_limit(const DeviceCaps& caps, const Options& options) {
    if (options.max_dispatch_flops != 0) return options.max_dispatch_flops;
    if (caps.type != DeviceType::discrete) return 50'000'000'000;
    // Large devices get more, so that they do not idle: a fifth of a second for each multiprocessor, at 1e11 flops a
    // second. An H200's multiprocessors do 1.6e11 in the backward and 2.7e11 in the forward.
    return std::max<uint64_t>(500'000'000'000, uint64_t{caps.multiprocessors} * 20'000'000'000);
}

// A box takes as many heads (x) as it may, then query tiles (y), then parts of the keys (z).
Result<std::vector<Box>> cut_grid(const DeviceCaps& caps, std::array<uint64_t, 3> grid, uint64_t unit,
                                  uint64_t limit) {
    uint64_t budget = limit / std::max<uint64_t>(1, unit);
    if (budget == 0)
        return unsupported("options.max_dispatch_flops",
                           fmt::format("one workgroup may cost {}, the limit is {}", unit, limit));
    std::array<uint64_t, 3> most{};
    uint64_t boxes = 1;
    for (size_t i = 0; i < 3; i++) {
        most[i] = std::min({grid[i], budget, uint64_t{caps.max_workgroup_count[i]}});
        if (most[i] == 0) return std::vector<Box>{};
        budget /= most[i];
        boxes *= std::min<uint64_t>((grid[i] + most[i] - 1) / most[i], max_boxes + 1);
    }
    if (boxes > max_boxes)
        return unsupported(
            limit == UINT64_MAX ? "" : "options.max_dispatch_flops",
            fmt::format("this would take {} dispatches, at most {} are made", boxes, max_boxes));
    std::vector<Box> all;
    all.reserve(boxes);
    for (uint64_t y = 0; y < grid[1]; y += most[1])
        for (uint64_t x = 0; x < grid[0]; x += most[0])
            for (uint64_t z = 0; z < grid[2]; z += most[2])
                all.push_back({{x, y, z},
                               {std::min(most[0], grid[0] - x), std::min(most[1], grid[1] - y),
                                std::min(most[2], grid[2] - z)}});
    return all;
}

}  // namespace vkattn::core
