#version 460
// A step of the baseline's backward: dV = P^T dO or dK = dS^T Q, with P or dS from memory. One workgroup TILE_Q keys
// of one kv head.
//
//   for each query head of the group, each P_KEYS query rows that see some key of the tile:
//     stage the matrix;  for each V_KEYS of these rows:  stage dO or Q;  acc += matrix^T . rows
//   out = acc        0 for keys that no row sees
//
// Tile ownership and shared memory: lib/tiles.glsl, with keys for its query rows and query rows for its keys: the
// matrix stands where P does, and lies in memory as it must there. Grid: kv head, tile of keys.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/materialized_transposed.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/materialized_transposed.def"
} push;
#include "lib/tiles.glsl"
#include "lib/operand_layout.glsl"
#include "lib/score_matrix.glsl"

// Neighbouring invocations read neighbouring keys. For what does not exist the nearest place that does is read: it is
// dropped here for query rows, and with the result for keys.
void stage_columns(uvec2 matrix, Rows v, uint first_key) {
    for (uint e = thread; e < P_KEYS * (TILE_Q / 4); e += THREADS) {
        const uint slot = e / (TILE_Q / 4), four = e % (TILE_Q / 4);
        const uint row = v.first + key_of_slot(slot), key = first_key + 4 * four;
        const uint near = clamp(row, v.begin, v.end - 1), last = matrix_row_elements() - 4;
        const vec4 x = Vec4sIn(matrix).x[matrix_vec4(near, min(key, last))];
        pool[POOL_P + slot * Q_STRIDE + four] = row == near ? x : vec4(0);
    }
}

// Adds what one query head contributes.
void add_head(uvec2 matrix, Rows v, uint first_key) {
    v = tile_at(v, v.begin / P_KEYS * P_KEYS);
    if (v.first < v.end) fetch_v(v, 0);
    while (v.first < v.end)
        for (uint slot = 0; slot < P_KEYS; slot += V_KEYS) {
            barrier();
            if (slot == 0) stage_columns(matrix, v, first_key);
            store_v(v, slot);
            barrier();
            const bool more = slot + V_KEYS < P_KEYS;
            if (!more) v = tile_at(v, v.first + P_KEYS);
            if (more || v.first < v.end) fetch_v(v, more ? slot + V_KEYS : 0);
            multiply_pv(slot);
        }
}

void main() {
    const uint first_key = gl_WorkGroupID.y * TILE_Q;
    const Work w = work_of_keys(push.first_x + gl_WorkGroupID.x);
    const uvec2 rows = seeing_rows(w, first_key, min(first_key + TILE_Q, w.num_keys));
    FOR_EACH(x, ROWS * OUT_VECS) acc[x] = vec4(0);
    for (uint h = 0; h < group_size(); h++) {
        const uvec2 rows_of_head = head_address(push.value, VALUE, w.batch, w.head_kv * group_size() + h);
        Rows v = rows_of(rows_of_head, stride_of(VALUE, 2), uvec2(0), 1, query_extent());
        v.begin = rows.x;
        v.end = rows.y;
        add_head(matrix_of(push.weights, gl_WorkGroupID.x * group_size() + h), v, first_key);
    }
    const Rows o = tile_at(key_tensor_rows(push.out_rows, OUT, w), first_key);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint key = first_key + group * ROWS + r;
        if (key >= key_extent()) continue;
        FOR_EACH(x, OUT_VECS)
            store_key_value4(row_start(o, key, KEY_VALUE_BYTES), 4 * (x * LANES + lane), HEAD_DIM_V,
                             acc[r * OUT_VECS + x]);
    }
}
