#version 460
// dbias, the gradient of a float mask, in the mask's own shape: the scores' gradient, summed where the mask broadcasts.
//
//   for each batch, each query head, each query tile that share the workgroup's tile of the mask:
//     P, dS of the tile;  D += dS                                         // lib/backward.glsl
//   dbias = D or, of a mask that all queries share, its columns' sums
//   a mask that all keys share: dbias = sum of dlse, since one number for all keys changes no P. With a block map, by
//   which it may be that of some keys: the sum of D over all tiles of keys
//
// Tile ownership and shared memory: as the scores of forward_tiles.comp; then column sums, THREADS x COLS/4.
// Grid: heads and batches of the mask, its query tiles, its tiles of keys. One workgroup a tile sums in a fixed order.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_mask.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_mask.def"
} push;
#ifdef MIXED
#define TYPED_ROWS
#endif
#include "lib/tiles.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/mask.glsl"
#define WEIGHTS_TAKE_CAP false  // the mask is added after the softcap
#define CAP_IS_KEPT false
#include "lib/backward.glsl"
#include "lib/mask_gradient.glsl"

void fetch_product() {}

vec4 sums[ROWS * COLS / 4];

void add_tile(Work w, uint first_key) {
    const uvec2 keys = tile_keys(w);
    Rows k = key_tensor_rows(push.key, KEY, w), v = key_tensor_rows(push.value, VALUE, w);
    k.begin = v.begin = max(keys.x, first_key);
    k.end = v.end = min(keys.y, first_key + TILE_KV);
    if (k.begin >= k.end) return;
    const uint kind = mask_class(w, class_index(w), first_key);
    if (kind == CLASS_HIDDEN || (HAS_BLOCK_MAP && kind == CLASS_PLAIN)) return;
    k = tile_at(k, first_key);
    v = tile_at(v, first_key);
    const Rows q = query_tile(push.query, QUERY, w);
    fetch_qk(q, k, 0, HEAD_DIM_QK);
    load_statistics(w);
    find_gradients(w, q, k, dout_tile(w), v, kind == CLASS_MIXED, false);
    FOR_EACH(r, ROWS)
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b, row = w.first_row + group * ROWS + r;
            sums[x] += gradient_where_asked(w, row, first_key + 4 * (b * LANES + lane), gradient_of_mask(w, scores[x]));
        }
}

void store_tile(uint mask, uint first_row, uint first_key) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint steps = group * ROWS + r;
        if (first_row + steps >= query_extent()) continue;
        const RowStart row = dbias_row(mask, first_row, steps);
        FOR_EACH(b, COLS / 4)
            [[unroll]] for (uint i = 0; i < 4; i++)
                store_element(row, first_key + 4 * (b * LANES + lane) + i, sums[r * (COLS / 4) + b][i]);
    }
}

void store_columns(uint mask, uint first_key) {
    barrier();
    [[unroll]] for (uint b = 0; b < COLS / 4; b++) {
        vec4 sum = sums[b];
        [[unroll]] for (uint r = 1; r < ROWS; r++) sum += sums[r * (COLS / 4) + b];
        pool[thread * (COLS / 4) + b] = sum;
    }
    barrier();
    if (group != 0) return;
    const RowStart row = dbias_row(mask, 0, 0);
    FOR_EACH(b, COLS / 4) {
        vec4 sum = vec4(0);
        for (uint g = 0; g < GROUPS; g++) sum += pool[(g * LANES + lane) * (COLS / 4) + b];
        [[unroll]] for (uint i = 0; i < 4; i++) store_element(row, first_key + 4 * (b * LANES + lane) + i, sum[i]);
    }
}

// Stores what all keys share: the sum of a row or, of a mask that all queries share too, of all rows.
void store_sums_of_keys(uint mask, uint first_row, bool one) {
    float all[ROWS];
    float of_rows = 0;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        vec4 sum = vec4(0);
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) sum += sums[r * (COLS / 4) + b];
        all[r] = sum.x + sum.y + sum.z + sum.w;
    }
    for (uint r = 0; r < ROWS; r++) {
        barrier();
        [[unroll]] for (uint i = 0; i < ROWS; i++)
            if (i == r) pool[thread].x = all[i];
        barrier();
        if (lane != 0 || (one && group != 0)) continue;
        float sum = 0;
        for (uint t = thread; t < (one ? THREADS : thread + LANES); t++) sum += pool[t].x;
        of_rows += sum;
        const uint steps = group * ROWS + r;
        if (!one && first_row + steps < query_extent()) store_element(dbias_row(mask, first_row, steps), 0, sum);
    }
    if (one && thread == 0) store_element(dbias_row(mask, 0, 0), 0, of_rows);
}

// The sum of a row's dS: dlse and, with a sink, what its weight has of delta. NaN if a dS is not finite.
float sum_of_gradients(Work w, uint row) {
    const RowStart at_statistics = statistics_of(w, row);
    const vec4 statistics = Vec4sIn(at_statistics.base).x[at_statistics.at / 4];
    if (statistics.w != 0) return 0;
    if (!IS_FINITE(statistics.x) || !IS_FINITE(statistics.y)) return uintBitsToFloat(NAN_BITS);
    float sum = 0;
    if (HAS_SINKS) sum = statistics.y * statistics.z * sink_weight(w, row, statistics.x);
    if (!HAS_DLSE) return sum;
    const RowStart at = dense_row(backward().x.dlse, uvec2(0), 1, w, row);
    return sum + FloatsIn(at.base).x[at.at];
}

void store_dlse(uint mask, Shared by) {
    BackwardIn a = backward();
    const bool one = a.x.dbias_queries == 1;
    const uint first = one ? 0 : (push.first_y + gl_WorkGroupID.y) * TILE_Q;
    const uint end = one ? query_extent() : min(first + TILE_Q, query_extent());
    float all = 0;
    for (uint row = first + thread; row < end; row += THREADS) {
        float sum = 0;
        Work w;
        w.first_row = first;
        w.first_query = 0;
        for (uint b = by.batches.x; b < by.batches.y; b++)
            for (w.head = by.heads.x; w.head < by.heads.y; w.head++) {
                w.batch = min(b, by.batches.y - 1);  // lavapipe loads ahead of the test
                if (HAS_SINKS) find_sequences(w);
                sum += gradient_of_mask(w, vec4(sum_of_gradients(w, row))).x;
            }
        if (one) all += sum;
        else store_element(dbias_row(mask, first, row - first), 0, sum);
    }
    if (!one) return;
    pool[thread] = vec4(all, 0, 0, 0);
    barrier();
    if (thread != 0) return;
    float sum = 0;
    for (uint t = 0; t < THREADS; t++) sum += pool[t].x;
    store_element(dbias_row(mask, 0, 0), 0, sum);
}

void main() {
    BackwardIn a = backward();
    const uint mask = push.first_x + gl_WorkGroupID.x;
    const Shared by = shared_by(mask);
    const bool share_keys = mask_key_step() == 0;
    if (share_keys && !HAS_BLOCK_MAP) {
        store_dlse(mask, by);
        return;
    }
    const bool one = a.x.dbias_queries == 1;
    const uint first_key = (push.first_z + gl_WorkGroupID.z) * TILE_KV;
    const uint first_row = one ? 0 : (push.first_y + gl_WorkGroupID.y) * TILE_Q;
    [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) sums[x] = vec4(0);
    const uint end_key = share_keys ? key_extent() : first_key + 1;
    Work w;
    w.split = 0;
    // All queries that share the workgroup's tile of the mask, for each tile of keys.
    for (uint key = first_key; key < end_key; key += TILE_KV)
        for (uint b = by.batches.x; b < by.batches.y; b++) {
            w.batch = min(b, by.batches.y - 1);  // lavapipe loads ahead of the test
            find_sequences(w);
            const uvec2 rows = seeing_rows(w, key, min(key + TILE_KV, w.num_keys));
            const uint begin = max(rows.x / TILE_Q * TILE_Q, first_row);
            const uint end = one ? rows.y : min(rows.y, first_row + TILE_Q);
            for (uint head = by.heads.x; head < by.heads.y; head++) {
                w.head_kv = head / group_size();
                for (uint row = begin; row < end; row += TILE_Q) {
                    set_query_tile(w, head, row);
                    add_tile(w, key);
                }
            }
        }
    if (share_keys) store_sums_of_keys(mask, first_row, one);
    else if (one) store_columns(mask, first_key);
    else store_tile(mask, first_row, first_key);
}
