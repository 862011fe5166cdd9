// The machinery of the forward on matrix units: the map of shared memory, the two products.
//
// Ownership. A subgroup owns ROW_BLOCKS blocks of M query rows, complete in keys and in the slice's head dims; nothing
// but staged tiles crosses subgroups. All accumulators are M x N and so have one layout: what belongs to a row applies
// to elements of the same number in every one of them.
//     row i of block r of a subgroup    tile row   (subgroup * ROW_BLOCKS + r) * M + i
//     scores[r * KEY_TILES + n]         keys       n * N ..      of the tile
//     acc[r * OUT_TILES + n]            head dims  n * N ..      of the slice
//
// With TURNED (lib/matrix_turned.glsl) the accumulators are S^T and O^T: rows are their columns.
#include "lib/matrix_units.glsl"

const uint TILE_Q = SUBGROUPS * ROW_BLOCKS * M;
const uint KEY_TILES = TILE_KV / N;                           // of the scores
const uint KEY_STEPS = TILE_KV / K;                           // of P . V
const uint QK_STEPS = MATRIX_STEPS(HEAD_DIM_QK, K);           // of Q . K
const uint CHUNK_STEPS = CHUNK / K;                           // of these, as many are staged at a time
const uint CHUNKS = MATRIX_STEPS(QK_STEPS, CHUNK_STEPS);
const uint OUT_TILES = MATRIX_STEPS(HEAD_DIM_V, N * SLICES);  // of a slice
const uint OUT_SPAN = OUT_TILES * N;                          // head dims of a slice
const uint Q_STAGED_STEPS = CHUNK_STEPS - Q_HELD_STEPS;       // steps of Q in shared memory

// Strides, and the map of the pool, in elements of the pool.
#ifdef TURNED  // V lies transposed
const uint K_STRIDE = TURNED_STRIDE(CHUNK);
const uint V_STRIDE = TURNED_STRIDE(TILE_KV);
const uint V_ROWS = OUT_SPAN;
#else
const uint K_STRIDE = MATRIX_STRIDE(CHUNK);
const uint V_STRIDE = MATRIX_STRIDE(OUT_SPAN);
const uint V_ROWS = TILE_KV;
#endif
const uint Q_STRIDE = MATRIX_STRIDE(Q_STAGED_STEPS * K) * UNIT;
const uint P_STRIDE = MATRIX_STRIDE(TILE_KV);
const uint FLOAT_STRIDE = MATRIX_FLOAT_STRIDE(N);
// True if V takes the place of K in the pool. Rows with padding keep places of their own, because zeros are written
// there once.
#if defined(RUNNING_MAX) && !defined(TURNED)
const bool SHARES_PLACE = MATRIX_SHARES_PLACE(SUBGROUPS, CHUNK, CHUNKS, HEAD_DIM_QK, OUT_SPAN, SLICES, HEAD_DIM_V);
#else
const bool SHARES_PLACE = false;
#endif
// True if registers hold both of the next tile, K and V (H200, one token, float32 query over float16 keys: 0.493
// instead of 0.524 ms). Blocks take more registers, with which it is a loss (q8_0: 0.600 instead of 0.523 ms). In
// modules of mixed types float32 is taken for such, too, which was not measured.
#ifdef MIXED
#define HAS_16_BITS(type) ((type) == TYPE_FLOAT16 ? true : (type) == TYPE_BFLOAT16)
const bool IS_NARROW = HAS_16_BITS(STORED_KEY_TYPE) ? HAS_16_BITS(STORED_VALUE_TYPE) : false;
#else
const bool IS_NARROW = true;
#endif
const bool BOTH_AHEAD = SHARES_PLACE ? (IS_NARROW ? CHUNK + OUT_SPAN <= 256 : false) : false;
const uint K_SIZE = TILE_KV * K_STRIDE, V_SIZE = V_ROWS * V_STRIDE;
const uint POOL_V = SHARES_PLACE ? 0 : K_SIZE;
const uint STAGED_SIZE = SHARES_PLACE && K_SIZE > V_SIZE ? K_SIZE : POOL_V + V_SIZE;
const uint POOL_Q = (STAGED_SIZE + UNIT - 1) / UNIT * UNIT;
const uint POOL_PLACE = POOL_Q + (Q_STAGED_STEPS == 0 ? 0 : TILE_Q * Q_STRIDE);
const uint POOL_SCRATCH = POOL_PLACE + (ELEMENT_LAYOUT == 0 ? MATRIX_PLACES(M, N) : 0);
const uint SCRATCH_P = P_MOVE == MOVE_SHARED ? 0 : M * FLOAT_STRIDE;  // behind a block of floats, or in its place
const uint SCRATCH_END = SCRATCH_P + (P_MOVE >= MOVE_SHARED ? M * P_STRIDE : 0);
const uint SCRATCH_SIZE = SCRATCH_END > M * FLOAT_STRIDE ? SCRATCH_END : M * FLOAT_STRIDE;
const uint SHARE = POOL_VEC4 / SUBGROUPS;  // of the whole pool, before and after the tiles; in vec4

#ifdef TURNED
shared uvec2 pool[POOL_VEC4 * UNIT];
#else
shared uvec4 pool[POOL_VEC4];
#endif

#include "lib/operands.glsl"
#include "lib/matrix_operands.glsl"
#include "lib/rows.glsl"
#include "lib/key_source.glsl"
#include "lib/matrix_keys.glsl"

uint subgroup_row = subgroup * ROW_BLOCKS * M;  // the subgroup's first row of the tile
uint scratch = POOL_SCRATCH + subgroup * SCRATCH_SIZE;

OWN_OPERAND q_held[ROW_BLOCKS * (Q_HELD_STEPS == 0 ? 1 : Q_HELD_STEPS)];
ACCUMULATOR scores[ROW_BLOCKS * KEY_TILES];
OWN_OPERAND p_own[ROW_BLOCKS * KEY_STEPS];
ACCUMULATOR acc[ROW_BLOCKS * OUT_TILES];
#ifdef TURNED
#include "lib/matrix_turned.glsl"
uint k_place = place_of_staged(K_STRIDE), v_place = POOL_V + place_of_staged(V_STRIDE);
#endif

// The keys of a tile are multiplied in HALVES, 1 or 2: FOR_HALF goes over the items of all `count` that are of one
// half. No loop goes over the halves: NVIDIA's compiler does not unroll it (D128: 248 instead of 311 TFLOP/s).
#define FOR_HALF(i, half_index, count) \
    FOR_EACH(i, count) if ((i) >= (half_index) * (count) / HALVES && (i) < ((half_index) + 1) * (count) / HALVES)

// The step d of Q, of row block r: held, or loaded from the pool.
OWN_OPERAND query_operand(uint r, uint d) {
    OWN_OPERAND q;
    if (d < Q_HELD_STEPS)
        q = q_held[r * Q_HELD_STEPS + d];
    else
        coopMatLoad(q, pool, POOL_Q + (subgroup_row + r * M) * Q_STRIDE + (d - Q_HELD_STEPS) * K / NUMBERS, Q_STRIDE,
                    OWN_ORDER);
    return q;
}

// scores += Q . K^T of the staged chunk
#define Q_OPERAND(r) q[r]
#ifdef TURNED
#define K_OPERAND_AT(n) (k_place + (n) * N * K_STRIDE + d * K / NUMBERS)
#else
#define K_OPERAND_AT(n) ((n) * N * K_STRIDE + d * K / NUMBERS)
#endif
void multiply_qk(uint half_index) {
    FOR_EACH(d, CHUNK_STEPS) {
        OWN_OPERAND q[ROW_BLOCKS];
        FOR_EACH(r, ROW_BLOCKS) q[r] = query_operand(r, d);
        ADD_MATRIX_PRODUCT(scores, KEY_TILES, FOR_HALF(n, half_index, KEY_TILES), Q_OPERAND, K_OPERAND_AT, K_STRIDE,
                           gl_CooperativeMatrixLayoutColumnMajor)
    }
}

void multiply_all_qk() {
    if (HALVES == 2) multiply_qk(0);
    multiply_qk(HALVES - 1);
}

// acc += P . V
#define P_OPERAND(r) p_own[(r) * KEY_STEPS + k]
#ifdef TURNED
#define V_OPERAND_AT(n) (v_place + (n) * N * V_STRIDE + k * K / NUMBERS)
#else
#define V_OPERAND_AT(n) (POOL_V + k * K * V_STRIDE + (n) * N / NUMBERS)
#endif
void multiply_pv(uint half_index) {
    FOR_HALF(k, half_index, KEY_STEPS)
        ADD_MATRIX_PRODUCT(acc, OUT_TILES, FOR_EACH(n, OUT_TILES), P_OPERAND, V_OPERAND_AT, V_STRIDE,
                           gl_CooperativeMatrixLayoutRowMajor)
}

void multiply_all_pv() {
    if (HALVES == 2) multiply_pv(0);
    multiply_pv(HALVES - 1);
}
