#version 460
// dquery: one pass over the keys for each tile of queries (Dao, arXiv:2307.08691, section 3.2).
//
//   for each tile of TILE_KV keys that some row of the query tile sees:
//     P, dS of the tile                                                  // lib/backward.glsl
//     for each P_BLOCKS of dS:  stage dS;  for each V_KEYS keys:  stage K;  dQ += dS . K
//   dquery = softmax_scale * dQ / rowsum(P);  1 / rowsum(P) is kept for the other kernels
//
// Tile ownership and shared memory: as forward_tiles.comp, with dS for P and K for V. Grid: heads of all batches, query
// tiles.
#extension GL_GOOGLE_include_directive : require
#define OUT_DIM HEAD_DIM_QK
#include "lib/extensions.glsl"
#include "shared/forward.h"
#include "lib/tiles.glsl"
#include "lib/problem.glsl"
#include "lib/mask.glsl"
#include "lib/backward.glsl"

Rows product_rows;
void fetch_product() { fetch_v(product_rows, 0); }

float row_sum[ROWS];     // of P; this lane's part
float row_before[ROWS];  // the same of earlier dispatches

void load_accumulators(Work w) {
    const uvec2 saved = saved_base(w.batch * num_heads_q() + w.head, p.seqlen_q, w.first_row, V_STRIDE);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = min(group * ROWS + r, w.last_row - w.first_row);
        FOR_EACH(o, OUT_VECS) {
            if (span_is(SPAN_FIRST)) acc[r * OUT_VECS + o] = vec4(0);
            else acc[r * OUT_VECS + o] = Vec4sIn(saved).x[row * V_STRIDE + o * LANES + lane];
        }
    }
}

// Sums over all keys so far; after the last, factors.
void update_factors(Work w) {
    ACROSS_LANES(row_sum, sum_of)
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        const float sum = row_sum[r] + row_before[r];
        row_factor[r] = !span_is(SPAN_LAST) ? sum : sum > 0 ? 1 / sum : 1;
        if (lane != 0 || row > w.last_row) continue;
        const RowStart at = statistics_of(w, row);
        FloatsOut(at.base).x[at.at + 2] = row_factor[r];
    }
}

void store_rows(Work w) {
    const uvec2 saved = saved_base(w.batch * num_heads_q() + w.head, p.seqlen_q, w.first_row, V_STRIDE);
    const Rows o = tile_at(gradient_rows(backward().x.dquery, DQUERY, w.batch, w.head, p.seqlen_q), w.first_row);
    const float scale = backward().x.scale;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        if (row > w.last_row) continue;
        const float factor = scale * row_factor[r];
        const RowStart at = row_start(o, row);
        FOR_EACH(v, OUT_VECS) {
            const vec4 x = acc[r * OUT_VECS + v];
            if (span_is(SPAN_LAST)) store4(at, 4 * (v * LANES + lane), OUT_DIM, factor * x);
            else Vec4sOut(saved).x[(group * ROWS + r) * V_STRIDE + v * LANES + lane] = x;
        }
    }
}

void main() {
    const Work w = find_work();
    const Rows q = query_tile(w), dout = dout_tile(w);
    uvec2 keys = tile_keys(w);
    Rows k = key_rows(w), v = value_rows(w);
    k.begin = v.begin = keys.x;
    k.end = v.end = keys.y;
    if (SAVED != 0) {
        keys.x = max(keys.x, p.out_batch * TILE_KV);
        keys.y = min(keys.y, p.out_head * TILE_KV);
    }
    const uint classes = class_index(w);
    load_statistics(w);
    load_accumulators(w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        row_before[r] = span_is(SPAN_FIRST) ? 0 : row_factor[r];
        row_factor[r] = 1;
        row_sum[r] = 0;
    }

    uint first = next_tile(classes, keys.x / TILE_KV * TILE_KV, keys.y);
    if (first < keys.y) {
        k = tile_at(k, first);
        fetch_qk(q, k, 0, HEAD_DIM_QK);
    }
    while (first < keys.y) {
        v = tile_at(v, first);
        product_rows = k;
        find_gradients(w, q, k, dout, v, tile_class(classes, first) == CLASS_MIXED);
        [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) row_sum[x / (COLS / 4)] += dot(weights[x], vec4(1));
        apply_slopes();
        first = next_tile(classes, first + TILE_KV, keys.y);
        if (first < keys.y) k = tile_at(k, first);
        multiply_tile(q, k, first < keys.y, product_rows);
    }
    update_factors(w);
    store_rows(w);
}
