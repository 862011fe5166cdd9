// This file plans the pass that makes a block map of a mask. It is one dispatch, or several where the grid cannot hold
// all blocks. One workgroup has a block, which costs as much as it has elements in all heads and batches that share it.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "caller_arrays.hpp"
#include "kernel_rows.hpp"
#include "launch.hpp"
#include "loops.hpp"

namespace vkattn::core {
namespace {

// These are not measured. 16 lanes read 64 bytes of a row.
constexpr uint32_t block_threads = 256, row_lanes = 16;
// This is a guess, not measured: a workgroup waits for each of its loads, so that much larger blocks might take longer
// than drivers let a dispatch run.
constexpr uint64_t most_elements = uint64_t{1} << 26;

// Counts the elements of the mask that a block stands for.
uint64_t elements_of_block(const push::block_map& push) {
    return uint64_t{std::min(push.block_rows, push.num_rows)} * std::min(push.block_keys, push.num_keys) *
           ceil_div(push.heads_of_map, push.heads_of_mask) * push.batches_of_map;
}

// Counts the iterations of block_map.comp's loops in an invocation.
uint64_t iterations_of_block(const push::block_map& push, uint32_t threads, uint32_t lanes) {
    const uint64_t words =
        ceil_div(uint64_t{std::min(push.block_keys, push.num_keys)} << push.element_shift, 4) + 1;
    const uint64_t of_mask =
        1 + uint64_t{ceil_div(std::min(push.block_rows, push.num_rows), threads / lanes)} *
                (1 + 5 * ceil_div(words, lanes));
    return uint64_t{push.batches_of_map} * (2 + push.heads_of_map / push.heads_of_mask) * of_mask;
}

push::block_map make_push(const Problem& p) {
    push::block_map push{};
    const uint32_t bytes = p.mask_element_bytes();
    const bool of_rows = p.mask_shape[2] != 1;
    push.down = ceil_div(p.seqlen_q, p.block_rows);
    push.across = ceil_div(p.seqlen_kv, p.block_keys);
    push.batch_stride = p.mask_strides.batch * bytes;
    push.head_stride = p.mask_strides.head * bytes;
    push.row_stride = of_rows ? p.mask_strides.seq * bytes : 0;
    push.key_stride = p.mask_per_key ? bytes : 0;
    push.num_rows = of_rows ? p.seqlen_q : push.down;
    push.num_keys = p.mask_per_key ? p.key_limit : push.across;
    push.seqlen_kv = p.mask_per_key ? p.seqlen_kv : push.across;
    push.block_rows = of_rows ? p.block_rows : 1;
    push.block_keys = p.mask_per_key ? p.block_keys : 1;
    push.map_heads = p.block_map_heads;
    push.heads_of_map = p.num_heads_q / p.block_map_heads;
    push.heads_of_mask = p.mask_strides.head == 0 ? p.num_heads_q : p.mask_group_size;
    push.batches_of_map = p.block_map_batches == 1 && p.mask_strides.batch != 0 ? p.batch : 1;
    push.element_shift = bytes / 2;
    if (p.mask == VKATTN_MASK_FLOAT) {  // minus infinity hides, and all but zeros add something
        push.hiding_bits = bytes == 4 ? 0xff800000 : p.mask_dtype == VKATTN_DTYPE_FLOAT16 ? 0xfc00 : 0xff80;
        push.adding_bits = bytes == 4 ? 0x7fffffff : 0x7fff;
    }
    return push;
}

}  // namespace

Result<Plan> make_block_map_plan(const DeviceCaps& caps, const Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return invalid("problem.mask", "is none, and a block map is made of one");
    if (p.block_map == 0)
        return invalid("problem.block_map", "is false, so that nothing says which map is to be made");
    if (const std::string why = refuse_device(caps); !why.empty()) return unsupported("device", why);
    if (!has_kernel(caps, Kernel::block_map)) return missing_kernel(Kernel::block_map);
    Plan plan;
    plan.problem = p;
    plan.makes_block_map = true;
    plan.kernel = "block_map";
    plan.caller_arrays = block_map_arrays_of(p);
    if (plan.caller_arrays.empty()) return plan;
    Launch<kernels::block_map> launch;
    launch.module = {Kernel::block_map, macros::F32};
    launch.push = make_push(p);
    if (const uint64_t elements = elements_of_block(launch.push); elements > most_elements)
        return unsupported("problem.block_rows",
                           fmt::format("a block stands for {} elements of the mask, and the "
                                       "pass that makes a map takes {} at most",
                                       elements, most_elements));
    auto& constants = launch.constants;
    constants.threads = caps.threads_up_to(block_threads);
    const bool far = launch.push.row_stride > narrow_offset_bytes / 2 / (constants.threads / row_lanes);
    constants.lanes = far ? constants.threads : row_lanes;
    // An invocation goes through the words of its rows, and the up to four elements of each.
    const uint64_t steps = iterations_of_block(launch.push, constants.threads, constants.lanes);
    if (const uint64_t most = longest_walk(caps, 1); steps > most)
        return loops_too_long("problem.block_rows", steps, most);
    VKATTN_PATCH(launch, mask, Region::mask);
    VKATTN_PATCH(launch, block_map, Region::block_map);
    launch.reads = bit(Region::mask);
    launch.writes = bit(Region::block_map);
    const uint64_t maps = uint64_t{p.block_map_batches} * p.block_map_heads;
    const auto boxes = cut_grid(caps, {maps, launch.push.down, launch.push.across}, 1, UINT64_MAX);
    if (!boxes) return boxes.failure();
    const uint32_t pipeline = add_pipeline(plan, launch.pipeline());
    for (const Box& box : *boxes) add_dispatch(plan, pipeline, box.count, cut_of(box), 0);
    return plan;
}

}  // namespace vkattn::core
