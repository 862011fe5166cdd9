// The merge of partial outputs: one dispatch, or several where the grid cannot hold all rows.
#include <algorithm>
#include <cstddef>

#include "combine.hpp"
#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"
#include "quirks.hpp"

namespace vkattn::core {
namespace {

using Push = push::combine;
constexpr uint32_t least_threads = 64;  // not measured: with one team the merge is short, and bound by memory
constexpr uint32_t most_threads = 256, most_teams = 8;

// Returns the lanes of a row: a power of two, one lane a vec4 up to least_threads, and at least one for each part of a
// step.
uint32_t lanes_for(uint32_t head_dim_v, uint32_t step) {
    uint32_t lanes = step;
    while (lanes < least_threads && 4 * lanes < head_dim_v) lanes *= 2;
    return lanes;
}

// Returns the teams of a row, which have the loads of all its parts under way at once. There is one team or, for more
// than two steps of parts, as many as fit: so no more than two pipelines are ever built. One team takes 1.7 us for a
// step of parts on an H200 (docs/tuning.md).
uint32_t teams_for(const DeviceCaps& caps, uint32_t parts, uint32_t step, uint32_t lanes) {
    const uint32_t most = caps.threads_up_to(most_threads) / lanes;
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

// True if a workgroup's rows lie within 31-bit offsets, in bytes, and so do the statistics of as many parts as a row
// has invocations.
bool narrow_rows(const Combine& c, uint32_t statistics_bytes, uint32_t rows, uint32_t invocations) {
    const uint64_t limit = narrow_offset_bytes - uint64_t{4} * VKATTN_MAX_HEAD_DIM;
    const uint64_t rows_of_part = uint64_t{c.batch} * c.num_heads * c.seqlen_q;
    return rows_of_part <= limit / statistics_bytes / std::min(invocations, c.num_parts) &&
           c.out_strides.seq <= limit / c.element_bytes / rows &&
           c.parts_strides.seq <= limit / c.parts_element_bytes / rows;
}

// Returns the widest load of parts and store of out for which rows are aligned: four elements of both, or single ones.
uint32_t load_bytes(const Combine& c) {
    const bool four = c.alignment_bytes % (4 * c.element_bytes) == 0 &&
                      c.alignment_bytes % (4 * c.parts_element_bytes) == 0;
    return four ? 4 * std::max(c.element_bytes, c.parts_element_bytes) : c.element_bytes;
}

}  // namespace

Result<bool> add_combine(const DeviceCaps& caps, const Combine& c, PartStatistics statistics, bool any_order,
                         uint64_t limit, Plan& plan) {
    Launch<kernels::combine> launch;
    launch.module = module_for(Kernel::combine, c.dtype, caps);
    // CPUs gain nothing by loads ahead, and SwiftShader takes seconds to compile them.
    const uint32_t step = caps.type == DeviceType::cpu ? 1 : 4, lanes = lanes_for(c.head_dim_v, step);
    const bool one_team = !any_order || quirk_no_divergent_addresses(caps);
    const uint32_t teams = one_team ? 1 : teams_for(caps, c.num_parts, step, lanes);
    const uint32_t threads = std::max(least_threads, lanes * teams), rows = threads / (lanes * teams);
    const bool narrow = narrow_rows(c, std::max(8u, statistics.bytes()), rows, lanes * teams);
    if (!narrow && quirk_no_divergent_addresses(caps))
        return unsupported("", "rows lie 2^31 bytes apart, which this driver's compiler does not survive");
    if (const uint64_t most = longest_walk(caps, 3 + ceil_div(c.head_dim_v, uint64_t{4} * lanes));
        c.num_parts > most)
        return loops_too_long(plan.combine ? "combine.num_parts" : "problem.seqlen_kv", c.num_parts, most);
    auto& constants = launch.constants;
    constants.threads = threads;
    constants.lanes = lanes;
    constants.teams = teams;
    constants.step_parts = step;
    constants.head_dim_v = c.head_dim_v;
    constants.load_bytes = load_bytes(c);
    constants.far_rows = !narrow;
    constants.exp2_loses_nan = quirk_exp2_loses_nan(caps);
    constants.parts_have_max_sum = statistics.max_sum;
    constants.parts_are_natural = statistics.natural;
    constants.parts_have_shift = statistics.shift;
    constants.parts_are_float32 = c.parts_dtype == VKATTN_DTYPE_FLOAT32;
    constants.out_type = type_of(c.dtype);
    launch.push = make_push(c);
    VKATTN_PATCH(launch, parts, Region::parts);
    VKATTN_PATCH(launch, parts_lse, Region::parts_lse);
    VKATTN_PATCH(launch, out_rows, Region::out);
    VKATTN_PATCH(launch, lse, Region::lse);
    launch.reads = bit(Region::parts) | bit(Region::parts_lse);
    if (statistics.sinks) {
        VKATTN_PATCH(launch, sinks, Region::sinks);
        launch.reads |= bit(Region::sinks);
    }
    launch.writes = bit(Region::out) | bit(Region::lse);
    // Each part costs a multiply-add an element, and each invocation reads each part's statistics.
    const uint64_t unit = uint64_t{rows} * c.num_parts * (c.head_dim_v + teams * lanes) * 4;
    const auto boxes =
        cut_grid(caps, {uint64_t{c.batch} * c.num_heads, ceil_div(c.seqlen_q, rows), 1}, unit, limit);
    if (!boxes) return boxes.failure();
    if (boxes->empty()) return true;  // no rows
    const uint32_t pipeline = add_pipeline(plan, launch.pipeline());
    for (const Box& box : *boxes)
        add_dispatch(plan, pipeline, box.count, cut_of(box), box.count[0] * box.count[1] * unit);
    return true;
}

}  // namespace vkattn::core
