// The machinery of the matrix kernel: types, shared memory, staging, the two products.
//
// Ownership. A subgroup owns ROW_BLOCKS blocks of M query rows, complete in keys and in the slice's head dims; nothing
// but staged tiles crosses subgroups. All accumulators are M x N and so have one layout: what belongs to a row applies
// to elements of the same number in every one of them.
//     row i of block r of a subgroup    tile row   (subgroup * ROW_BLOCKS + r) * M + i
//     scores[r * KEY_TILES + n]         keys       n * N ..      of the tile
//     acc[r * OUT_TILES + n]            head dims  n * N ..      of the slice
#include "problem_constants.glsl"
layout(constant_id = SPEC_SUBGROUP_SIZE) const uint SUBGROUP_SIZE = 32;
layout(constant_id = SPEC_ROW_BLOCKS) const uint ROW_BLOCKS = 1;
layout(constant_id = SPEC_TILE_KV) const uint TILE_KV = 32;
layout(constant_id = SPEC_CHUNK) const uint CHUNK = 64;
layout(constant_id = SPEC_Q_HELD) const uint Q_HELD = 4;
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
layout(constant_id = SPEC_P_MOVE) const uint P_MOVE = MOVE_SHARED;
layout(constant_id = SPEC_RUNNING_MAX) const uint RUNNING_MAX = 0;
layout(constant_id = SPEC_LAYOUT) const uint LAYOUT = 0;
layout(constant_id = SPEC_PARTS) const uint PARTS = 1;
layout(constant_id = SPEC_MASK_UNIT) const uint MASK_UNIT = 2;
layout(constant_id = SPEC_SECTION) const uint SECTION = 0;
layout(constant_id = SPEC_LEVEL) const uint LEVEL = 0;

// lib/constants.glsl says why. lavapipe, to build and run a forward of 130 x 130: D24 1.4 s for 2.8, D128 2.8 for 133.
#ifdef ROLLED
#define FOR_EACH(i, count) [[dont_unroll]] for (uint i = 0; i < (count); i++)
#else
#define FOR_EACH(i, count) [[unroll]] for (uint i = 0; i < (count); i++)
#endif

#if defined(F16) || defined(F16_OPERANDS)
#define ELEMENT float16_t
#else
#define ELEMENT bfloat16_t
#endif
#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#ifdef ROUNDED_ACCUMULATORS  // not every device has them, and a module that names them is not for others
#define ROUNDED coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#endif
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

const uint SUBGROUPS = THREADS / SUBGROUP_SIZE;
const uint TILE_Q = SUBGROUPS * ROW_BLOCKS * M;
const uint KEY_TILES = TILE_KV / N;                           // of the scores
const uint KEY_STEPS = TILE_KV / K;                           // of P . V
const uint QK_STEPS = MATRIX_STEPS(HEAD_DIM_QK, K);           // of Q . K
const uint CHUNK_STEPS = CHUNK / K;                           // of these, as many are staged at a time
const uint CHUNKS = MATRIX_STEPS(QK_STEPS, CHUNK_STEPS);
const uint OUT_TILES = MATRIX_STEPS(HEAD_DIM_V, N * SLICES);  // of a slice
const uint OUT_SPAN = OUT_TILES * N;                          // head dims of a slice
const uint Q_LYING = CHUNK_STEPS - Q_HELD;                    // steps of Q in shared memory

// Strides in vec4, and the map of the pool.
const uint K_STRIDE = MATRIX_STRIDE(CHUNK);
const uint V_STRIDE = MATRIX_STRIDE(OUT_SPAN);
const uint Q_STRIDE = MATRIX_STRIDE(Q_LYING * K);
const uint P_STRIDE = MATRIX_STRIDE(TILE_KV);
const uint FLOAT_STRIDE = MATRIX_FLOAT_STRIDE(N);
const uint POOL_V = TILE_KV * K_STRIDE;
const uint POOL_Q = POOL_V + TILE_KV * V_STRIDE;
const uint POOL_PLACE = POOL_Q + (Q_LYING == 0 ? 0 : TILE_Q * Q_STRIDE);
const uint POOL_SCRATCH = POOL_PLACE + (LAYOUT == 0 ? M * FLOAT_STRIDE : 0);
const uint SCRATCH_P = P_MOVE == MOVE_SHARED ? 0 : M * FLOAT_STRIDE;  // behind a block of floats, or in its place
const uint SCRATCH_END = SCRATCH_P + (P_MOVE >= MOVE_SHARED ? M * P_STRIDE : 0);
const uint SCRATCH_SIZE = SCRATCH_END > M * FLOAT_STRIDE ? SCRATCH_END : M * FLOAT_STRIDE;
const uint SHARE = POOL_VEC4 / SUBGROUPS;  // of the whole pool, before and after the tiles

shared uvec4 pool[POOL_VEC4];

#include "lib/storage.glsl"
#include "lib/operands.glsl"
#include "lib/rows.glsl"
#include "lib/matrix_keys.glsl"

uint subgroup = gl_SubgroupID;
uint lane = gl_SubgroupInvocationID;
uint subgroup_row = subgroup * ROW_BLOCKS * M;  // the subgroup's first row of the tile
uint scratch = POOL_SCRATCH + subgroup * SCRATCH_SIZE;

LEFT q_held[ROW_BLOCKS * (Q_HELD == 0 ? 1 : Q_HELD)];
ACCUMULATOR scores[ROW_BLOCKS * KEY_TILES];
LEFT p_left[ROW_BLOCKS * KEY_STEPS];
ACCUMULATOR acc[ROW_BLOCKS * OUT_TILES];

// Of a tile of K or V, an invocation moves vec4 number thread, thread + THREADS ...: through registers, so that the loads
// are under way while the tile before is computed.
// Of a row, only what exists is moved, where that is the same for every chunk and slice; clear_padding has the rest.
const uint K_VECS = MATRIX_STEPS(CHUNKS == 1 ? HEAD_DIM_QK : CHUNK, 8);
const uint V_VECS = MATRIX_STEPS(SLICES == 1 ? HEAD_DIM_V : OUT_SPAN, 8);
const uint K_ITEMS = MATRIX_STEPS(TILE_KV * K_VECS, THREADS), V_ITEMS = MATRIX_STEPS(TILE_KV * V_VECS, THREADS);
STORED8 fetched[K_ITEMS > V_ITEMS ? K_ITEMS : V_ITEMS];

// Where rows are a whole number of vec4 per round, the column is the same in each: one division for all.
#define ROW_OF(item, vecs) (THREADS % (vecs) == 0 ? thread / (vecs) + (item) * (THREADS / (vecs)) : (thread + (item) * THREADS) / (vecs))
#define COLUMN_OF(item, vecs) (THREADS % (vecs) == 0 ? thread % (vecs) : (thread + (item) * THREADS) % (vecs))

#define FETCH(items, vecs, first_dim, row_start_of, extent, whole) \
    FOR_EACH(t, items) { \
        const uint row = ROW_OF(t, vecs), d = (first_dim) + COLUMN_OF(t, vecs) * 8; \
        if (TILE_KV * (vecs) % THREADS == 0 || row < TILE_KV) fetched[t] = fetch8(row_start_of, d, extent, whole); \
    }
// The same where every row of the tile exists, and lies within 32-bit offsets: nothing is held to an end. With the widest
// loads an index is in vec4, and one for all rounds.
#define FETCH_INNER(tile, items, vecs, first_dim, extent, whole) \
    if (WIDE_LOADS == 2 && whole && THREADS % (vecs) == 0) { \
        const uint step = tile.stride.x / 16, at = thread / (vecs) * step + ((first_dim) / 8 + thread % (vecs)) * VECS_OF_8; \
        FOR_EACH(t, items) \
            if (TILE_KV * (vecs) % THREADS == 0 || thread / (vecs) + t * (THREADS / (vecs)) < TILE_KV) \
                fetched[t] = fetch_whole8(tile.base, at + t * (THREADS / (vecs) * step)); \
    } else { \
        FETCH(items, vecs, first_dim, RowStart(tile.base, row * (tile.stride.x / ELEMENT_BYTES)), extent, whole) \
    }
#define STORE(at, stride, items, vecs, value) \
    FOR_EACH(t, items) { \
        const uint row = ROW_OF(t, vecs); \
        if (TILE_KV * (vecs) % THREADS == 0 || row < TILE_KV) pool[(at) + ROW_AT(row, t, vecs) * (stride) + COLUMN_OF(t, vecs)] = value; \
    }

const bool WHOLE_K = HEAD_DIM_QK % (CHUNKS == 1 ? 8 : CHUNK) == 0;
const bool WHOLE_V = HEAD_DIM_V % (SLICES == 1 ? 8 : OUT_SPAN) == 0;
void fetch_k(Rows k, uint chunk) {
    FETCH(K_ITEMS, K_VECS, chunk * CHUNK, row_start(k, k.first + row), HEAD_DIM_QK, WHOLE_K)
}
void fetch_v(Rows v, uint first_dim) {
    FETCH(V_ITEMS, V_VECS, first_dim, row_start(v, v.first + row), HEAD_DIM_V, WHOLE_V)
}
void fetch_inner_k(Rows k) { FETCH_INNER(k, K_ITEMS, K_VECS, 0, HEAD_DIM_QK, WHOLE_K) }
void fetch_inner_v(Rows v, uint first_dim) { FETCH_INNER(v, V_ITEMS, V_VECS, first_dim, HEAD_DIM_V, WHOLE_V) }
void store_k() { STORE(0, K_STRIDE, K_ITEMS, K_VECS, operands_of(fetched[t])) }
void store_v() { STORE(POOL_V, V_STRIDE, V_ITEMS, V_VECS, operands_of(fetched[t])) }

// Zeros where tiles of K and V have more head dims than the tensors.
void clear_padding() {
    const uint k_pad = CHUNK / 8 - K_VECS, v_pad = MATRIX_STEPS(OUT_SPAN, 8) - V_VECS;
    for (uint e = thread; e < TILE_KV * k_pad; e += THREADS) pool[e / k_pad * K_STRIDE + K_VECS + e % k_pad] = uvec4(0);
    for (uint e = thread; e < TILE_KV * v_pad; e += THREADS)
        pool[POOL_V + e / v_pad * V_STRIDE + V_VECS + e % v_pad] = uvec4(0);
}

// A row of Q, of the tile.
RowStart q_row(Rows q, uint row) { return row_start(q, q.first + row); }

// Elements of Q that are not held: of one chunk, by all invocations.
const uint LYING_VECS = Q_LYING * K / 8, LYING_ITEMS = MATRIX_STEPS(TILE_Q * LYING_VECS, THREADS);
uvec4 lying[LYING_ITEMS == 0 ? 1 : LYING_ITEMS];
void fetch_lying_q(Rows q, uint chunk) {
    FOR_EACH(t, LYING_ITEMS) {
        const uint e = min(t * THREADS + thread, TILE_Q * LYING_VECS - 1);
        lying[t] = load8(q_row(q, e / LYING_VECS), chunk * CHUNK + Q_HELD * K + e % LYING_VECS * 8, HEAD_DIM_QK, false);
    }
}
void store_lying_q() {
    FOR_EACH(t, LYING_ITEMS) {
        const uint e = t * THREADS + thread;
        if (e < TILE_Q * LYING_VECS) pool[POOL_Q + e / LYING_VECS * Q_STRIDE + e % LYING_VECS] = lying[t];
    }
}

// The part of Q that is held: each subgroup through its share of the pool, as many steps at a time as fit. All loads are
// under way before the first is used.
const uint HELD_FIT = (SHARE / M - 1) / (K / 8), HELD_PIECE = Q_HELD < HELD_FIT ? Q_HELD : HELD_FIT;
const uint HELD_PIECES = MATRIX_STEPS(Q_HELD, HELD_PIECE == 0 ? 1 : HELD_PIECE);
const uint HELD_VECS = HELD_PIECE * K / 8, HELD_ITEMS = MATRIX_STEPS(M * HELD_VECS, SUBGROUP_SIZE);
const uint HELD_LOADS = ROW_BLOCKS * HELD_PIECES * HELD_ITEMS;
uvec4 held[HELD_LOADS == 0 ? 1 : HELD_LOADS];
void fetch_held_q(Rows q) {
    FOR_EACH(i, HELD_LOADS) {
        const uint e = min(i % HELD_ITEMS * SUBGROUP_SIZE + lane, M * HELD_VECS - 1);
        const uint piece = i / HELD_ITEMS % HELD_PIECES, r = i / (HELD_ITEMS * HELD_PIECES);
        held[i] = load8(q_row(q, subgroup_row + r * M + e / HELD_VECS), piece * HELD_PIECE * K + e % HELD_VECS * 8, HEAD_DIM_QK,
                        false);
    }
}
void hold_q() {
    const uint stride = MATRIX_STRIDE(HELD_PIECE * K), at = subgroup * SHARE;
    FOR_EACH(i, ROW_BLOCKS * HELD_PIECES) {
        FOR_EACH(t, HELD_ITEMS) {
            const uint e = t * SUBGROUP_SIZE + lane;
            if (e < M * HELD_VECS) pool[at + e / HELD_VECS * stride + e % HELD_VECS] = held[i * HELD_ITEMS + t];
        }
        subgroupBarrier();
        FOR_EACH(d, HELD_PIECE)
            if (i % HELD_PIECES * HELD_PIECE + d < Q_HELD)
                coopMatLoad(q_held[i / HELD_PIECES * Q_HELD + i % HELD_PIECES * HELD_PIECE + d], pool, at + d * K / 8, stride,
                            gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
    }
}

// A tile's keys are multiplied in PARTS, 1 or 2. No loop goes over them: NVIDIA's compiler leaves it a loop (D128: 248
// TFLOP/s for 311).
#define FOR_PART(i, part, all) FOR_EACH(i, all) if ((i) >= (part) * (all) / PARTS && (i) < ((part) + 1) * (all) / PARTS)

// scores += Q . K^T of the staged chunk
void multiply_qk(uint part) {
    FOR_EACH(d, CHUNK_STEPS) {
        LEFT q[ROW_BLOCKS];
        FOR_EACH(r, ROW_BLOCKS)
            if (d < Q_HELD)
                q[r] = q_held[r * Q_HELD + d];
            else
                coopMatLoad(q[r], pool, POOL_Q + (subgroup_row + r * M) * Q_STRIDE + (d - Q_HELD) * K / 8, Q_STRIDE,
                            gl_CooperativeMatrixLayoutRowMajor);
        FOR_PART(n, part, KEY_TILES) {
            RIGHT k;
            coopMatLoad(k, pool, n * N * K_STRIDE + d * K / 8, K_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
            FOR_EACH(r, ROW_BLOCKS) scores[r * KEY_TILES + n] = coopMatMulAdd(q[r], k, scores[r * KEY_TILES + n]);
        }
    }
}

void multiply_all_qk() {
    if (PARTS == 2) multiply_qk(0);
    multiply_qk(PARTS - 1);
}

// acc += P . V
void multiply_pv(uint part) {
    FOR_PART(k, part, KEY_STEPS)
        FOR_EACH(n, OUT_TILES) {
            RIGHT v;
            coopMatLoad(v, pool, POOL_V + k * K * V_STRIDE + n * N / 8, V_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            FOR_EACH(r, ROW_BLOCKS) acc[r * OUT_TILES + n] = coopMatMulAdd(p_left[r * KEY_STEPS + k], v, acc[r * OUT_TILES + n]);
        }
}

void multiply_all_pv() {
    if (PARTS == 2) multiply_pv(0);
    multiply_pv(PARTS - 1);
}
