// Which (batch, head, query tile) a workgroup works on, where its tensors lie, which keys its rows see.
layout(push_constant, std430) uniform Push { ForwardPush p; };

struct Work {
    uint batch, head, head_kv;
    uint first_row;      // of the query tile
    uint last_row;       // last row of the tile that exists
};

uint num_heads_q() { return p.heads & 0xffff; }
uint group_size() { return p.heads >> 16; }

uvec2 stride_of(uint narrow, uint index) {
    return WIDE_STRIDES != 0 ? WideStridesIn(p.extra).x.stride[index] : uvec2(narrow, 0);
}

// Rows of one head of a tensor whose strides are (batch, head, seq), in the push constants or, from `wide` on, in the
// argument block. The caller places the tile.
Rows rows_of(uvec2 base, uvec3 narrow, uint wide, uint batch, uint head, uint end) {
    Rows t;
    t.head = address_add(base, mul_wide(batch, stride_of(narrow.x, wide)));
    t.head = address_add(t.head, mul_wide(head, stride_of(narrow.y, wide + 1)));
    t.stride = stride_of(narrow.z, wide + 2);
    t.begin = 0;
    t.end = end;
    return t;
}

Rows query_tile(Work w) {
    const uvec3 strides = uvec3(p.query_batch, p.query_head, p.query_seq);
    return tile_at(rows_of(p.query, strides, 0, w.batch, w.head, p.seqlen_q), w.first_row);
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
    const uvec3 strides = uvec3(p.out_batch, p.out_head, p.out_seq);
    return tile_at(rows_of(p.outp, strides, 9, w.batch, w.head, p.seqlen_q), w.first_row);
}

// The lse of a row of a tile; head counts those of all batches.
void store_lse(uint head, uint first_row, uint row, float lse) {
    const uvec2 index = address_add(mul_wide(head, p.seqlen_q), uvec2(first_row, 0));
    const uvec2 base = address_add(p.lse, uvec2(index.x << 2, index.y << 2 | index.x >> 30));
    FloatsOut(base).x[row - first_row] = lse;
}

uint tiles_of_rows() { return (p.seqlen_q + TILE_Q - 1) / TILE_Q; }

// x of the grid counts heads of all batches, `order` query tiles from the last one: under a causal bound it is the
// longest, so the workgroups that start last are short ones.
Work work_of_tile(uint order) {
    const uint head = p.first_head + gl_WorkGroupID.x;
    Work w;
    w.batch = head / num_heads_q();
    w.head = head % num_heads_q();
    w.head_kv = w.head / group_size();
    w.first_row = (tiles_of_rows() - 1 - order) * TILE_Q;
    w.last_row = min(w.first_row + TILE_Q, p.seqlen_q) - 1;
    return w;
}

// y of the grid, continued in z where y is too short, counts query tiles. False: nothing to do.
bool find_work(out Work w) {
    const uint order = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (order >= tiles_of_rows()) return false;
    w = work_of_tile(order);
    return true;
}

// Keys begin .. end-1 that a row may see; empty when end <= begin.
ivec2 visible_keys(uint row) {
    return ivec2(max(0, int(row) + p.bound_lo), min(int(p.seqlen_kv), int(row) + p.bound_hi + 1));
}

// Keys begin .. end-1 that some row of the tile sees; (0, 0) if there is none.
uvec2 tile_keys(Work w) {
    const int begin = visible_keys(w.first_row).x, end = visible_keys(w.last_row).y;
    return begin < end ? uvec2(begin, end) : uvec2(0);
}
