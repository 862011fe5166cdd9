// This file plans to decode keys once, to a dense tensor in scratch, if many query rows see them. The forward is then
// the one for 16 bits. Otherwise each workgroup decodes all of its keys while it stages them. With q8_0 on an H200
// (D128, N 4,096, batch 2, 8 kv heads of 16,384 query rows each: docs/performance.md) that took 2.38 ms where float16
// takes 1.65, and decoding once takes 1.66 ms.
#include "decode.hpp"

#include <algorithm>
#include <cstddef>

#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

// The least number of query rows of a kv head for which keys are decoded once. H200, q8_0, D128, N 16,384, 2 batches of
// 8 kv heads: with 256 rows 0.198 ms, where decoding while staging took 0.182; with 512 rows 0.292 instead of 0.341.
// Between these both grow evenly, so that they meet at about 320 rows.
constexpr uint64_t least_rows = 384;

constexpr int of_key = 1, of_value = 2;  // tensors of a problem

// A value that lies in its key is decoded with that.
bool is_decoded(const Problem& p, int tensor) {
    return p.storage_of(tensor).has_blocks() && (tensor == of_key || p.value_in_key == 0);
}

uint32_t dim_of(const Problem& p, int tensor) {
    return tensor == of_key ? p.head_dim_qk : p.head_dim_v;
}

// Returns the bytes of the decoded tensor, rounded up so that another one can begin behind it.
uint64_t decoded_bytes(const Problem& p, int tensor) {
    if (!is_decoded(p, tensor)) return 0;
    const uint64_t bytes = uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv * dim_of(p, tensor) * 2;
    return (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
}

// True if batches or heads share rows that would be decoded for each of them.
bool is_broadcast(const Problem& p, int tensor) {
    const VkattnStrides& s = p.strides(tensor);
    return is_decoded(p, tensor) && ((p.batch > 1 && s.batch == 0) || (p.num_heads_kv > 1 && s.head == 0));
}

// Returns the launch that decodes a tensor to the place `begin` bytes behind the beginning of the region.
Launch<kernels::decode_rows> decode_launch(const DeviceCaps& caps, const Problem& p, int tensor,
                                           VkattnDtype operands, uint64_t begin) {
    const VkattnScales scales = tensor == of_key ? p.key_scales : p.value_scales;
    const Region rows = tensor == of_key ? Region::key : Region::value,
                 of_scales = tensor == of_key ? Region::key_scales : Region::value_scales;
    Launch<kernels::decode_rows> launch;
    launch.module = {Kernel::decode_rows, macros::MIXED};
    const auto strides = p.stride_bytes();
    const auto first =
        static_cast<size_t>(tensor) * 3;  // the tensor's strides of batch, head and seq begin here
    auto& c = launch.constants;
    c.threads = caps.threads_up_to(256);
    c.head_dim = dim_of(p, tensor);
    c.has_lengths = p.kv_lengths != 0;
    c.far_rows = strides[first + 2] > narrow_offset_bytes / 2 / DECODED_ROWS;
    c.out_type = type_of(operands);
    c.key_type = type_of(p.dtype_of(tensor));
    c.key_scales = scales;
    auto& push = launch.push;
    push.batch_stride = strides[first];
    push.head_stride = strides[first + 1];
    push.row_stride = strides[first + 2];
    push.num_heads = p.num_heads_kv;
    push.num_rows = p.seqlen_kv;
    VKATTN_PATCH(launch, rows, rows);
    VKATTN_PATCH(launch, scales, scales != VKATTN_SCALES_NONE ? of_scales : rows);
    VKATTN_PATCH(launch, decoded, Region::decoded, begin);
    launch.reads = bit(rows) | (scales != VKATTN_SCALES_NONE ? bit(of_scales) : 0);
    if (p.kv_lengths != 0) {
        VKATTN_PATCH(launch, kv_lengths, Region::kv_lengths);
        launch.reads |= bit(Region::kv_lengths);
    }
    launch.writes = bit(Region::decoded);
    return launch;
}

// Lets the pipelines that read a tensor read its decoded form.
void read_decoded(Plan& plan, Region region, uint64_t begin) {
    for (Pipeline& pipeline : plan.pipelines)
        for (Patch& patch : pipeline.patches)
            if (patch.region == region) {
                patch.region = Region::decoded;
                patch.add += begin;
                pipeline.reads = (pipeline.reads & ~bit(region)) | bit(Region::decoded);
            }
}

}  // namespace

std::optional<Problem> decoded_problem(const Problem& problem, const Options& options, VkattnDtype operands) {
    const bool has_any = is_decoded(problem, of_key) || is_decoded(problem, of_value);
    // With batch_invariant a row's bits must not depend on how many rows there are.
    if (!has_any || options.batch_invariant || !has_keys(problem) || problem.seqlen_q == 0)
        return std::nullopt;
    if (is_broadcast(problem, of_key) || is_broadcast(problem, of_value)) return std::nullopt;
    // All keys are decoded, so that it is no gain where a window leaves few of them.
    const Problem::Keys seen = problem.visible_keys(0, problem.seqlen_q - 1);
    const bool sees_most = 2 * (seen.end - std::min(seen.begin, seen.end)) >= problem.seqlen_kv;
    if (!sees_most || uint64_t{problem.seqlen_q} * problem.group_size < least_rows) return std::nullopt;
    VkattnProblem p = problem;
    const auto decode = [&](VkattnDtype& dtype, VkattnScales& scales, VkattnStrides& strides) {
        dtype = operands;
        scales = VKATTN_SCALES_NONE;
        strides = {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    };
    if (is_decoded(problem, of_key)) decode(p.key_dtype, p.key_scales, p.key_strides);
    if (is_decoded(problem, of_value)) decode(p.value_dtype, p.value_scales, p.value_strides);
    const auto resolved = resolve(p);
    if (!resolved) return std::nullopt;
    return *resolved;
}

Result<bool> decode_first(const DeviceCaps& caps, const Problem& problem, const Options& options,
                          Plan& plan) {
    const uint64_t key_bytes = decoded_bytes(problem, of_key), value_bytes = decoded_bytes(problem, of_value);
    if (!has_kernel(caps, Kernel::decode_rows) || scratch_left(caps, options, plan) < key_bytes + value_bytes)
        return false;
    reserve_scratch(plan, Region::decoded, key_bytes + value_bytes);
    if (is_decoded(problem, of_key)) read_decoded(plan, Region::key, 0);
    if (is_decoded(problem, of_value)) read_decoded(plan, Region::value, key_bytes);
    const size_t others = plan.dispatches.size();
    for (const int tensor : {of_key, of_value}) {
        if (!is_decoded(problem, tensor)) continue;
        const uint32_t pipeline = add_pipeline(
            plan,
            decode_launch(caps, problem, tensor, plan.operands, tensor == of_key ? 0 : key_bytes).pipeline());
        // An element counts as 16 operations, which is a guess: the pass is bound by its memory accesses.
        const uint64_t unit = uint64_t{DECODED_ROWS} * dim_of(problem, tensor) * 16;
        const std::array<uint64_t, 3> grid{uint64_t{problem.batch} * problem.num_heads_kv,
                                           ceil_div(problem.seqlen_kv, DECODED_ROWS), 1};
        const auto boxes =
            within_limit(caps, options, [&](uint64_t limit) { return cut_grid(caps, grid, unit, limit); });
        if (!boxes) return boxes.failure();
        for (const Box& box : *boxes)
            add_dispatch(plan, pipeline, box.count, cut_of(box),
                         box.count[0] * box.count[1] * box.count[2] * unit);
    }
    std::rotate(plan.dispatches.begin(), plan.dispatches.begin() + static_cast<std::ptrdiff_t>(others),
                plan.dispatches.end());
    plan.problem = problem;
    return true;
}

}  // namespace vkattn::core
