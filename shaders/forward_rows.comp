#version 460
// FlashAttention forward for few query rows (decoding): every key and value is read once, straight into registers, so
// memory is the limit. Splitting the keys over workgroups and merging by lse is FlashDecoding (Dao et al., 2023).
//
// With PREFETCH, what is multiplied next is under way, UNROLL keys ahead. In float32 that would take registers from
// what is computed (H200, D128: 6.6 instead of 8.2 TFLOP/s), so the loop takes half as many keys at a time there, none
// ahead.
//
//   for each tile of GROUPS x LANES keys, of this split of the keys:      group g has LANES neighbouring keys
//     for each key of the group:  own part of q . k for all ROWS rows -> pool
//     s = sum over lanes of the parts of key number `lane`;  scale, softcap, mask, hide
//     m = max over the group's keys of s;  where m > row_max + 8:  O, row_sum *= 2^(row_max - m);  row_max = m
//     p = 2^(s - row_max);  row_sum += p                                  // of key number `lane`
//     for each key of the group:  O += p . v                              // own head dims
//   merge the groups by their row_max:  O, row_sum
//
// s and row_max are in base 2 here. With a float mask they are natural (lib/scores.glsl).
//
// Tile ownership. All groups have the same ROWS query rows (packed: of all heads that share a kv head), and different
// keys. Of a row of Q, K, V or O, a lane has every LANES-th vec4; of the scores, it has all rows of one key.
//
// With the macro DOT products are 16-bit dot products (lib/dot2.glsl): of pairs of head dims in q . k, and of pairs of
// keys in p . v, for which p is rounded when it is stored.
//
// Shared memory (one pool, in vec4; one vec4 is four query rows):
//   parts     of q . k: GROUPS x LANES keys x (LANES + 1), for each four rows
//   scores    one of each key, for each four rows            P   likewise
//   merge     (over all of it)  GROUPS x V_STRIDE of one row of O
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/forward_rows.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/forward_rows.def"
} push;
#include "lib/constants.glsl"

const uint TILE_Q = ROWS;
const uint TILE_KV = GROUPS * LANES;
const uint ROW_VECS = ROWS / 4;
const uint QK_VECS = (HEAD_DIM_QK + 4 * LANES - 1) / (4 * LANES);
const uint POOL_SCORES = GROUPS * LANES * (LANES + 1) * ROW_VECS;
const uint POOL_P = POOL_SCORES + THREADS * ROW_VECS;

#include "lib/operands.glsl"
#include "lib/rows.glsl"
#include "lib/key_source.glsl"
#ifdef DOT
#include "lib/dot2.glsl"
#endif
#include "lib/operand_layout.glsl"
#include "lib/mask.glsl"
#include "lib/scores.glsl"
#include "lib/results.glsl"

#ifdef DOT
#define Q4 QUERY_STORED4
#define q4_of(stored) (stored)
#define K4 KEY_VALUE_STORED4
#define k4_of(stored) (stored)
#define ADD_QK(q, k, sum) sum = dot2(q.y, k.y, dot2(q.x, k.x, sum))
#else
#define Q4 vec4
#define q4_of(stored) query_floats(stored)
#define K4 vec4
#define k4_of(stored) key_floats(stored)
#define ADD_QK(q, k, sum) sum += dot(q, k)
#endif
// QK_VEC(v) and OUT_VEC(v) are the place in a row of vec4 number v of this lane.
#ifdef MIXED
#include "lib/quantised_pieces.glsl"
const bool K_IN_PIECES = PIECES_FIT(KEY_TYPE, HEAD_DIM_QK, QK_VECS);
const bool V_IN_PIECES = PIECES_FIT(VALUE_TYPE, HEAD_DIM_V, OUT_VECS);
#define QK_VEC(v) (K_IN_PIECES ? lane * QK_VECS + (v) : (v) * LANES + lane)
#define OUT_VEC(v) (V_IN_PIECES ? lane * OUT_VECS + (v) : (v) * LANES + lane)
vec4 q_sum[ROW_VECS];  // the sum of this lane's part of q, which the least value of a key's block is multiplied by
#else
#define QK_VEC(v) ((v) * LANES + lane)
#define OUT_VEC(v) ((v) * LANES + lane)
#endif
Q4 q[ROWS * QK_VECS];
vec4 acc[ROWS * OUT_VECS];
vec4 row_max[ROW_VECS];  // the same in all lanes of a group
vec4 row_sum[ROW_VECS];  // of the keys that this lane had

void load_q(Work w) {
    const Rows rows = query_tile(push.query, QUERY, w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const RowStart at = row_start(rows, min(w.first_row + r, w.last_row), QUERY_BYTES);
        [[unroll]] for (uint v = 0; v < QK_VECS; v++)
            q[r * QK_VECS + v] =
                q4_of(load_query4(at, 4 * QK_VEC(v), HEAD_DIM_QK, HEAD_DIM_QK % (4 * LANES) == 0));
    }
#ifdef MIXED
    if (K_IN_PIECES && HAS_LEAST(KEY_TYPE))
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            q_sum[r / 4][r % 4] = 0;
            [[unroll]] for (uint v = 0; v < QK_VECS; v++) q_sum[r / 4][r % 4] += dot(q[r * QK_VECS + v], vec4(1));
        }
#endif
}

// This lane's part of STEP rows of K or V, as stored.
const bool AHEAD = FETCHES_AHEAD && KEY_BYTES == 2 && VALUE_BYTES == 2;
const uint STEP = !AHEAD && FETCHES_AHEAD ? (UNROLL % 2 == 0 ? UNROLL / 2 : UNROLL) : UNROLL;
const uint AHEAD_VECS = QK_VECS > OUT_VECS ? QK_VECS : OUT_VECS;
const uint AHEAD_SIZE = AHEAD ? STEP * AHEAD_VECS : 1;
KEY_VALUE_STORED4 ahead[AHEAD_SIZE], now[AHEAD_SIZE];
KEY_VALUE_STORED4 load_k(StoredRow at, uint v) {
    return load_key4(at, 4 * QK_VEC(v), HEAD_DIM_QK, HEAD_DIM_QK % (4 * LANES) == 0);
}
KEY_VALUE_STORED4 load_v(StoredRow at, uint o) {
    return load_value4(at, 4 * OUT_VEC(o), HEAD_DIM_V, HEAD_DIM_V % (4 * LANES) == 0);
}
#ifdef MIXED
const uint PIECES = AHEAD ? STEP : 1;
Piece pieces_ahead[PIECES], pieces[PIECES];
#endif
void fetch_k(Rows k, uint first_key) {
    if (!AHEAD) return;
#ifdef MIXED
    if (K_IN_PIECES) {
        FOR_EACH(i, PIECES) pieces_ahead[i] = fetch_piece(KEY_TYPE, key_row(k, first_key + i), QK_VECS);
        return;
    }
#endif
    FOR_EACH(i, STEP)
        FOR_EACH(v, QK_VECS)
            ahead[i * AHEAD_VECS + v] = load_k(key_row(k, first_key + i), v);
}
void fetch_v(Rows v, uint first_key) {
    if (!AHEAD) return;
#ifdef MIXED
    if (V_IN_PIECES) {
        FOR_EACH(i, PIECES)
            pieces_ahead[i] = fetch_piece(VALUE_TYPE, value_row(v, first_key + i), OUT_VECS);
        return;
    }
#endif
    FOR_EACH(i, STEP)
        FOR_EACH(o, OUT_VECS)
            ahead[i * AHEAD_VECS + o] = load_v(value_row(v, first_key + i), o);
}

#ifdef MIXED
#define TAKE_AHEAD \
    if (AHEAD) FOR_EACH(x, AHEAD_SIZE) now[x] = ahead[x]; \
    if (AHEAD) FOR_EACH(x, PIECES) pieces[x] = pieces_ahead[x];
void add_qk_of_piece(Piece piece, inout vec4 part[ROW_VECS]) {
    [[unroll]] for (uint v = 0; v < QK_VECS; v++) {
        const vec4 x = numbers_of_piece(KEY_TYPE, piece, v, QK_VECS);
        [[unroll]] for (uint r = 0; r < ROWS; r++) ADD_QK(q[r * QK_VECS + v], x, part[r / 4][r % 4]);
    }
    vec2 factors = factors_of_piece(KEY_TYPE, piece);
    // An infinite factor makes the score NaN: infinity times the sum would have the sum's sign, but elements have both.
    factors = mix(factors, vec2(uintBitsToFloat(NAN_BITS)),
                  equal(floatBitsToUint(factors) & EXPONENT_BITS, uvec2(EXPONENT_BITS)));
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++)
        part[x] = HAS_LEAST(KEY_TYPE) ? fma(part[x], vec4(factors.x), q_sum[x] * factors.y) : part[x] * factors.x;
}
// `unseen`: no row sees the key, whose factors may be anything.
void add_pv_of_piece(Piece piece, vec4 p[ROW_VECS], bool unseen) {
    const vec2 factors = mix(factors_of_piece(VALUE_TYPE, piece), vec2(0), bvec2(unseen));
    if (!HAS_LEAST(VALUE_TYPE))
        [[unroll]] for (uint x = 0; x < ROW_VECS; x++) p[x] *= factors.x;
    [[unroll]] for (uint o = 0; o < OUT_VECS; o++) {
        vec4 x = numbers_of_piece(VALUE_TYPE, piece, o, OUT_VECS);
        if (HAS_LEAST(VALUE_TYPE)) x = fma(x, vec4(factors.x), vec4(factors.y));
        if (IS_FLOAT8(VALUE_TYPE) && unseen) x = vec4(0);  // it may be NaN
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            acc[r * OUT_VECS + o] = fma(vec4(p[r / 4][r % 4]), x, acc[r * OUT_VECS + o]);
    }
}
#else
#define TAKE_AHEAD if (AHEAD) FOR_EACH(x, AHEAD_SIZE) now[x] = ahead[x];
#endif

// This lane's part of q . k for the keys of its group, into the pool. K of the first ones is there; fetches V of the
// first.
void multiply_qk(Rows k, Rows v, uint first_key) {
    STAYS_LOOP for (uint first = 0; first < LANES; first += STEP) {
        TAKE_AHEAD
        if (first + STEP < LANES) fetch_k(k, first_key + first + STEP);
        else fetch_v(v, first_key);
        [[unroll]] for (uint i = 0; i < STEP; i++) {
            const uint key = first + i;
            const StoredRow at = key_row(k, first_key + key);
            vec4 part[ROW_VECS];
            [[unroll]] for (uint x = 0; x < ROW_VECS; x++) part[x] = vec4(0);
#ifdef MIXED
            if (K_IN_PIECES) {
                if (AHEAD) add_qk_of_piece(pieces[i], part);
                else add_qk_of_piece(fetch_piece(KEY_TYPE, at, QK_VECS), part);
            } else
#endif
            [[unroll]] for (uint v = 0; v < QK_VECS; v++) {
                const K4 x = k4_of(AHEAD ? now[i * AHEAD_VECS + v] : load_k(at, v));
                [[unroll]] for (uint r = 0; r < ROWS; r++) ADD_QK(q[r * QK_VECS + v], x, part[r / 4][r % 4]);
            }
            [[unroll]] for (uint x = 0; x < ROW_VECS; x++)
                pool[((group * LANES + key) * ROW_VECS + x) * (LANES + 1) + lane] = part[x];
        }
    }
}

// The scores of one key, rows 4 * x .. 4 * x + 3.
vec4 score_of(Terms terms, uint x, int key) {
    vec4 s = vec4(0);
    [[unroll]] for (uint l = 0; l < LANES; l++) s += pool[(thread * ROW_VECS + x) * (LANES + 1) + l];
    s = scaled(s);
    [[unroll]] for (uint r = 0; r < 4; r++) {
        const uint row = min(terms.w.first_row + 4 * x + r, terms.w.last_row);
        s[r] = finished(s[r], terms, row, visible_keys(terms.w, row), key);
    }
    return s;
}

#ifdef DOT
// Each weight takes the lower half of a word.
vec4 stored_weights(vec4 p) {
    return uintBitsToFloat(uvec4(pair_of_weights(p.x, 0), pair_of_weights(p.y, 0), pair_of_weights(p.z, 0),
                                 pair_of_weights(p.w, 0)));
}
#else
#define stored_weights(p) (p)
#endif

// From the parts to P, both in the pool; row_max, row_sum and the accumulators follow.
void softmax_group(Terms terms, uint first_key) {
    vec4 s[ROW_VECS];
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        s[x] = score_of(terms, x, int(first_key + lane));
        pool[POOL_SCORES + thread * ROW_VECS + x] = s[x];
    }
    barrier();
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        vec4 m = s[x];
        [[unroll]] for (uint l = 0; l < LANES; l++) m = max(m, pool[POOL_SCORES + (group * LANES + l) * ROW_VECS + x]);
        const bvec4 grown = greaterThan(m, row_max[x] + GROWTH);
        if (any(grown)) {
            const vec4 shrink = mix(vec4(1), exp2(max(EXPONENT(row_max[x], m), vec4(-256))), grown);
            row_max[x] = mix(row_max[x], m, grown);
            row_sum[x] *= shrink;
            [[unroll]] for (uint r = 0; r < 4; r++)
                FOR_EACH(v, OUT_VECS) acc[(4 * x + r) * OUT_VECS + v] *= shrink[r];
        }
        const vec4 exponent = EXPONENT(s[x], row_max[x]);
        vec4 e = EXP2_4(exponent);
        if (ZERO_IS_HIDDEN) e += mix(vec4(LEAST_WEIGHT), vec4(0), lessThan(s[x], vec4(NO_MAXIMUM)));
        row_sum[x] += e;
        pool[POOL_P + thread * ROW_VECS + x] = stored_weights(e);
    }
}

#ifdef DOT
// Adds p . v of keys first + i and the next. A mask may hide a key that others around it see: see below.
void add_pv_of_pair(Rows v, uint first_key, uint first, uint i) {
    const StoredRow a = value_row(v, first_key + first + i),
                   b = value_row(v, first_key + first + i + 1);
    uvec4 p[ROW_VECS];
    uint weights = 0;
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        const uint at = POOL_P + (group * LANES + first + i) * ROW_VECS + x;
        p[x] = floatBitsToUint(pool[at]) | floatBitsToUint(pool[at + ROW_VECS]) << 16;
        weights |= p[x].x | p[x].y | p[x].z | p[x].w;
    }
    const uint kept = HIDES_KEYS ? halves_of(weights) : 0xffffffff;
    [[unroll]] for (uint o = 0; o < OUT_VECS; o++) {
        const uvec2 x = AHEAD ? now[i * AHEAD_VECS + o] : load_v(a, o),
                    y = AHEAD ? now[(i + 1) * AHEAD_VECS + o] : load_v(b, o);
        const uvec4 pairs = pairs_of_rows(x, y) & kept;
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            acc[r * OUT_VECS + o] = dot2(p[r / 4][r % 4], pairs, acc[r * OUT_VECS + o]);
    }
}
#endif

// V of the first keys is there; fetches K of the next tile's first.
void multiply_pv(Rows v, Rows next_k, uint first_key, uint next_key) {
    STAYS_LOOP for (uint first = 0; first < LANES; first += STEP) {
        TAKE_AHEAD
        if (first + STEP < LANES) fetch_v(v, first_key + first + STEP);
        else fetch_k(next_k, next_key);
#ifdef DOT
        [[unroll]] for (uint i = 0; i < STEP; i += 2) add_pv_of_pair(v, first_key, first, i);
#else
        [[unroll]] for (uint i = 0; i < STEP; i++) {
            const uint key = first + i;
            const StoredRow at = value_row(v, first_key + key);
            // A mask may hide a key that others around it see, and hidden content may be NaN: 0 * NaN is not 0.
            vec4 p[ROW_VECS];
            bool unseen = HIDES_KEYS;
            [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
                p[x] = pool[POOL_P + (group * LANES + key) * ROW_VECS + x];
                unseen = unseen && p[x] == vec4(0);
            }
#ifdef MIXED
            if (V_IN_PIECES) {
                if (AHEAD) add_pv_of_piece(pieces[i], p, unseen);
                else add_pv_of_piece(fetch_piece(VALUE_TYPE, at, OUT_VECS), p, unseen);
            } else
#endif
            [[unroll]] for (uint o = 0; o < OUT_VECS; o++) {
                vec4 x = value_floats(AHEAD ? now[i * AHEAD_VECS + o] : load_v(at, o));
                if (unseen) x = vec4(0);
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    acc[r * OUT_VECS + o] = fma(vec4(p[r / 4][r % 4]), x, acc[r * OUT_VECS + o]);
            }
        }
#endif
    }
}

// Brings the groups to one maximum, and row_sum to the sum over all keys.
void merge_statistics() {
    barrier();
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        pool[POOL_SCORES + thread * ROW_VECS + x] = row_sum[x];
        if (lane == 0) pool[group * ROW_VECS + x] = row_max[x];
    }
    barrier();
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        vec4 m = pool[x], sum = vec4(0);
        for (uint g = 1; g < GROUPS; g++) m = max(m, pool[g * ROW_VECS + x]);
        for (uint g = 0; g < GROUPS; g++) {
            vec4 of_group = vec4(0);
            for (uint l = 0; l < LANES; l++) of_group += pool[POOL_SCORES + (g * LANES + l) * ROW_VECS + x];
            sum += of_group * exp2(max(EXPONENT(pool[g * ROW_VECS + x], m), vec4(-256)));
        }
        const vec4 shrink = exp2(max(EXPONENT(row_max[x], m), vec4(-256)));
        [[unroll]] for (uint r = 0; r < 4; r++)
            FOR_EACH(v, OUT_VECS) acc[(4 * x + r) * OUT_VECS + v] *= shrink[r];
        row_max[x] = m;
        row_sum[x] = sum;
    }
}

// This lane's part of a row into the pool; returns its row_max and row_sum. The rows are too much for some drivers to
// unroll them (RADV, 16-bit stores), and registers need constant indices: hence comparisons.
vec2 put_row(uint index) {
    vec2 max_sum = vec2(0);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) {
            FOR_EACH(v, OUT_VECS) pool[group * V_STRIDE + OUT_VEC(v)] = acc[r * OUT_VECS + v];
            max_sum = vec2(row_max[r / 4][r % 4], row_sum[r / 4][r % 4]);
        }
    return max_sum;
}

void store_rows(Work w) {
    const Rows o = query_tile(push.out_rows, OUT, w);
    merge_statistics();
    for (uint r = 0; r < ROWS; r++) {
        const uint row = w.first_row + r;
        barrier();
        const vec2 max_sum = put_row(r);
        barrier();
        if (row > w.last_row) continue;
        float sum = max_sum.y;
        const float scale = end_row(w, row, max_sum.x, sum);
        const bool empty = IS_ZERO(sum);  // its accumulators may be NaN all the same: 0 * NaN is
        const RowStart at = out_row(w, o, row);
        for (uint e = thread; e < V_STRIDE; e += THREADS) {
            vec4 all = vec4(0);
            for (uint g = 0; g < GROUPS; g++) all += pool[g * V_STRIDE + e];
            store_result4(at, 4 * e, empty ? vec4(0) : all * scale);
        }
        if (thread == 0) store_statistics(w, row, max_sum.x, sum);
    }
}

// The first tile of keys from `first` on that a block map does not hide.
uint next_seen(Work w, uint first, uint end) {
    if (HAS_BLOCK_MAP)
        while (first < end && mask_class(w, 0, first) == CLASS_HIDDEN) first += TILE_KV;
    return first;
}

void main() {
    const Work w = find_work();
    const uvec2 keys = own_keys(w);
    Rows k = key_tensor_rows(push.key, KEY, w), v = key_tensor_rows(push.value, VALUE, w);
    k.begin = v.begin = keys.x;
    k.end = v.end = keys.y;
    if (IS_SPLIT && keys.x >= keys.y) {  // many splits have no key where few of the buffer's keys are valid
        for (uint row = w.first_row + thread; row <= w.last_row; row += THREADS)
            store_statistics(w, row, NO_MAXIMUM, 0);
        return;
    }
    const Terms terms = terms_of(w, true);
    [[unroll]] for (uint x = 0; x < ROW_VECS; x++) {
        row_max[x] = vec4(NO_MAXIMUM);
        row_sum[x] = vec4(0);
    }
    FOR_EACH(x, ROWS * OUT_VECS) acc[x] = vec4(0);
    load_q(w);
    uint first = next_seen(w, keys.x / TILE_KV * TILE_KV, keys.y);
    k = tile_at(k, first);
    if (first < keys.y) fetch_k(k, first + group * LANES);
    while (first < keys.y) {
        v = tile_at(v, first);
        const uint first_key = first + group * LANES;
        multiply_qk(k, v, first_key);
        barrier();
        softmax_group(terms, first_key);
        barrier();
        first = next_seen(w, first + TILE_KV, keys.y);
        k = tile_at(k, first);
        multiply_pv(v, k, first_key, first + group * LANES);
    }
    store_rows(w);
}
