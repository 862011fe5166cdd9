// The machinery of the backward on matrix units: who owns what, the map of shared memory, the products. Kernels
// hold rows in registers and go through ("walk") rows of the other sequence:
//
//   kernel                      held           walked        S         sums
//   backward_matrix_query       query, dout    key, value    Q . K^T   dQ += dS . K
//   backward_matrix_key_value   key, value     query, dout   K . Q^T   dV += P . dO;  dK += dS . Q
//   backward_matrix_mask        query, dout    key, value    Q . K^T   D += dS
//   backward_matrix_spilled                    key, dS                 dQ += dS . K
//
// backward_matrix_key_value computes S^T, so that P^T and dS^T are left operands as they are. Below, `qk` is query or
// key, `v` is value or dout. With TURNED all products are those of the transposed matrices
// (lib/backward_matrix_turned.glsl).
//
// Ownership. A subgroup, or a pair of subgroups (PAIRED), owns ROW_BLOCKS blocks of M held rows. Nothing crosses
// subgroups but staged tiles, and P within a pair. The walked tile is multiplied in blocks of BLOCK rows, the fewest
// that both products can take.
//     row i of block r of a subgroup    held row      (subgroup * ROW_BLOCKS + r) * M + i of the workgroup's
//     scores[r * BLOCK_TILES + n]       walked rows   n * N ..      of the block
//     sum_qk[r * QK_TILES + n]          head dims     n * N ..      of the slice
#define P_PAIR converted_pair
#include "lib/matrix_units.glsl"

#ifdef KEY_VALUE
const bool PAIRED = PAIRS != 0;
#else
const bool PAIRED = false;
#endif
#if defined(KEY_VALUE) && !defined(TURNED)
#define MAY_LAG
const bool LAGGING = PAIRS == 2;
#else
const bool LAGGING = false;
#endif
#ifdef SPILLED
const uint OWNERS = SUBGROUPS / SLICES;
#else
const uint OWNERS = PAIRED ? SUBGROUPS / 2 : SUBGROUPS;  // subgroups, or pairs of them, that own rows of their own
#endif
const uint HELD_ROWS = OWNERS * ROW_BLOCKS * M;
#ifdef KEY_VALUE
const uint TILE_Q = WALKED, TILE_KV = HELD_ROWS;
#define WANTS_DV ((GRADIENTS & 1) != 0)
#define WANTS_DS ((GRADIENTS & 2) != 0)
#else
const uint TILE_Q = HELD_ROWS, TILE_KV = WALKED;
#define WANTS_DV false
#define WANTS_DS true
#endif

// MASK_IS_PLAIN says that masks are fetched by the tile or by the block, not by the element
// (lib/backward_matrix_masks.glsl). If they are staged, each subgroup stages the mask of its own scores: MASK_ROWS
// query rows by MASK_KEYS keys.
#if defined(F16) || defined(BF16)
const bool MASK_IS_PLAIN =
    MASK_KIND == MASK_FLOAT && !HAS_BLOCK_MAP ? (P_MOVE == MOVE_FRAGMENT ? MASK_ROW_BYTES == 16 : false) : false;
#else
const bool MASK_IS_PLAIN = false;
#endif

const uint BLOCK = N > K ? N : K;  // both are powers of two
const uint BLOCKS = WALKED / BLOCK;
const uint BLOCK_TILES = BLOCK / N;                           // of the scores of a block
const uint KEY_STEPS = BLOCK / K;                             // of a sum over the rows of a block
const uint QK_STEPS = MATRIX_STEPS(HEAD_DIM_QK, K);           // of S
const uint V_STEPS = MATRIX_STEPS(HEAD_DIM_V, K);             // of dP
#if defined(TURNED) && !defined(KEY_VALUE)
const uint V_HELD_STEPS = V_STEPS - V_STAGED_STEPS;           // of these, as many of dout are in registers
#else
const uint V_HELD_STEPS = V_STEPS;
#endif
const uint QK_TILES = MATRIX_STEPS(HEAD_DIM_QK, N * SLICES);  // of a slice of dQ or dK
const uint V_TILES = MATRIX_STEPS(HEAD_DIM_V, N * SLICES);    // of a slice of dV

#ifdef KEY_VALUE
const uint MASK_ROWS = WALKED, MASK_KEYS = ROW_BLOCKS * M;
#else
const uint MASK_ROWS = ROW_BLOCKS * M, MASK_KEYS = WALKED;
#endif
const uint MASK_STRIDE = MATRIX_STRIDE(MASK_KEYS);
#ifdef MASK_GRADIENT  // whose tile of the mask is held
const uint TILE_KEYS = CHUNKS * WALKED, MASK_SIZE = 0;
#elif defined(TURNED)  // whose masks of a block are held
const uint MASK_SIZE = 0;
#else
const uint MASK_SIZE = MASK_IS_PLAIN ? MASK_ROWS * MASK_STRIDE : 0;
#endif

// Strides, and the map of the pool, in elements of the pool: two buffers, each for a walked tile.
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#ifdef TURNED
#define WALKED_STRIDE TURNED_STRIDE
#else
#define WALKED_STRIDE MATRIX_STRIDE
#endif
const uint QK_STRIDE = WALKED_STRIDE(LARGER(QK_STEPS * K, QK_TILES * N * SLICES));
#ifdef SPILLED  // of dS^T
const uint V_STRIDE = MATRIX_STRIDE(HELD_ROWS);
#else
const uint V_STRIDE = WALKED_STRIDE(LARGER(V_STEPS * K, V_TILES * N * SLICES));
#endif
const uint P_STRIDE = MATRIX_STRIDE(BLOCK);
const uint FLOAT_STRIDE = MATRIX_FLOAT_STRIDE(N);
const uint BUF_V = WALKED * QK_STRIDE;
#ifdef TURNED  // the same rows transposed, of which the sums are made; those of `v` for dvalue
const uint COLUMNS_STRIDE = TURNED_STRIDE(WALKED);
const uint QK_COLUMNS = QK_TILES * N * SLICES, V_COLUMNS = V_TILES * N * SLICES;
const uint BUF_QK_COLUMNS = BUF_V + WALKED * V_STRIDE;
const uint BUF_V_COLUMNS = BUF_QK_COLUMNS + QK_COLUMNS * COLUMNS_STRIDE;
#ifdef KEY_VALUE
const uint BUF_NUMBERS = BUF_V_COLUMNS + V_COLUMNS * COLUMNS_STRIDE;
#else
const uint BUF_NUMBERS = BUF_V_COLUMNS;
#endif
#else
const uint BUF_NUMBERS = BUF_V + WALKED * V_STRIDE;
#endif
#ifdef KEY_VALUE  // of the walked rows: -lse, -delta and the factor of each, WALKED floats after another
const uint NUMBERS_STRIDE = WALKED / POOL_FLOATS;
const uint BUF_SIZE = BUF_NUMBERS + 3 * NUMBERS_STRIDE;
#else
const uint BUF_SIZE = BUF_NUMBERS;
#endif
const uint POOL_PLACE = 2 * BUF_SIZE + (LAGGING ? WALKED * QK_STRIDE : 0);
const uint POOL_SCRATCH = POOL_PLACE + (ELEMENT_LAYOUT == 0 ? MATRIX_PLACES(M, N) : 0);
const uint SCRATCH_P = P_MOVE == MOVE_SHARED ? 0 : M * FLOAT_STRIDE;
const uint SCRATCH_END = SCRATCH_P + (P_MOVE >= MOVE_SHARED ? M * P_STRIDE : 0);
const uint SCRATCH_SIZE = LARGER(SCRATCH_END, M * FLOAT_STRIDE);
const uint POOL_MASKS = POOL_SCRATCH + (ELEMENT_LAYOUT == 0 || P_MOVE >= MOVE_SHARED ? SUBGROUPS * SCRATCH_SIZE : 0);
const uint POOL_WEIGHTS = POOL_MASKS + SUBGROUPS * MASK_SIZE;
#ifdef TURNED  // rows of dout that are not held, from an even element on
const uint STAGED_V_STRIDE = IN_POOL(MATRIX_STRIDE((V_STEPS - V_HELD_STEPS) * K)), POOL_STAGED_V = 2 * BUF_SIZE;
#endif
// A subgroup's share is a part of the whole pool before and after the tiles, and of what lies behind the tiles
// meanwhile.
#ifdef MASK_GRADIENT
const uint POOL_SHARES = POOL_SCRATCH;
#else
const uint POOL_SHARES = 0;
#endif
const uint SHARE = (POOL_VEC4 - POOL_SHARES) / SUBGROUPS;  // in vec4

#ifdef TURNED
#define POOL_TYPE uvec2
#else
#define POOL_TYPE uvec4
#endif
shared POOL_TYPE pool[POOL_VEC4 * UNIT];

#include "lib/operands.glsl"
#include "lib/matrix_operands.glsl"
#include "lib/rows.glsl"
#include "lib/matrix_keys.glsl"

uint owner = subgroup % OWNERS;
uint subgroup_row = owner * ROW_BLOCKS * M;  // the subgroup's first held row
uint scratch = POOL_SCRATCH + subgroup * SCRATCH_SIZE;

OWN_OPERAND held_qk[ROW_BLOCKS * QK_STEPS];
OWN_OPERAND held_v[WANTS_DS && !PAIRED ? ROW_BLOCKS * V_HELD_STEPS : 1];
ACCUMULATOR scores[ROW_BLOCKS * BLOCK_TILES];  // S, then P, then dS
ACCUMULATOR dp[PAIRED ? 1 : ROW_BLOCKS * BLOCK_TILES];  // dP - delta
OWN_OPERAND p_own[ROW_BLOCKS * KEY_STEPS];    // P or dS as operands
uint share = IN_POOL(POOL_SHARES + subgroup * SHARE);
ACCUMULATOR sum_qk[WANTS_DS ? ROW_BLOCKS * QK_TILES : 1];
ACCUMULATOR sum_v[WANTS_DV && !PAIRED ? ROW_BLOCKS * V_TILES : 1];

#ifdef TURNED
#include "lib/matrix_turned.glsl"
uint qk_place = place_of_staged(QK_STRIDE), v_place = place_of_staged(V_STRIDE);
uint column_place = place_of_staged(COLUMNS_STRIDE);
#endif

uint slice();  // lib/backward_passes.glsl

// The products of a block. `at` is the place of the block's first row of qk or v in the pool.
#define HELD_QK(r) held_qk[(r) * QK_STEPS + d]
#ifdef TURNED
OWN_OPERAND own_v(uint r, uint d) {
    OWN_OPERAND v;
    if (d < V_HELD_STEPS)
        v = held_v[r * V_HELD_STEPS + d];
    else
        coopMatLoad(v, pool,
                    POOL_STAGED_V + (subgroup_row + r * M) * STAGED_V_STRIDE + (d - V_HELD_STEPS) * K / NUMBERS,
                    STAGED_V_STRIDE, OWN_ORDER);
    return v;
}
#define HELD_V(r) own_v(r, d)
#else
#define HELD_V(r) held_v[(r) * V_STEPS + d]
#endif
#ifdef TURNED
#define QK_COLUMNS_AT(n) (at_qk + qk_place + (n) * N * QK_STRIDE + d * K / NUMBERS)
#define V_COLUMNS_AT(n) (at_v + v_place + (n) * N * V_STRIDE + d * K / NUMBERS)
#else
#define QK_COLUMNS_AT(n) (at_qk + (n) * N * QK_STRIDE + d * K / 8)
#define V_COLUMNS_AT(n) (at_v + (n) * N * V_STRIDE + d * K / 8)
#endif

// Adds the product of the rows in held_qk and the walked rows from `at_qk` on.
void multiply_held(uint at_qk) {
    FOR_EACH(d, QK_STEPS)
        ADD_MATRIX_PRODUCT(scores, BLOCK_TILES, FOR_EACH(n, BLOCK_TILES), HELD_QK, QK_COLUMNS_AT, QK_STRIDE,
                           gl_CooperativeMatrixLayoutColumnMajor)
}

// Adds S and dP in turns, a step of each at a time: one's loads are under way while the other is multiplied.
void multiply_scores(uint at_qk, uint at_v) {
    FOR_EACH(d, LARGER(QK_STEPS, V_STEPS)) {
        if (d < QK_STEPS)
            ADD_MATRIX_PRODUCT(scores, BLOCK_TILES, FOR_EACH(n, BLOCK_TILES), HELD_QK, QK_COLUMNS_AT, QK_STRIDE,
                               gl_CooperativeMatrixLayoutColumnMajor)
        if (WANTS_DS && d < V_STEPS)
            ADD_MATRIX_PRODUCT(dp, BLOCK_TILES, FOR_EACH(n, BLOCK_TILES), HELD_V, V_COLUMNS_AT, V_STRIDE,
                               gl_CooperativeMatrixLayoutColumnMajor)
    }
}

#define P_OPERAND(r) p_own[(r) * KEY_STEPS + k]
#ifdef TURNED  // at_qk and at_v are those of transposed rows
#define COLUMNS_AT(at, n) (at + column_place + (n) * N * COLUMNS_STRIDE + k * K / NUMBERS)
#define QK_ROWS_AT(n) COLUMNS_AT(at_qk, slice() * QK_TILES + (n))
#define V_ROWS_AT(n) COLUMNS_AT(at_v, slice() * V_TILES + (n))
#define SUMMED_QK(buf, block, at_qk) ((buf) + BUF_QK_COLUMNS + (block) * BLOCK / NUMBERS)
#define SUMMED_V(buf, block, at_v) ((buf) + BUF_V_COLUMNS + (block) * BLOCK / NUMBERS)
#else
#define QK_ROWS_AT(n) (at_qk + k * K * QK_STRIDE + (slice() * QK_TILES + (n)) * N / 8)
#define V_ROWS_AT(n) (at_v + k * K * V_STRIDE + (slice() * V_TILES + (n)) * N / 8)
#define SUMMED_QK(buf, block, at_qk) at_qk
#define SUMMED_V(buf, block, at_v) at_v
#endif
void add_to_qk(uint at_qk) {
    FOR_EACH(k, KEY_STEPS)
        ADD_MATRIX_PRODUCT(sum_qk, QK_TILES, FOR_EACH(n, QK_TILES), P_OPERAND, QK_ROWS_AT, QK_STRIDE,
                           gl_CooperativeMatrixLayoutRowMajor)
}
void add_to_v(uint at_v) {
    FOR_EACH(k, KEY_STEPS)
        ADD_MATRIX_PRODUCT(sum_v, V_TILES, FOR_EACH(n, V_TILES), P_OPERAND, V_ROWS_AT, V_STRIDE,
                           gl_CooperativeMatrixLayoutRowMajor)
}
