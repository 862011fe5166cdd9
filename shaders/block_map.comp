#version 460
// This kernel makes the block map of a mask (VkattnProblem::block_map), which says what each block of query rows and
// keys is to forward and backward. FlexAttention calls it a BlockMask (Dong et al., arXiv:2412.05496).
//
//   for each mask that shares the map's head, each row of the block, each key of it:
//       seen |= visible;  changed |= hidden or bias != 0
//   block = seen ? changed ? ASK_THE_MASK : VISIBLE : HIDDEN
//
// Tile ownership: a workgroup has one block: x counts the heads and batches of the map, y blocks of query rows, z
// blocks of keys. LANES invocations share a row, and each takes a 32-bit word of it at a time, whatever the element is.
// Shared memory: one word.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/block_map.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/block_map.def"
} push;
#include "lib/address.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer WordsIn { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint x[]; };

const uint HIDDEN = 0, VISIBLE = 1, ASK_THE_MASK = 2;
const uint SEEN = 1, CHANGED = 2;
shared uint found;

// Returns SEEN and CHANGED for those elements of a word that lie within begin .. end-1. `first` is the number of the
// word's first element.
uint found_in(uint word, uint first, uint begin, uint end) {
    const uint bits = 8 << push.element_shift;
    uint all = 0;
    for (uint i = 0; i < 4 >> push.element_shift; i++) {
        const uint element = word >> (i * bits) & 0xffffffffu >> (32 - bits);
        if (first + i >= begin && first + i < end)
            all |= element == push.hiding_bits ? CHANGED : (element & push.adding_bits) != 0 ? SEEN | CHANGED : SEEN;
    }
    return all;
}

// Returns SEEN and CHANGED for the invocation's words of a row. The row has `count` elements and begins `bytes` bytes
// behind `base`, a multiple of 4 that is the same for all invocations (lib/address.glsl says why).
uint found_in_row(uvec2 base, uint bytes, uint count) {
    const uint in_word = 2 - push.element_shift;  // elements of a word, as a power of two
    const uint begin = (bytes & 3) >> push.element_shift, end = begin + count;  // counted from the first word on
    const uint words = (end + (1 << in_word) - 1) >> in_word;
    uint all = 0;
    for (uint i = gl_LocalInvocationIndex % LANES; i < words && all != (SEEN | CHANGED); i += LANES)
        all |= found_in(WordsIn(base).x[bytes / 4 + i], i << in_word, begin, end);
    return all;
}

// Returns SEEN and CHANGED for the invocation's rows of the block. `mask` is the address of one head of one batch.
uint found_in_mask(uvec2 mask, uvec2 block) {
    const uvec2 begin = uvec2(push.block_rows, push.block_keys) * block;
    const uvec2 end = min(begin + uvec2(push.block_rows, push.block_keys), uvec2(push.num_rows, push.num_keys));
    if (begin.y >= end.y) return CHANGED;
    const uvec2 keys = address_add(mask, mul_wide(begin.y, push.key_stride));
    const uint own = gl_LocalInvocationIndex / LANES;  // of the rows at once
    uint all = end.y < min(begin.y + push.block_keys, push.seqlen_kv) ? CHANGED : 0;
    for (uint row = begin.x; row < end.x; row += THREADS / LANES) {
        const uvec2 first = address_add(keys, mul_wide(row, push.row_stride));
        const uint bytes = (first.x & 3) + own * push.row_stride.x;
        if (row + own < end.x && all != (SEEN | CHANGED))
            all |= found_in_row(uvec2(first.x & ~3u, first.y), bytes, end.y - begin.y);
    }
    return all;
}

// Stores one byte. Other workgroups have the word's other bytes, so each changes its own bits only.
void store(uint at, uint kind) {
    const uint byte = at + (push.block_map.x & 3), shift = byte % 4 * 8;
    const uvec2 base = uvec2(push.block_map.x & ~3u, push.block_map.y);
    atomicAnd(Words(base).x[byte / 4], ~(0xffu << shift));
    atomicOr(Words(base).x[byte / 4], kind << shift);
}

void main() {
    const uvec3 at = uvec3(push.first_x, push.first_y, push.first_z) + gl_WorkGroupID;
    const uint first_head = at.x % push.map_heads * push.heads_of_map, first_batch = at.x / push.map_heads;
    const uint end_head = (first_head + push.heads_of_map - 1) / push.heads_of_mask + 1;
    if (gl_LocalInvocationIndex == 0) found = 0;
    barrier();
    uint mine = 0;
    for (uint batch = first_batch; batch < first_batch + push.batches_of_map; batch++)
        for (uint head = first_head / push.heads_of_mask; head < end_head && mine != (SEEN | CHANGED); head++) {
            const uvec2 of_batch = address_add(push.mask, mul_wide(batch, push.batch_stride));
            mine |= found_in_mask(address_add(of_batch, mul_wide(head, push.head_stride)), at.yz);
        }
    if (mine != 0) atomicOr(found, mine);
    barrier();
    const uint kind = (found & SEEN) == 0 ? HIDDEN : (found & CHANGED) != 0 ? ASK_THE_MASK : VISIBLE;
    if (gl_LocalInvocationIndex == 0) store((at.x * push.down + at.y) * push.across + at.z, kind);
}
