// This file finds query, key, value and out by the push constant operand_layout, which has one of two forms:
//   without HAS_ARGUMENTS   12 strides in bytes: batch, head, seq of query, key, value, out
//   with HAS_ARGUMENTS      words 0 and 1: the address of the ForwardArguments, which have all strides
//                           words 2 and 3: with HAS_LINKS the address of the links (lib/tile_links.glsl)
//                           words 4 to 7: the addresses of the scales of key and of value, where they have some
// With IS_SPLIT, out is a part without strides, and in either form words 9 to 11 are free for what a split needs:
//   word 9    the number of splits; 0 where all have as many tiles, whatever a query tile sees (keys_of_split)
//   word 10   tiles of keys in a split, at most
//   word 11   heads of all batches
// The planner writes it in src/plan/launch.hpp, and words 2, 3 and 9 to 11 in src/plan/forward.cpp.
#define ARGUMENTS_ADDRESS uvec2(push.operand_layout[0], push.operand_layout[1])
#define LINKS_ADDRESS uvec2(push.operand_layout[2], push.operand_layout[3])
#include "lib/sequences.glsl"

const uint QUERY = 0, KEY = 1, VALUE = 2, OUT = 3;

uvec2 stride_of(uint tensor, uint dimension) {
    const uint index = 3 * tensor + dimension;
    if (HAS_ARGUMENTS) return arguments().x.stride[index];
    return uvec2(push.operand_layout[index], 0);
}

uvec2 head_address(uvec2 base, uint tensor, uint batch, uint head) {
    return address_add(address_add(base, mul_wide(batch, stride_of(tensor, 0))), mul_wide(head, stride_of(tensor, 1)));
}

#ifdef MIXED
// Returns the address of the scales that the rows of a work's keys have. Without scales it is an address that can be
// read, because drivers load ahead of a test.
uvec2 scales_of(uvec2 base, uint tensor, Work w) {
    const uint kind = tensor == KEY ? KEY_SCALES : tensor == VALUE ? VALUE_SCALES : SCALES_NONE;
    if (kind == SCALES_NONE) return base;
    const uint word = tensor == KEY ? WORD_OF_KEY_SCALES : WORD_OF_VALUE_SCALES;
    const uvec2 first = uvec2(push.operand_layout[word], push.operand_layout[word + 1]);
    uvec2 index = uvec2(kind == SCALES_PER_HEAD ? w.head_kv : 0, 0);
    if (kind == SCALES_PER_ROW)
        index = address_add(mul_wide(key_extent(), uvec2(w.batch * num_heads_kv() + w.head_kv, 0)),
                            uvec2(w.first_key, 0));
    return address_add(first, mul_wide(4, index));
}
#endif

Rows query_tile(uvec2 base, uint tensor, Work w) {
    const uvec2 head = head_address(base, tensor, w.batch, w.head);
    Rows t = query_rows(w, head, stride_of(tensor, 2), stride_of(tensor, 1));
#ifdef MIXED
    t.scales = base;
#endif
    return t;
}
Rows key_tensor_rows(uvec2 base, uint tensor, Work w) {
    Rows t = key_rows(w, head_address(base, tensor, w.batch, w.head_kv), stride_of(tensor, 2));
#ifdef MIXED
    t.scales = scales_of(base, tensor, w);
#endif
    return t;
}

uint heads_of_all_batches() { return push.operand_layout[11]; }

// The work of a workgroup of a forward kernel: x of the grid counts heads of all batches, y query tiles, z splits.
Work work_at(uint x, uint y, uint z) {
    Work w = work_of_last_tile(x, y);
    if (IS_SPLIT) w.split = z;
    return w;
}
Work find_work() {
    const uvec3 at = uvec3(push.first_x, push.first_y, push.first_z) + gl_WorkGroupID;
    return work_at(at.x, at.y, at.z);
}
// Keys that the workgroup goes through.
uvec2 own_keys(Work w) {
    return IS_SPLIT ? keys_of_split(w, push.operand_layout[10], push.operand_layout[9]) : tile_keys(w);
}
