// Which (batch, head, query tile, part of the keys) a workgroup works on, where its tensors lie, which keys its rows see.
#include "lib/logarithms.glsl"

layout(push_constant, std430) uniform Push { ForwardPush p; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer ArgumentsIn { ForwardArguments x; };

struct Work {
    uint batch, head_kv;
    uint head;           // of the first row
    uint first_row;      // of the query tile
    uint last_row;       // last row of the tile that exists
    uint part;           // of the keys
    uint num_keys;       // that the mask and the batch's kv length leave
    int lo, hi;          // query row i sees key j only if i + lo <= j <= i + hi
};

uint num_heads_q() { return p.heads & 0xffff; }
uint group_size() { return p.heads >> 16; }
uint rows_to_group() { return PACK != 0 ? group_size() : 1; }
uint num_rows() { return p.seqlen_q * rows_to_group(); }
uint num_tiles() { return (num_rows() + TILE_Q - 1) / TILE_Q; }

// Only where ARGUMENTS != 0.
ArgumentsIn arguments() { return ArgumentsIn(uvec2(p.query_batch, p.query_head)); }

bool is_present(uint bit) { return (arguments().x.present & bit) != 0; }

uvec2 stride_of(uint narrow, uint index) {
    if (ARGUMENTS != 0) return arguments().x.stride[index];
    return uvec2(narrow, 0);
}

// Rows of one head of a tensor. The caller places the tile.
Rows rows_with(uvec2 base, uvec2 batch_stride, uvec2 head_stride, uvec2 seq_stride, uint batch, uint head, uint end) {
    Rows t;
    t.heads = head_stride;
    t.head = address_add(base, mul_wide(batch, batch_stride));
    t.head = address_add(t.head, mul_wide(head, head_stride));
    t.stride = seq_stride;
    t.group = 1;
    t.begin = 0;
    t.end = end;
    return t;
}

// The same with strides that stand in the push constants or, from `wide` on, in the argument block.
Rows rows_of(uvec2 base, uvec3 narrow, uint wide, uint batch, uint head, uint end) {
    return rows_with(base, stride_of(narrow.x, wide), stride_of(narrow.y, wide + 1), stride_of(narrow.z, wide + 2), batch,
                     head, end);
}

// Rows of a tensor of queries: packed, those of the group's heads.
Rows query_rows(uvec2 base, uvec3 narrow, uint wide, Work w) {
    Rows t = rows_of(base, narrow, wide, w.batch, w.head, num_rows());
    t.group = rows_to_group();
    return tile_at(t, w.first_row);
}

Rows query_tile(Work w) {
    return query_rows(p.query, uvec3(p.query_batch, p.query_head, p.query_seq), 0, w);
}
Rows key_rows(Work w) {
    const uvec3 strides = uvec3(p.key_batch, p.key_head, p.key_seq);
    return rows_of(p.key, strides, 3, w.batch, w.head_kv, p.seqlen_kv);
}
Rows value_rows(Work w) {
    const uvec3 strides = uvec3(p.value_batch, p.value_head, p.value_seq);
    return rows_of(p.value, strides, 6, w.batch, w.head_kv, p.seqlen_kv);
}
Rows out_tile(Work w) {
    return query_rows(p.outp, uvec3(p.out_batch, p.out_head, p.out_seq), 9, w);
}

// Row i of head g of the group.
uint query_of(uint row) { return row / rows_to_group(); }
uint head_of(uint row) { return row % rows_to_group(); }

// Rows of float32 that no stride describes: (part, batch, num_heads_q, seqlen_q) of `elements` each. The row of a tile
// of w; offsets within a tile fit 31 bits, for packed rows too: they are few.
RowStart dense_row(uvec2 base, uint elements, Work w, uint row) {
    uvec2 index = uvec2(w.batch * num_heads_q() + w.head, 0);
    if (SPLIT != 0) index = address_add(index, mul_wide(w.part, p.out_seq));
    const uint origin = query_of(w.first_row);
    index = address_add(mul_wide(p.seqlen_q, index), uvec2(origin, 0));
    const uvec2 bytes = mul_wide(elements * 4, index);
    return RowStart(address_add(base, bytes), (head_of(row) * p.seqlen_q + query_of(row) - origin) * elements);
}

// Where a row of the result goes: the output, or a part of it.
RowStart out_row(Work w, Rows o, uint row) {
    return SPLIT != 0 ? dense_row(p.outp, HEAD_DIM_V, w, row) : row_start(o, row);
}

// Rows of a part are dense: wide stores fit only a whole number of vec4, whatever the caller's rows are aligned to.
void store_out(RowStart at, uint d, vec4 x) {
    if (SPLIT == 0) {
        store4(at, d, HEAD_DIM_V, x);
    } else if (HEAD_DIM_V % 4 == 0) {
        store4_float32(at, d, HEAD_DIM_V, x);
    } else {
        [[unroll]] for (uint i = 0; i < 4; i++)
            if (d + i < HEAD_DIM_V) store_one_float32(at, at.at + d + i, x[i]);
    }
}

float lse_of(float row_max, float row_sum) {
    return row_sum > 0 ? LN_2 * (row_max + log2(row_sum)) : uintBitsToFloat(MINUS_INFINITY);
}

// lse or, of a part, what it comes from: of scores near the lowest, their number would vanish in the sum.
void store_statistics(Work w, uint row, float row_max, float row_sum) {
    if (SPLIT != 0) {
        const RowStart at = dense_row(p.lse, 2, w, row);
        FloatsOut(at.base).x[at.at] = row_max;
        FloatsOut(at.base).x[at.at + 1] = row_sum;
    } else if (p.lse != uvec2(0)) {
        const RowStart at = dense_row(p.lse, 1, w, row);
        FloatsOut(at.base).x[at.at] = lse_of(row_max, row_sum);
    }
}

// bound + shift, held to the range; the ends stand for unbounded.
int shifted(int bound, int shift) {
    const int sum = bound + shift;
    const bool overflow = ((bound ^ sum) & (shift ^ sum)) < 0;
    const int least = int(0x80000000), most = 0x7fffffff;
    if (overflow) return bound < 0 ? least : most;
    return bound == least || bound == most ? bound : sum;
}

// What is the batch's own: its keys, and where its rows stand among them.
void find_bounds(inout Work w) {
    w.num_keys = p.seqlen_kv;
    w.lo = p.bound_lo;
    w.hi = p.bound_hi;
    if (ARGUMENTS == 0) return;
    ArgumentsIn a = arguments();
    int shift = 0;
    const bool lengths = is_present(PRESENT_KV_LENGTHS), offsets = is_present(PRESENT_QUERY_OFFSETS);
    const int length = IntsIn(a.x.kv_lengths).x[lengths ? w.batch : 0];
    const int offset = IntsIn(a.x.query_offsets).x[offsets ? w.batch : 0];
    if (lengths) w.num_keys = uint(clamp(length, 0, int(p.seqlen_kv)));
    if (lengths && a.x.follow_lengths != 0) shift = int(w.num_keys);
    if (offsets) shift = offset;
    w.num_keys = min(w.num_keys, a.x.key_limit);
    // Beyond these a bound hides, or leaves, everything; within them nothing overflows.
    w.lo = clamp(shifted(w.lo, shift), -int(p.seqlen_q), int(p.seqlen_kv));
    w.hi = clamp(shifted(w.hi, shift), -int(p.seqlen_q) - 1, int(p.seqlen_kv) - 1);
}

// The last query tile comes first: under a causal bound it is the longest, so the workgroups that start last are short.
Work work_of_tile(uint head, uint tile) {
    Work w;
    const uint heads = PACK != 0 ? num_heads_q() / group_size() : num_heads_q();
    w.batch = head / heads;
    w.head = head % heads * rows_to_group();
    w.head_kv = w.head / group_size();
    w.first_row = (num_tiles() - 1 - tile) * TILE_Q;
    w.last_row = min(w.first_row + TILE_Q, num_rows()) - 1;
    w.part = 0;
    find_bounds(w);
    return w;
}

// x of the grid counts heads of all batches, y query tiles, z parts of the keys.
Work find_work() {
    Work w = work_of_tile(p.first_head + gl_WorkGroupID.x, p.first_tile + gl_WorkGroupID.y);
    if (SPLIT != 0) w.part = (p.splits & 0xffff) + gl_WorkGroupID.z;
    return w;
}

// Keys begin .. end-1 that a row may see; empty when end <= begin.
ivec2 visible_keys(Work w, uint row) {
    const int i = int(query_of(row));
    return ivec2(max(0, i + w.lo), min(int(w.num_keys), i + w.hi + 1));
}

// Rows begin .. end-1 of which each may see some of the keys first_key .. end_key-1; (0, 0) if there is none.
uvec2 seeing_rows(Work w, uint first_key, uint end_key) {
    const int begin = max(0, int(first_key) - w.hi), end = min(int(p.seqlen_q), int(end_key) - w.lo);
    return first_key < end_key && begin < end ? uvec2(begin, end) : uvec2(0);
}

// Keys begin .. end-1 that some row of the tile sees in this part; (0, 0) if there is none.
uvec2 tile_keys(Work w) {
    int begin = visible_keys(w, w.first_row).x, end = visible_keys(w, w.last_row).y;
    if (SPLIT != 0) {
        const uint span = (p.splits >> 16) * TILE_KV;
        begin = max(begin, int(w.part * span));
        end = min(end, int(w.part * span + span));
    }
    return begin < end ? uvec2(begin, end) : uvec2(0);
}
