#version 460
// The baseline's third step: O = P V with P from memory. One workgroup TILE_Q rows of one head.
//
//   for each P_KEYS keys that some row sees:  stage P;  for each V_KEYS of them:  stage V;  O += P . V
//
// Tile ownership and shared memory (P and V): lib/tiles.glsl. Grid: head, query tile (y and z).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "shared/forward.h"
#include "lib/tiles.glsl"
#include "lib/problem.glsl"
#include "lib/score_matrix.glsl"

void stage_p(Work w, uint first_key) {
    for (uint e = thread; e < TILE_Q * (P_KEYS / 4); e += THREADS) {
        const uint row = w.first_row + e / (P_KEYS / 4), key = first_key + e % (P_KEYS / 4) * 4;
        const bool there = row <= w.last_row && key < matrix_row_elements();
        pool[POOL_P + e / (P_KEYS / 4) * P_STRIDE + e % (P_KEYS / 4)] =
            there ? Float4In(matrix_address(p.query, row, key)).x : vec4(0);
    }
}

void main() {
    Work w;
    if (!find_work(w)) return;
    const uint keys_begin = uint(visible_keys(w.first_row).x);
    const uint keys_end = uint(max(visible_keys(w.last_row).y, 0));
    Rows v = value_rows(w);
    v.begin = keys_begin;
    v.end = keys_end;
    [[unroll]] for (uint x = 0; x < ROWS * OUT_VECS; x++) acc[x] = vec4(0);
    const uint start = keys_begin / P_KEYS * P_KEYS;
    if (start < keys_end) fetch_v(v, start);
    for (uint first_key = start; first_key < keys_end; first_key += V_KEYS) {
        const uint inside = first_key % P_KEYS;
        barrier();
        if (inside == 0) stage_p(w, first_key);
        store_v(v, first_key);
        barrier();
        if (first_key + V_KEYS < keys_end) fetch_v(v, first_key + V_KEYS);
        multiply_pv(inside / 4);
    }
    const Rows o = out_rows(w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + r * GROUPS + group;
        if (row > w.last_row) continue;
        [[unroll]] for (uint x = 0; x < OUT_VECS; x++)
            store4(row_address(o, row), 4 * (x * LANES + lane), HEAD_DIM_V, acc[r * OUT_VECS + x]);
    }
}
