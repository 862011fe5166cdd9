#version 460
// dquery: one pass over the keys for each tile of queries (Dao, arXiv:2307.08691, section 3.2).
//
//   for each tile of TILE_KV keys that some row of the query tile sees:
//     P, dS of the tile                                                  // lib/backward.glsl
//     for each P_BLOCKS of dS:  stage dS;  for each V_KEYS keys:  stage K;  dQ += dS . K
//     with the macro DOT, where it matters, sum what dS loses by rounding  // lib/rounding_loss.glsl
//   dquery = softmax_scale * dQ / rowsum(P);  1 / rowsum(P) is kept for the other kernels
//
// Tile ownership and shared memory: as forward_tiles.comp, with dS for P and K for V; a workgroup has a slice of dQ's
// head dims (lib/backward_passes.glsl). Statistics of rows lie behind both maps. Grid: heads of all batches, query
// tiles, slices.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_query.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_query.def"
} push;
#ifdef MIXED
#define TYPED_ROWS
#endif
#define OUT_DIM HEAD_DIM_QK
#define OUT_FIRST (slice() * V_STRIDE)
uint slice();
#include "lib/tiles.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/mask.glsl"
#define ROW_FACTOR(r) 1.0  // not known yet
#define ADD_TO_ROW_SUM(r, of_tile) row_sum[r] += of_tile
#define WEIGHTS_TAKE_CAP true
#define CAP_IS_KEPT false
float row_sum[ROWS];  // of P; this lane's part
#include "lib/backward.glsl"
#ifdef DOT
#include "lib/rounding_loss.glsl"
float lost[ROWS];  // of dS by rounding; this lane's part

void add_loss() {
    FOR_EACH(r, ROWS)
        FOR_EACH(b, COLS / 4) {
            const vec4 ds = scores[r * (COLS / 4) + b];
            const vec4 e = ds - floats_of(QUERY_TYPE, uvec2(rounded_pair(ds.x, ds.y), rounded_pair(ds.z, ds.w)));
            lost[r] += (e.x + e.y) + (e.z + e.w);
        }
}

// `keys` are those that the tile sees. All invocations call it.
void begin_loss(Work w, Rows k, uvec2 keys) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) lost[r] = 0;
    begin_comparison();
    barrier();
    ComparedKeys compared;
    fetch_compared(w, k, keys, compared);
    compare_keys(compared);
    barrier();
    find_whether_loss_is_large();
}

// Gives the sums what rounding has taken from them. All invocations call it.
void give_back_loss(Rows k) {
    ACROSS_LANES(lost, sum_of)
    FOR_EACH(o, OUT_VECS) {
        const vec4 c = four_in_common(k, 4 * (OUT_FIRST + o * LANES + lane));
        FOR_EACH(r, ROWS) acc[r * OUT_VECS + o] += lost[r] * c;
    }
}
#endif

Rows product_rows;
void fetch_product() { fetch_v(product_rows, 0); }

float row_factor[ROWS];  // at the end: see update_factors

// A row of the accumulators: see backward_key_value.comp.
vec4 row_acc[OUT_VECS];

void take_row(uint index) {
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) FOR_EACH(o, OUT_VECS) row_acc[o] = acc[r * OUT_VECS + o];
}

void put_row(uint index) {
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) FOR_EACH(o, OUT_VECS) acc[r * OUT_VECS + o] = row_acc[o];
}

float factor_of(uint index) {
    float factor = 1;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) factor = row_factor[r];
    return factor;
}

// Where the accumulators of the tile's rows are kept between dispatches.
uvec2 kept_rows(Work w) {
    return accumulators_at(w.batch * num_heads_q() + w.head, query_extent(), w.first_row, SLICES * V_STRIDE);
}

void load_accumulators(Work w) {
    FOR_EACH(x, ROWS * OUT_VECS) acc[x] = vec4(0);
    if (starts_loop()) return;
    const uvec2 kept = kept_rows(w);
    for (uint r = 0; r < ROWS; r++) {
        const uint at = min(group * ROWS + r, w.last_row - w.first_row) * (SLICES * V_STRIDE) + OUT_FIRST + lane;
        for (uint o = 0; o < OUT_VECS; o++) row_acc[o] = Vec4sIn(kept).x[at + o * LANES];
        put_row(r);
    }
}

// Sums over all keys so far; after the last, factors. Slices find the same ones; where a loop is cut they take turns.
void update_factors(Work w) {
    barrier();  // statistics may be as loaded, where there was no tile
    ACROSS_LANES(row_sum, sum_of)
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + group * ROWS + r;
        float sum = row_sum[r] + (starts_loop() ? 0 : row_statistics(r).z);  // of earlier dispatches
        if (ends_loop() && !IS_ZERO(sum)) sum += sink_weight(w, min(row, w.last_row), row_lse(r));
        // A sum that is not finite is left out: weights are NaN by themselves, and those of hidden keys shall stay 0.
        row_factor[r] = !ends_loop() ? sum : IS_ZERO(sum) || !IS_FINITE(sum) ? 1 : 1 / sum;
        if (lane != 0 || gl_WorkGroupID.z != 0 || row > w.last_row) continue;
        const RowStart at = statistics_of(w, row);
        FloatsOut(at.base).x[at.at + 2] = row_factor[r];
    }
}

void store_rows(Work w) {
    const uvec2 kept = kept_rows(w);
    const Rows q = gradient_tile(backward().x.dquery, DQUERY, w);
    const float scale = backward().x.scale;
    for (uint r = 0; r < ROWS; r++) {
        take_row(r);
        const uint row = w.first_row + group * ROWS + r;
        const uint at = (group * ROWS + r) * (SLICES * V_STRIDE) + OUT_FIRST + lane;
        if (row > w.last_row) continue;
        if (ends_loop()) {
            const float factor = scale * factor_of(r);
            const StoredRow to = stored_row(q, row);
            const bool empty = is_empty(row - w.first_row);  // it has summed 0 * NaN, perhaps
            for (uint o = 0; o < OUT_VECS; o++)
                store_stored4(to, 4 * (OUT_FIRST + o * LANES + lane), OUT_DIM, empty ? vec4(0) : factor * row_acc[o]);
        } else {
            for (uint o = 0; o < OUT_VECS; o++) Vec4sOut(kept).x[at + o * LANES] = row_acc[o];
        }
    }
}

void main() {
    const Work w = work_of_last_tile(push.first_x + gl_WorkGroupID.x, push.first_y + gl_WorkGroupID.y);
    const Rows q = query_tile(push.query, QUERY, w), dout = dout_tile(w);
    const uvec2 seen = tile_keys(w);
    uvec2 keys = seen;
    Rows k = key_tensor_rows(push.key, KEY, w), v = key_tensor_rows(push.value, VALUE, w);
    k.begin = v.begin = keys.x;
    k.end = v.end = keys.y;
    if (IS_RESUMED) {  // steps are tiles of keys
        keys.x = max(keys.x, push.first_step * TILE_KV);
        keys.y = min(keys.y, push.end_step * TILE_KV);
    }
    const uint classes = class_index(w);
    load_statistics(w);
    load_accumulators(w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) row_sum[r] = 0;
#ifdef DOT
    begin_loss(w, k, seen);
#endif

    uint first = next_tile(w, classes, keys.x / TILE_KV * TILE_KV, keys.y);
    if (first < keys.y) {
        k = tile_at(k, first);
        fetch_qk(q, k, 0, HEAD_DIM_QK);
    }
    while (first < keys.y) {
        v = tile_at(v, first);
        product_rows = k;
        find_gradients(w, q, k, dout, v, mask_class(w, classes, first) == CLASS_MIXED, false);
        tile_is_isolated = tile_is_finished;
#ifdef DOT
        if (sums_loss) add_loss();
#endif
        first = next_tile(w, classes, first + TILE_KV, keys.y);
        if (first < keys.y) k = tile_at(k, first);
        multiply_tile(q, k, first < keys.y, product_rows);
    }
    update_factors(w);
#ifdef DOT
    if (sums_loss) give_back_loss(k);
#endif
    store_rows(w);
}
