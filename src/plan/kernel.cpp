#include "kernel.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

namespace vkattn::core {
namespace {

constexpr float log2_e = 1.44269504088896340736f;

uint32_t bytes(const Problem& p, uint64_t stride) {
    return static_cast<uint32_t>(stride * p.element_bytes);
}

// Extreme scales stay numbers: 0 * inf in a kernel would be NaN.
float finite(float x) {
    return std::clamp(x, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
}

shared::ForwardPush make_push(const Problem& p, bool arguments) {
    shared::ForwardPush c{};
    if (!arguments) {
        const auto put = [&](const VkattnStrides& s, uint32_t* at) {
            at[0] = bytes(p, s.batch);
            at[1] = bytes(p, s.head);
            at[2] = bytes(p, s.seq);
        };
        put(p.query_strides, &c.query_batch);
        put(p.key_strides, &c.key_batch);
        put(p.value_strides, &c.value_batch);
        put(p.out_strides, &c.out_batch);
    }
    c.seqlen_q = p.seqlen_q;
    c.seqlen_kv = p.seqlen_kv;
    c.heads = p.num_heads_q | p.group_size << 16;
    c.scale_log2 = finite(p.softcap > 0 ? p.softmax_scale / p.softcap : p.softmax_scale * log2_e);
    c.softcap_log2 = finite(p.softcap * log2_e);
    c.bound_lo = p.bound_lo;
    c.bound_hi = p.bound_hi;
    return c;
}

// An array with an element for each batch is given, and may be read.
bool has_lengths(const Problem& p) {
    return p.kv_lengths != 0 && p.batch != 0;
}

bool has_offsets(const Problem& p) {
    return p.align == VKATTN_ALIGN_OFFSETS && p.batch != 0;
}

}  // namespace

bool needs_arguments(const Problem& p) {
    return !p.narrow_strides() || p.mask != VKATTN_MASK_NONE || p.kv_lengths != 0 ||
           p.align == VKATTN_ALIGN_OFFSETS;
}

shared::ForwardArguments forward_arguments(const Problem& p) {
    shared::ForwardArguments a{};
    size_t at = 0;
    for (int t = 0; t < 4; t++)
        for (const uint64_t stride : {p.strides(t).batch, p.strides(t).head, p.strides(t).seq})
            a.stride[at++] = stride * p.element_bytes;
    std::copy(std::begin(p.mask_strides), std::end(p.mask_strides), a.mask_stride);
    a.key_limit = p.key_limit;
    a.mask_key_step = p.mask_per_key;
    a.follow_lengths = p.follow_lengths;
    a.class_heads = a.class_batches = 1;
    a.present = (has_lengths(p) ? PRESENT_KV_LENGTHS : 0) | (has_offsets(p) ? PRESENT_QUERY_OFFSETS : 0);
    return a;
}

void place_arguments(Plan& plan) {
    const Problem& p = plan.problem;
    using Arguments = shared::ForwardArguments;
    const auto patch = [&](size_t at, Region region) {
        plan.argument_patches.push_back({static_cast<uint32_t>(at), region});
    };
    const auto or_block = [](bool present, Region region) { return present ? region : Region::arguments; };
    if (p.mask != VKATTN_MASK_NONE) patch(offsetof(Arguments, mask), Region::mask);
    patch(offsetof(Arguments, classes), Region::arguments);  // until there are classes
    patch(offsetof(Arguments, kv_lengths), or_block(has_lengths(p), Region::kv_lengths));
    patch(offsetof(Arguments, query_offsets), or_block(has_offsets(p), Region::query_offsets));
    reserve_scratch(plan, Region::arguments, plan.arguments.size());
}

Variant variant_for(Variant float32, VkattnDtype dtype, const DeviceCaps& caps) {
    if (dtype == VKATTN_DTYPE_FLOAT32) return float32;
    const uint32_t first = static_cast<uint32_t>(float32) + (dtype == VKATTN_DTYPE_FLOAT16 ? 1 : 3);
    const auto variant = static_cast<Variant>(first), packed = static_cast<Variant>(first + 1);
    const bool lacks = (needs_of(variant) & NEED_16BIT_STORAGE) != 0 && !caps.storage_16bit;
    return lacks ? packed : variant;
}

Dispatch common_dispatch(const Problem& p, Variant variant, const TileChoice& tiles, bool arguments) {
    Dispatch d;
    d.variant = variant;
    const TileNumbers& n = tiles.numbers;
    d.specialization[SPEC_THREADS] = n.threads;
    d.specialization[SPEC_LANES] = n.lanes;
    d.specialization[SPEC_ROWS] = n.rows;
    d.specialization[SPEC_COLS] = n.cols;
    d.specialization[SPEC_CHUNK] = n.chunk;
    d.specialization[SPEC_P_BLOCKS] = n.p_blocks;
    d.specialization[SPEC_V_KEYS] = n.v_keys;
    d.specialization[SPEC_PREFETCH] = n.prefetch;
    d.specialization[SPEC_UNROLL] = n.unroll;
    d.specialization[SPEC_HEAD_DIM_QK] = p.head_dim_qk;
    d.specialization[SPEC_HEAD_DIM_V] = p.head_dim_v;
    d.specialization[SPEC_WIDE_LOADS] = p.alignment_bytes % (4 * p.element_bytes) == 0;
    d.specialization[SPEC_ARGUMENTS] = arguments;
    d.specialization[SPEC_WIDE_ROWS] = !p.narrow_rows(tiles.tile_q(), tiles.tile_kv(), tiles.pack);
    d.specialization[SPEC_SOFTCAP] = p.softcap > 0;
    d.specialization[SPEC_PACK] = tiles.pack;
    d.specialization[SPEC_SLICES] = 1;
    d.specialization[SPEC_ROLLED] = n.rolled;
    d.specialization[SPEC_MASK] = p.mask == VKATTN_MASK_BOOL    ? MASK_BOOL
                                  : p.mask == VKATTN_MASK_FLOAT ? MASK_FLOAT
                                                                : MASK_NONE;
    d.specialization[SPEC_POOL_VEC4] = tiles.pool_vec4;
    const shared::ForwardPush push = make_push(p, arguments);
    std::memcpy(d.push.data(), &push, sizeof push);
    if (arguments) {
        d.patches.push_back({offsetof(shared::ForwardPush, query_batch), Region::arguments});
        d.reads |= bit(Region::arguments);
        if (has_lengths(p)) d.reads |= bit(Region::kv_lengths);
        if (has_offsets(p)) d.reads |= bit(Region::query_offsets);
    }
    return d;
}

uint64_t scratch_limit(const DeviceCaps& caps, const Options& options) {
    return std::min(options.max_scratch_bytes != 0 ? options.max_scratch_bytes : default_max_scratch_bytes,
                    caps.max_buffer_bytes);
}

uint64_t scratch_left(const DeviceCaps& caps, const Options& options, const Plan& plan) {
    const uint64_t most = scratch_limit(caps, options);
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

// A second on a slow device of the type: drivers kill what runs for two (Windows, amdgpu). The rates are guesses on the
// low side; measured: lavapipe on 2 cores 2e10 a second, an H200 3.5e13.
uint64_t dispatch_limit(const DeviceCaps& caps, const Options& options) {
    if (options.max_dispatch_flops != 0) return options.max_dispatch_flops;
    if (caps.type != DeviceType::discrete) return 50'000'000'000;
    // Large devices must not idle: a fifth of a second for each multiprocessor that does 1e11. An H200's do 1.6e11 in
    // the backward, 2.7e11 in the forward.
    return std::max<uint64_t>(500'000'000'000, uint64_t{caps.multiprocessors} * 20'000'000'000);
}

// Heads stay together, then query tiles: parts of the keys are the last to be torn apart.
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
