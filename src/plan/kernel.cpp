#include "kernel.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

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

shared::ForwardPush make_push(const Problem& p) {
    shared::ForwardPush c{};
    if (p.narrow_strides()) {
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

}  // namespace

Dispatch forward_dispatch(const Problem& p, Variant variant, const TileChoice& tiles) {
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
    d.specialization[SPEC_WIDE_LOADS] = p.alignment_bytes % 16 == 0;
    d.specialization[SPEC_WIDE_STRIDES] = !p.narrow_strides();
    d.specialization[SPEC_WIDE_ROWS] = !p.narrow_rows(std::max(n.tile_q(), n.tile_kv()));
    d.specialization[SPEC_SOFTCAP] = p.softcap > 0;
    d.specialization[SPEC_POOL_VEC4] = tiles.pool_vec4;
    const shared::ForwardPush push = make_push(p);
    std::memcpy(d.push.data(), &push, sizeof push);
    if (!p.narrow_strides()) {
        d.patches.push_back({offsetof(shared::ForwardPush, extra), Region::arguments});
        d.reads |= bit(Region::arguments);
    }
    return d;
}

void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes) {
    plan.scratch.push_back({region, plan.scratch_bytes, size_bytes});
    plan.scratch_bytes += (size_bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

void add_arguments(Plan& plan) {
    const Problem& p = plan.problem;
    if (p.narrow_strides()) return;
    shared::WideStrides wide{};
    for (int t = 0; t < 4; t++) {
        wide.stride[3 * t] = p.strides(t).batch * p.element_bytes;
        wide.stride[3 * t + 1] = p.strides(t).head * p.element_bytes;
        wide.stride[3 * t + 2] = p.strides(t).seq * p.element_bytes;
    }
    plan.arguments.resize(sizeof wide);
    std::memcpy(plan.arguments.data(), &wide, sizeof wide);
    reserve_scratch(plan, Region::arguments, sizeof wide);
}

bool set_grid(const DeviceCaps& caps, uint64_t heads, uint64_t tiles, Dispatch& dispatch) {
    const uint64_t rows = std::min<uint64_t>(tiles, caps.max_workgroup_count[1]);
    const uint64_t layers = (tiles + rows - 1) / rows;
    if (heads > caps.max_workgroup_count[0] || layers > caps.max_workgroup_count[2]) return false;
    dispatch.groups = {static_cast<uint32_t>(heads), static_cast<uint32_t>(rows),
                       static_cast<uint32_t>(layers)};
    return true;
}

}  // namespace vkattn::core
