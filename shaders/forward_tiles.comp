#version 460
// FlashAttention forward on any device: shared-memory tiles, float32 arithmetic, no matrix unit, no subgroup operation.
// Dao et al., arXiv:2205.14135, and Dao, arXiv:2307.08691 (queries outside, keys inside).
//
//   for each tile of TILE_KV keys, of this split of the keys, that some row of the query tile sees:
//     S = 0;  for each chunk of CHUNK head dims:  stage Q and K chunk;  S += Q . K^T
//     S = scale * S, softcap, mask;  on boundary tiles (only) hide what a row may not see
//     m = rowmax(S)                                  // over the LANES of a row, through shared memory
//     where m > row_max + 8:  O, row_sum *= 2^(row_max - m);  row_max = m
//     P = 2^(S - row_max);  row_sum += own part of rowsum(P)
//     for each P_BLOCKS of P:  stage P;  for each V_KEYS keys:  stage V;  O += P . V
//   O /= rowsum over lanes;  lse = ln 2 * (row_max + log2(row_sum))
//
// S and row_max are in base 2 here. With a float mask they are natural (lib/scores.glsl).
//
// Tile ownership: lib/tiles.glsl. A workgroup owns TILE_Q query rows of one head or, packed, of all heads that share a
// kv head, against all keys or a split of them; nothing crosses workgroups. The results of splits are merged by
// combine.comp.
//
// Shared memory (one pool, three maps that follow each other, a barrier at each change; in vec4, strides odd):
//   scores    Q chunk CHUNK x TILE_Q/4     K chunk CHUNK x TILE_KV/4
//   maxima    a row's LANES partial maxima, THREADS x ROWS/4
//   output    P       P_KEYS x TILE_Q/4    V       V_KEYS x head_dim_v/4 rounded up to LANES
// With the macro DOT two head dims (of V and P two keys) share a place, in 16 bits: lib/lines.glsl.
//
// Q is staged again for every tile of keys: shared memory then does not grow with head_dim, two workgroups fit a
// multiprocessor, and any head_dim works. row_max is stale by at most a factor 2^8 (exact; saves most rescales).
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/forward_tiles.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/forward_tiles.def"
} push;
#include "lib/tiles.glsl"
#include "lib/operand_layout.glsl"
#include "lib/mask.glsl"
#include "lib/softmax.glsl"
#include "lib/results.glsl"

void store_row(Work w, Rows o, uint row, uint r) {
    const RowStart at = out_row(w, o, row);
    float sum = row_sum[r];
    const float scale = end_row(w, row, row_max[r], sum);
    const bool empty = IS_ZERO(sum);  // its accumulators may be NaN all the same: 0 * NaN is
    FOR_EACH(v, OUT_VECS) store_result4(at, 4 * (v * LANES + lane), empty ? vec4(0) : acc[r * OUT_VECS + v] * scale);
    if (lane == 0) store_statistics(w, row, row_max[r], sum);
}

void store_rows(Work w) {
    const Rows o = query_tile(push.out_rows, OUT, w);
    ACROSS_LANES(row_sum, sum_of)
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        if (row <= w.last_row) store_row(w, o, row, r);
    }
}

void main() {
    const Work w = find_work();
    const Rows q = query_tile(push.query, QUERY, w);
    // Keys that some row of the tile sees; the rest is neither computed nor read.
    const uvec2 keys = own_keys(w);
    const uint keys_begin = keys.x, keys_end = keys.y;
    Rows k = key_tensor_rows(push.key, KEY, w), v = key_tensor_rows(push.value, VALUE, w);
    k.begin = v.begin = keys_begin;
    k.end = v.end = keys_end;
    const uint classes = class_index(w);

    softmax_begin();
    FOR_EACH(x, ROWS * OUT_VECS) acc[x] = vec4(0);

    k = tile_at(k, next_tile(w, classes, keys_begin / TILE_KV * TILE_KV, keys_end));
    if (k.first < keys_end) fetch_qk(q, k, 0, HEAD_DIM_QK);
    while (k.first < keys_end) {
        v = tile_at(v, k.first);
        MULTIPLY_CHUNKS(q, k, HEAD_DIM_QK, fetch_v(v, 0))
        const bool mixed = mask_class(w, classes, k.first) == CLASS_MIXED;
        const bool finish = needs_finishing(w, tile_rows(w), keys_from(k.first), mixed);
        if (finish) finish_scores(w, k.first, mixed);
        softmax_tile(finish ? 1.0 : common_factor());
        tile_is_isolated = ISOLATES_ROWS && !tile_is_plain(w, tile_rows(w), keys_from(k.first), mixed);
        k = tile_at(k, next_tile(w, classes, k.first + TILE_KV, keys_end));
        multiply_tile(q, k, k.first < keys_end, v);
    }
    store_rows(w);
}
