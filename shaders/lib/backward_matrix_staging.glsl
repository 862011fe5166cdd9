// Staging of the backward on matrix units: walked rows from global memory to a buffer of the pool, held rows to
// registers.
const uint STAGED_ROWS = WALKED / STAGES;
#include "lib/matrix_fetch.glsl"

const uint QK_VECS = MATRIX_STEPS(HEAD_DIM_QK, 8), V_VECS = MATRIX_STEPS(HEAD_DIM_V, 8);
const uint QK_ITEMS = MATRIX_STEPS(STAGED_ROWS * QK_VECS, THREADS);
const uint V_ITEMS = MATRIX_STEPS(STAGED_ROWS * V_VECS, THREADS);
const bool WHOLE_QK = HEAD_DIM_QK % 8 == 0, WHOLE_V = HEAD_DIM_V % 8 == 0;
struct Fetched {  // a stage of a tile, on its way from global memory to the pool
    STORED8 qk[QK_ITEMS], v[V_ITEMS];
};

// Fetches a stage of a tile; fetch_whole_stage does where all rows of the tile exist and none is far.
void fetch_stage(Rows qk, Rows v, uint stage, out Fetched fetched) {
    const uint from = stage * STAGED_ROWS;
    FETCH(fetched.qk, QK_ITEMS, QK_VECS, 0, row_start(qk, qk.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_QK,
          WHOLE_QK)
    FETCH(fetched.v, V_ITEMS, V_VECS, 0, row_start(v, v.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_V, WHOLE_V)
}
void fetch_whole_stage(Rows qk, Rows v, uint stage, out Fetched fetched) {
    const Rows qk_stage = next_whole_tile(qk, stage * STAGED_ROWS), v_stage = next_whole_tile(v, stage * STAGED_ROWS);
    FETCH_INNER(fetched.qk, qk_stage, QK_ITEMS, QK_VECS, 0, HEAD_DIM_QK, WHOLE_QK)
    FETCH_INNER(fetched.v, v_stage, V_ITEMS, V_VECS, 0, HEAD_DIM_V, WHOLE_V)
}
void store_stage(uint buf, uint stage, Fetched fetched) {
    const uint at_qk = buf + stage * STAGED_ROWS * QK_STRIDE, at_v = buf + BUF_V + stage * STAGED_ROWS * V_STRIDE;
    STORE(at_qk, QK_STRIDE, QK_ITEMS, QK_VECS, operands_of(fetched.qk[t]))
    STORE(at_v, V_STRIDE, V_ITEMS, V_VECS, operands_of(fetched.v[t]))
}

// Zeros in both buffers where tiles have more head dims than the tensors.
void clear_padding() {
    const uint qk_pad = QK_STRIDE - QK_VECS, v_pad = V_STRIDE - V_VECS;
    FOR_EACH(s, 2) {
        const uint at = s * BUF_SIZE;
        for (uint e = thread; e < WALKED * qk_pad; e += THREADS)
            pool[at + e / qk_pad * QK_STRIDE + QK_VECS + e % qk_pad] = uvec4(0);
        for (uint e = thread; e < WALKED * v_pad; e += THREADS)
            pool[at + BUF_V + e / v_pad * V_STRIDE + V_VECS + e % v_pad] = uvec4(0);
    }
}

// Zeroes walked rows of a buffer; `is_dropped` is an expression of `row`. All invocations call it, between barriers.
#define ZERO_ROWS(buf, is_dropped) \
    for (uint row = thread; row < WALKED; row += THREADS) \
        if (is_dropped) { \
            for (uint i = 0; i < QK_VECS; i++) pool[(buf) + row * QK_STRIDE + i] = uvec4(0); \
            for (uint i = 0; i < V_VECS; i++) pool[(buf) + BUF_V + row * V_STRIDE + i] = uvec4(0); \
        }

// Loads the subgroup's blocks of rows into `left`, through its share of the pool, as many steps at a time as fit. All
// loops have constant counts: around another one NVIDIA's compiler does not unroll, and then keeps the matrices in
// memory (H200, 580.159, D128, WALKED 16: 58 for 219 TFLOP/s).
#define HOLD_ROWS(left, steps, t, extent) { \
    const uint fit = (SHARE / M - 1) / (K / 8), most = fit < (steps) ? fit : (steps); \
    const uint vecs = most * K / 8, stride = MATRIX_STRIDE(most * K), at = subgroup * SHARE; \
    FOR_EACH(r, ROW_BLOCKS) \
        FOR_EACH(piece, MATRIX_STEPS(steps, most)) { \
            FOR_EACH(item, MATRIX_STEPS(M * vecs, SUBGROUP_SIZE)) { \
                const uint e = min(item * SUBGROUP_SIZE + lane, M * vecs - 1); \
                const uint row = t.first + subgroup_row + r * M + e / vecs, dim = piece * most * K + e % vecs * 8; \
                pool[at + e / vecs * stride + e % vecs] = load_query8(row_start(t, row, QUERY_BYTES), dim, extent); \
            } \
            subgroupBarrier(); \
            FOR_EACH(d, most) \
                if (piece * most + d < (steps)) \
                    coopMatLoad(left[r * (steps) + piece * most + d], pool, at + d * K / 8, stride, \
                                gl_CooperativeMatrixLayoutRowMajor); \
            subgroupBarrier(); \
        } \
}
