#version 460
// dbias from the dS^T that backward_matrix_key_value.comp has spilled (lib/spill.glsl): dS, summed over the batches and
// heads that share an element of the mask, in their order. It waits for memory alone, where recomputing dS costs two
// products and the exponentials once more.
//
//   for each batch and each query head that share the workgroup's tile of the mask:
//     D += dS of the tile, if somebody has spilled it
//   dbias = D
//
// Tile ownership: a tile is a step of query rows and as many keys as make 8 elements an invocation, which are
// neighbours in scratch: 8 query rows of a key. All batches and heads that share the mask are in scratch.
// Grid: the mask's heads of all its batches, steps, tiles of keys.
//
// Shared memory: the tile in float32, rows one element farther apart, to be stored by rows.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_mask_spilled.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_mask_spilled.def"
} push;
#include "lib/operands.glsl"
#include "lib/rows.glsl"
const uint TILE_Q = SPILLED_ROWS, TILE_KV = STEP_KEYS;
#include "lib/backward_problem.glsl"
#include "lib/mask.glsl"
#include "lib/mask_gradient.glsl"
#include "lib/spill.glsl"

uint thread = gl_LocalInvocationIndex;
const uint KEYS = THREADS * 8 / STEP_ROWS, STRIDE = KEYS + 1;  // of a tile
const uint AHEAD = 4;                                          // heads whose dS is under way
shared float tile[STEP_ROWS * STRIDE];

uint step_row, first_key;  // the tile's first query row, and its first key
float sums[8];

// Adds dS of the heads from .x to before .y, whose rows see the same keys.
void add_heads(Work w, uvec2 heads) {
    const uint steps = (query_extent() + STEP_ROWS - 1) / STEP_ROWS;
    const uint at = first_key / M * SPILLED_KEYS + thread;
    [[dont_unroll]] for (uint head = heads.x; head < heads.y; head += AHEAD) {
        uvec4 ds[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint own = min(head + i, heads.y - 1);
            const uint step = own % group_size() * steps + step_row / STEP_ROWS - push.first_step;
            ds[i] = SpillIn(push.spill).x[spilled_step(w.batch * num_heads_kv() + own / group_size(), step) + at];
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++)
            if (head + i < heads.y)
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    const vec2 two = floats_of(QUERY_TYPE, ds[i][j]);
                    sums[2 * j] += two.x;
                    sums[2 * j + 1] += two.y;
                }
    }
}

void main() {
    const uint mask = push.first_x + gl_WorkGroupID.x;
    const Shared by = shared_by(mask);
    step_row = (push.first_y + gl_WorkGroupID.y) * STEP_ROWS;
    first_key = (push.first_z + gl_WorkGroupID.z) * KEYS;
    const uint matrix = thread % SPILLED_KEYS / SPILLED_MATRIX, vec = thread % SPILLED_MATRIX;
    const uint key = thread / SPILLED_KEYS * M + vec / (K / 8), row = matrix * K + vec % (K / 8) * 8;
    const uint spilled_key = (first_key + key) / STEP_KEYS * STEP_KEYS;  // of the workgroup that may have spilled it
    [[unroll]] for (uint i = 0; i < 8; i++) sums[i] = 0;
    Work w;
    w.split = 0;
    for (uint b = by.batches.x; b < by.batches.y; b++) {
        w.batch = min(b, by.batches.y - 1);  // lavapipe loads ahead of the test
        find_sequences(w);
        set_query_tile(w, by.heads.x, step_row / SPILLED_ROWS * SPILLED_ROWS);
        const uvec2 keys = tile_keys(w);
        if (keys.x < spilled_key + STEP_KEYS && spilled_key < keys.y) add_heads(w, by.heads);
    }
    [[unroll]] for (uint i = 0; i < 8; i++) tile[(row + i) * STRIDE + key] = sums[i];
    barrier();
    [[dont_unroll]] for (uint e = thread; e < STEP_ROWS * KEYS; e += THREADS) {
        const uint steps = e / KEYS;
        if (step_row + steps < query_extent())
            store_element(dbias_row(mask, step_row, steps), first_key + e % KEYS, tile[steps * STRIDE + e % KEYS]);
    }
}
