#version 460
// The baseline's third step: O = P V with P from memory. One workgroup TILE_Q rows of one head.
//
//   for each P_KEYS keys that some row sees:  stage P;  for each V_KEYS of them:  stage V;  O += P . V
//
// Tile ownership and shared memory (P and V): lib/tiles.glsl. Grid: head, query tile.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/materialized_output.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/materialized_output.def"
} push;
#include "lib/tiles.glsl"
#include "lib/operand_layout.glsl"
#include "lib/score_matrix.glsl"

void stage_p(Rows matrix, uint first_key) {
    for (uint e = thread; e < TILE_Q / 4 * (P_KEYS / 4); e += THREADS) {
        const uint four = e % (P_KEYS / 4) * 4;  // neighbouring keys stand LANES slots apart
        const uint slot = four / (4 * LANES) * (4 * LANES) + four % (4 * LANES) / 4;
        const uint row = matrix.first + e / (P_KEYS / 4) * 4;
        store_block(false, POOL_P + slot * Q_STRIDE + e / (P_KEYS / 4), LANES * Q_STRIDE,
                    load_block(false, matrix, row, first_key + four, matrix_row_elements(), false));
    }
}

void main() {
    const Work w = find_work();
    const uvec2 keys = own_keys(w);
    const uint keys_begin = keys.x, keys_end = keys.y;
    const uvec2 matrix_stride = uvec2(matrix_row_elements() * 4, 0);
    const Rows matrix =
        tile_at(rows_of(matrix_base(push.weights), matrix_stride, uvec2(0), 1, query_extent()), w.first_row);
    Rows v = key_tensor_rows(push.value, VALUE, w);
    v.begin = keys_begin;
    v.end = keys_end;
    FOR_EACH(x, ROWS * OUT_VECS) acc[x] = vec4(0);
    v = tile_at(v, keys_begin / P_KEYS * P_KEYS);
    if (v.first < keys_end) fetch_v(v, 0);
    while (v.first < keys_end)
        for (uint slot = 0; slot < P_KEYS; slot += V_KEYS) {
            barrier();
            if (slot == 0) stage_p(matrix, v.first);
            store_v(v, slot);
            barrier();
            const bool more = slot + V_KEYS < P_KEYS;
            if (!more) v = tile_at(v, v.first + P_KEYS);
            if (more || v.first < keys_end) fetch_v(v, more ? slot + V_KEYS : 0);
            multiply_pv(slot);
        }
    const Rows o = query_tile(push.out_rows, OUT, w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        if (row > w.last_row) continue;
        const ivec2 seen = visible_keys(w, row);
        FOR_EACH(x, OUT_VECS) {
            const vec4 result = seen.x < seen.y ? acc[r * OUT_VECS + x] : vec4(0);  // not 0 * NaN
            store_out4(row_start(o, row, OUT_BYTES), 4 * (x * LANES + lane), HEAD_DIM_V, result);
        }
    }
}
