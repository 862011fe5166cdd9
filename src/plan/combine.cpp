// The merge of partial outputs: one dispatch, or several where the grid cannot hold all rows.
#include <algorithm>
#include <cstddef>

#include "kernel.hpp"
#include "quirks.hpp"

namespace vkattn::core {
namespace {

using Push = shared::CombinePush;
constexpr uint32_t least_threads = 64;  // not measured: with one team the merge is short, and bound by memory
constexpr uint32_t most_threads = 256, most_teams = 8;

// Lanes of a row: a power of two, as many as there are vec4, and at least as many as a step has parts.
uint32_t lanes_for(uint32_t head_dim_v, uint32_t step) {
    uint32_t lanes = step;
    while (lanes < least_threads && 4 * lanes < head_dim_v) lanes *= 2;
    return lanes;
}

// Teams of a row, so that the loads of all its parts are under way at once: one or, for more than two steps of parts, as many
// as there can be, so that no more than two pipelines are ever built. H200, `vkattn bench --dtype f16 --heads-q 32 --heads-kv
// 8 --seqlen-q 1 --seqlen-kv 8192 --head-dim-qk 128 --kernel rows --num-splits N`: with one team 49 us at N = 64, 76 at 128,
// which is 1.7 us for a step of parts (when a step's loads came behind its statistics).
uint32_t teams_for(const DeviceCaps& caps, uint32_t parts, uint32_t step, uint32_t lanes) {
    const uint32_t most = std::min({most_threads, caps.max_invocations, caps.max_workgroup_size[0]}) / lanes;
    uint32_t teams = 1;
    while (parts > 2 * step && teams < most_teams && 2 * teams <= most) teams *= 2;
    return teams;
}

Push make_push(const Combine& c) {
    Push p{};
    const uint64_t parts = c.parts_element_bytes, out = c.element_bytes;
    p.part_stride = c.part_stride * parts;
    p.part_batch = c.parts_strides.batch * parts;
    p.part_head = c.parts_strides.head * parts;
    p.part_seq = c.parts_strides.seq * parts;
    p.out_batch = c.out_strides.batch * out;
    p.out_head = c.out_strides.head * out;
    p.out_seq = c.out_strides.seq * out;
    p.num_parts = c.num_parts;
    p.num_heads = c.num_heads;
    p.seqlen_q = c.seqlen_q;
    p.num_heads_all = c.batch * c.num_heads;
    return p;
}

// Whether a workgroup's rows lie within 31-bit offsets, in bytes, and so do the statistics of as many parts as a row has
// invocations.
bool narrow_rows(const Combine& c, uint32_t rows, uint32_t invocations) {
    const uint64_t limit = (uint64_t{1} << 31) - uint64_t{4} * VKATTN_MAX_HEAD_DIM;
    const uint64_t rows_of_part = uint64_t{c.batch} * c.num_heads * c.seqlen_q;
    return rows_of_part <= limit / 8 / std::min(invocations, c.num_parts) &&
           c.out_strides.seq <= limit / c.element_bytes / rows &&
           c.parts_strides.seq <= limit / c.parts_element_bytes / rows;
}

// Rows of four elements that can be loaded and stored at once, here and there.
bool wide(const Combine& c) {
    return c.alignment_bytes % (4 * c.element_bytes) == 0 &&
           c.alignment_bytes % (4 * c.parts_element_bytes) == 0;
}

}  // namespace

Result<std::vector<Dispatch>> combine_dispatches(const DeviceCaps& caps, const Combine& c, bool own_parts,
                                                 bool any_order, uint64_t limit) {
    Dispatch d;
    d.variant = variant_for(Variant::combine_f32, c.dtype, caps);
    // CPUs gain nothing by loads ahead, and SwiftShader takes seconds to compile them.
    const uint32_t step = caps.type == DeviceType::cpu ? 1 : 4, lanes = lanes_for(c.head_dim_v, step);
    const bool one_team = !any_order || quirk_no_divergent_addresses(caps);
    const uint32_t teams = one_team ? 1 : teams_for(caps, c.num_parts, step, lanes);
    const uint32_t threads = std::max(least_threads, lanes * teams), rows = threads / (lanes * teams);
    d.specialization[SPEC_THREADS] = threads;
    d.specialization[SPEC_LANES] = lanes;
    d.specialization[SPEC_TEAMS] = teams;
    d.specialization[SPEC_UNROLL] = step;
    d.specialization[SPEC_HEAD_DIM_V] = c.head_dim_v;
    d.specialization[SPEC_WIDE_LOADS] = wide(c);
    const bool narrow = narrow_rows(c, rows, lanes * teams);
    d.specialization[SPEC_WIDE_ROWS] = !narrow;
    d.specialization[SPEC_PARTS_MAX_SUM] = own_parts;
    d.specialization[SPEC_PARTS_FLOAT32] = c.parts_dtype == VKATTN_DTYPE_FLOAT32;
    if (!narrow && quirk_no_divergent_addresses(caps))
        return unsupported("", "rows lie 2^31 bytes apart, which this driver's compiler does not survive");
    Push push = make_push(c);
    d.patches = {{offsetof(Push, parts), Region::parts},
                 {offsetof(Push, parts_lse), Region::parts_lse},
                 {offsetof(Push, outp), Region::out},
                 {offsetof(Push, lse), Region::lse}};
    d.reads = bit(Region::parts) | bit(Region::parts_lse);
    d.writes = bit(Region::out) | bit(Region::lse);
    // A multiply-add for each element of each part, and what each invocation is told of each part.
    const uint64_t unit = uint64_t{rows} * c.num_parts * (c.head_dim_v + teams * lanes) * 4;
    const auto boxes =
        cut_grid(caps, {uint64_t{c.batch} * c.num_heads, ceil_div(c.seqlen_q, rows), 1}, unit, limit);
    if (!boxes) return boxes.failure();
    std::vector<Dispatch> all;
    for (const Box& box : *boxes) {
        push.first_head = static_cast<uint32_t>(box.first[0]);
        push.first_rows = static_cast<uint32_t>(box.first[1]);
        static_assert(sizeof push <= sizeof d.push);
        std::memcpy(d.push.data(), &push, sizeof push);
        d.groups = {static_cast<uint32_t>(box.count[0]), static_cast<uint32_t>(box.count[1]), 1};
        d.flops = box.count[0] * box.count[1] * unit;
        all.push_back(d);
    }
    return all;
}

}  // namespace vkattn::core
