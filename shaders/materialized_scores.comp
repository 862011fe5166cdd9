#version 460
// The baseline's first step: S = softmax_scale * Q K^T, in base 2, hidden keys far below every score. One workgroup a
// TILE_Q x TILE_KV tile of one head; tiles that no row sees are skipped (the next step does not read them).
//
//   S = 0;  for each chunk of CHUNK head dims:  stage Q and K chunk;  S += Q . K^T;  store S
//
// Tile ownership and shared memory: lib/tiles.glsl. Grid: head, query tile, key tile.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/materialized_scores.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/materialized_scores.def"
} push;
#include "lib/tiles.glsl"
#include "lib/operand_layout.glsl"
#include "lib/mask.glsl"
#include "lib/softmax.glsl"
#include "lib/score_matrix.glsl"

void main() {
    const Work w = find_work();
    const uint first_key = gl_WorkGroupID.z * TILE_KV;
    if (tile_is_hidden(w, tile_rows(w), keys_from(first_key))) return;
    const Rows q = query_tile(push.query, QUERY, w);
    const Rows k = tile_at(key_tensor_rows(push.key, KEY, w), first_key);

    fetch_qk(q, k, 0, HEAD_DIM_QK);
    MULTIPLY_CHUNKS(q, k, HEAD_DIM_QK, {})
    finish_scores(w, first_key, false);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        if (row > w.last_row) continue;
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) {
            const uint key = first_key + 4 * (b * LANES + lane);
            if (key < matrix_row_elements())
                Vec4sOut(matrix_base(push.scores)).x[matrix_vec4(row, key)] = scores[r * (COLS / 4) + b];
        }
    }
}
