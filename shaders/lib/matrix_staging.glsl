// Staging of the matrix kernel: K and V from global memory through registers to the pool, Q to the pool or to
// registers.

// An invocation moves vec4 number thread, thread + THREADS ... of a tile of K or V: through registers, so that the
// loads are under way while the tile before is computed. Head dims that do not exist are not moved, where that is the
// same for every chunk and slice; clear_padding zeroes their place.
const uint K_VECS = MATRIX_STEPS(CHUNKS == 1 ? HEAD_DIM_QK : CHUNK, 8);
const uint V_VECS = MATRIX_STEPS(SLICES == 1 ? HEAD_DIM_V : OUT_SPAN, 8);
const uint K_ITEMS = MATRIX_STEPS(TILE_KV * K_VECS, THREADS);
#ifdef TURNED  // by patches of TURNED_KEYS keys
const uint TURNED_KEYS = TILE_KV * V_VECS >= 4 * THREADS ? 4 : 2;
const uint PATCHES = TILE_KV / TURNED_KEYS * V_VECS, V_ITEMS = MATRIX_STEPS(PATCHES, THREADS) * TURNED_KEYS;
#else
const uint V_ITEMS = MATRIX_STEPS(TILE_KV * V_VECS, THREADS);
#endif
#if defined(RUNNING_MAX) && !defined(TURNED)
STORED8 fetches[BOTH_AHEAD ? 2 : 1][K_ITEMS > V_ITEMS ? K_ITEMS : V_ITEMS];
#define FETCHED_K fetches[0]
#define FETCHED_V fetches[BOTH_AHEAD ? 1 : 0]
#else
STORED8 fetched[K_ITEMS > V_ITEMS ? K_ITEMS : V_ITEMS];
#define FETCHED_K fetched
#define FETCHED_V fetched
#endif

#define STAGED_ROWS TILE_KV
#include "lib/matrix_fetch.glsl"

const bool WHOLE_K = HEAD_DIM_QK % (CHUNKS == 1 ? 8 : CHUNK) == 0;
const bool WHOLE_V = HEAD_DIM_V % (SLICES == 1 ? 8 : OUT_SPAN) == 0;
void fetch_k(Rows k, uint chunk) {
    FETCH_BY(fetch_key8, FETCHED_K, K_ITEMS, K_VECS, chunk * CHUNK, key_row(k, k.first + row), HEAD_DIM_QK, WHOLE_K)
}

#ifdef TURNED
#include "lib/matrix_turned_staging.glsl"
#else
void fetch_v(Rows v, uint first_dim) {
    FETCH_BY(fetch_value8, FETCHED_V, V_ITEMS, V_VECS, first_dim, value_row(v, v.first + row), HEAD_DIM_V, WHOLE_V)
}
#ifdef MIXED
void fetch_inner_k(Rows k) {
    FETCH_BY(fetch_key8, FETCHED_K, K_ITEMS, K_VECS, 0, key_row_of_whole_tile(k, row), HEAD_DIM_QK, WHOLE_K)
}
void fetch_inner_v(Rows v, uint first_dim) {
    FETCH_BY(fetch_value8, FETCHED_V, V_ITEMS, V_VECS, first_dim, value_row_of_whole_tile(v, row), HEAD_DIM_V, WHOLE_V)
}
#else
void fetch_inner_k(Rows k) { FETCH_INNER(FETCHED_K, k, K_ITEMS, K_VECS, 0, HEAD_DIM_QK, WHOLE_K) }
void fetch_inner_v(Rows v, uint first_dim) {
    FETCH_INNER(FETCHED_V, v, V_ITEMS, V_VECS, first_dim, HEAD_DIM_V, WHOLE_V)
}
#endif
void find_offsets(Rows k, Rows v, uint first_dim) {}
#define STORE_V(value) STORE(POOL_V, V_STRIDE, V_ITEMS, V_VECS, value)
#endif

void store_k() { STORE(0, K_STRIDE, K_ITEMS, K_VECS, key_operands(FETCHED_K[t])) }
void store_v() { STORE_V(value_operands(FETCHED_V[t])) }

bool is_seen(uint key);  // lib/matrix_mask.glsl
void store_seen_k() { STORE(0, K_STRIDE, K_ITEMS, K_VECS, is_seen(row) ? key_operands(FETCHED_K[t]) : uvec4(0)) }
void store_seen_v() { STORE_V(is_seen(row) ? value_operands(FETCHED_V[t]) : uvec4(0)) }

// Zeros where tiles of K and V have more head dims than the tensors.
void clear_padding() {
    const uint k_pad = CHUNK / 8 - K_VECS;
    for (uint e = thread; e < TILE_KV * k_pad; e += THREADS)
        PUT8(e / k_pad * K_STRIDE + (K_VECS + e % k_pad) * UNIT, uvec4(0))
#ifdef TURNED
    for (uint e = POOL_V + V_VECS * 8 * V_STRIDE + thread; e < POOL_V + V_ROWS * V_STRIDE; e += THREADS)
        pool[e] = uvec2(0);
#else
    const uint v_pad = MATRIX_STEPS(OUT_SPAN, 8) - V_VECS;
    for (uint e = thread; e < TILE_KV * v_pad; e += THREADS)
        PUT8(POOL_V + e / v_pad * V_STRIDE + (V_VECS + e % v_pad) * UNIT, uvec4(0))
#endif
}

RowStart q_row(Rows q, uint row_of_tile) { return row_start(q, q.first + row_of_tile, QUERY_BYTES); }

// The steps of Q that are not held, of one chunk: staged by all invocations.
const uint STAGED_VECS = Q_STAGED_STEPS * K / 8, STAGED_ITEMS = MATRIX_STEPS(TILE_Q * STAGED_VECS, THREADS);
uvec4 staged_q[STAGED_ITEMS == 0 ? 1 : STAGED_ITEMS];
void fetch_staged_q(Rows q, uint chunk) {
    FOR_EACH(t, STAGED_ITEMS) {
        const uint e = min(t * THREADS + thread, TILE_Q * STAGED_VECS - 1);
        const uint d = chunk * CHUNK + Q_HELD_STEPS * K + e % STAGED_VECS * 8;
        staged_q[t] = load_query8(q_row(q, e / STAGED_VECS), d, HEAD_DIM_QK);
    }
}
void store_staged_q() {
    FOR_EACH(t, STAGED_ITEMS) {
        const uint e = t * THREADS + thread;
        if (e < TILE_Q * STAGED_VECS)
            PUT8(POOL_Q + e / STAGED_VECS * Q_STRIDE + e % STAGED_VECS * UNIT, staged_q[t])
    }
}

// The steps of Q that are held: each subgroup moves them through its share of the pool, as many at a time as fit. All
// loads are under way before the first is used.
const uint HELD_FIT = (SHARE / M - 1) / (K / 8), HELD_PIECE = Q_HELD_STEPS < HELD_FIT ? Q_HELD_STEPS : HELD_FIT;
const uint HELD_PIECES = MATRIX_STEPS(Q_HELD_STEPS, HELD_PIECE == 0 ? 1 : HELD_PIECE);
const uint HELD_VECS = HELD_PIECE * K / 8, HELD_ITEMS = MATRIX_STEPS(M * HELD_VECS, SUBGROUP_SIZE);
const uint HELD_LOADS = ROW_BLOCKS * HELD_PIECES * HELD_ITEMS;
uvec4 held[HELD_LOADS == 0 ? 1 : HELD_LOADS];
void fetch_held_q(Rows q) {
    FOR_EACH(i, HELD_LOADS) {
        const uint e = min(i % HELD_ITEMS * SUBGROUP_SIZE + lane, M * HELD_VECS - 1);
        const uint piece = i / HELD_ITEMS % HELD_PIECES, r = i / (HELD_ITEMS * HELD_PIECES);
        const uint row = subgroup_row + r * M + e / HELD_VECS;
        held[i] = load_query8(q_row(q, row), piece * HELD_PIECE * K + e % HELD_VECS * 8, HEAD_DIM_QK);
    }
}
void hold_q() {
    const uint stride = MATRIX_STRIDE(HELD_PIECE * K) * UNIT, at = subgroup * SHARE * UNIT;
    FOR_EACH(i, ROW_BLOCKS * HELD_PIECES) {
        FOR_EACH(t, HELD_ITEMS) {
            const uint e = t * SUBGROUP_SIZE + lane;
            if (e < M * HELD_VECS)
                PUT8(at + e / HELD_VECS * stride + e % HELD_VECS * UNIT, held[i * HELD_ITEMS + t])
        }
        subgroupBarrier();
        const uint r = i / HELD_PIECES, first_step = i % HELD_PIECES * HELD_PIECE;
        FOR_EACH(d, HELD_PIECE)
            if (first_step + d < Q_HELD_STEPS)
                coopMatLoad(q_held[r * Q_HELD_STEPS + first_step + d], pool, at + d * K / NUMBERS, stride, OWN_ORDER);
        subgroupBarrier();
    }
}

