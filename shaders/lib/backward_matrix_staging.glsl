// Staging of the backward on matrix units: walked rows from global memory to a buffer of the pool, held rows to
// registers.
const uint STAGED_ROWS = WALKED / STAGES;
#include "lib/matrix_fetch.glsl"

const uint QK_VECS = MATRIX_STEPS(HEAD_DIM_QK, 8), V_VECS = MATRIX_STEPS(HEAD_DIM_V, 8);
const bool WHOLE_QK = HEAD_DIM_QK % 8 == 0, WHOLE_V = HEAD_DIM_V % 8 == 0;
#ifdef TURNED  // by patches of TURNED_ROWS rows
const uint TURNED_ROWS = STAGED_ROWS * QK_VECS >= 4 * THREADS ? 4 : 2, PATCH_ROWS = STAGED_ROWS / TURNED_ROWS;
#define PATCHED_ITEMS(vecs) (MATRIX_STEPS(PATCH_ROWS * (vecs), THREADS) * TURNED_ROWS)
const uint QK_ITEMS = PATCHED_ITEMS(QK_VECS);
#else
const uint QK_ITEMS = MATRIX_STEPS(STAGED_ROWS * QK_VECS, THREADS);
#endif
#if defined(TURNED) && defined(KEY_VALUE)
const uint V_ITEMS = PATCHED_ITEMS(V_VECS);
#else
const uint V_ITEMS = MATRIX_STEPS(STAGED_ROWS * V_VECS, THREADS);
#endif
struct Fetched {  // a stage of a tile, on its way from global memory to the pool
    STORED8 qk[QK_ITEMS], v[V_ITEMS];
};

// A walked tile's rows of qk are read and stored in the tile's buffer. If a subgroup is LAGGING, they are in one of
// three places instead, which tiles take in turns.
#ifdef MAY_LAG
uint qk_before, qk_now, qk_next;
#define QK_OF(buf) (LAGGING ? qk_now : (buf))
#define QK_STORED(buf) (LAGGING ? qk_next : (buf))
#else
#define QK_OF(buf) (buf)
#define QK_STORED(buf) (buf)
#endif
#ifdef TURNED
#include "lib/backward_matrix_turned.glsl"
#else
// Fetches a stage of a tile. fetch_whole_stage does so for the tile `behind` rows behind this one, if all of its rows
// exist and offsets within the head fit an index.
void fetch_stage(Rows qk, Rows v, uint stage, out Fetched fetched) {
    const uint from = stage * STAGED_ROWS;
    FETCH(fetched.qk, QK_ITEMS, QK_VECS, 0, row_start(qk, qk.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_QK,
          WHOLE_QK)
    FETCH(fetched.v, V_ITEMS, V_VECS, 0, row_start(v, v.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_V, WHOLE_V)
}
void fetch_whole_stage(Rows qk, Rows v, uint behind, uint stage, out Fetched fetched) {
    const uint from = behind + stage * STAGED_ROWS;
    FETCH_BEHIND(fetched.qk, qk, from, QK_ITEMS, QK_VECS, 0, HEAD_DIM_QK, WHOLE_QK)
    FETCH_BEHIND(fetched.v, v, from, V_ITEMS, V_VECS, 0, HEAD_DIM_V, WHOLE_V)
}
void store_stage(uint buf, uint stage, Fetched fetched) {
    const uint at_qk = QK_STORED(buf) + stage * STAGED_ROWS * QK_STRIDE;
    const uint at_v = buf + BUF_V + stage * STAGED_ROWS * V_STRIDE;
    STORE(at_qk, QK_STRIDE, QK_ITEMS, QK_VECS, operands_of(fetched.qk[t]))
    STORE(at_v, V_STRIDE, V_ITEMS, V_VECS, operands_of(fetched.v[t]))
}
void find_offsets(Rows qk, Rows v) {}

// Zeroes the head dims of both buffers that tiles have beyond those of the tensors.
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
            for (uint i = 0; i < QK_VECS; i++) pool[QK_OF(buf) + row * QK_STRIDE + i] = uvec4(0); \
            for (uint i = 0; i < V_VECS; i++) pool[(buf) + BUF_V + row * V_STRIDE + i] = uvec4(0); \
        }
#endif

// HOLD_ROWS loads the subgroup's blocks of rows into `left`, through its share of the pool, in pieces of as many steps
// as fit. FETCH_HELD and PUT_HELD do it in two halves: meanwhile a kernel that comes back for other rows has them under
// way in the registers `words`. All loops have constant counts: NVIDIA's compiler does not unroll a loop around one
// that has not, and then keeps the matrices in memory (H200, 580.159, D128, WALKED 16: 58 instead of 219 TFLOP/s).
const uint HELD_FIT = (SHARE / M - 1) / (K / 8);
#define HELD_PIECE(steps) (HELD_FIT < (steps) ? HELD_FIT : (steps))
#define HELD_PIECES(steps) MATRIX_STEPS(steps, HELD_PIECE(steps))
#define HELD_VECS(steps) (HELD_PIECE(steps) * K / 8)
#define HELD_ITEMS(steps) MATRIX_STEPS(M * HELD_VECS(steps), SUBGROUP_SIZE)
#define HELD_LOADS(steps) (ROW_BLOCKS * HELD_PIECES(steps) * HELD_ITEMS(steps))

// Fetches item `i`. There are HELD_ITEMS items for each piece of each block of rows.
#define FETCHED_HELD(i, steps, t, extent) \
    fetched_held(t, (i) / (HELD_ITEMS(steps) * HELD_PIECES(steps)), (i) / HELD_ITEMS(steps) % HELD_PIECES(steps), \
                 (i) % HELD_ITEMS(steps), HELD_PIECE(steps), extent)
uvec4 fetched_held(Rows t, uint r, uint piece, uint item, uint most, uint extent) {
    const uint vecs = most * K / 8, e = min(item * SUBGROUP_SIZE + lane, M * vecs - 1);
    const uint row = t.first + subgroup_row + r * M + e / vecs;
    return load_query8(row_start(t, row, QUERY_BYTES), piece * most * K + e % vecs * 8, extent);
}
// Moves the pieces into `left`. `word` is an expression of `i`.
#define PUT_PIECES(left, steps, word) \
    FOR_EACH(p, ROW_BLOCKS * HELD_PIECES(steps)) { \
        const uint r = p / HELD_PIECES(steps), first_step = p % HELD_PIECES(steps) * HELD_PIECE(steps); \
        const uint stride = IN_POOL(MATRIX_STRIDE(HELD_PIECE(steps) * K)); \
        FOR_EACH(item, HELD_ITEMS(steps)) { \
            const uint i = p * HELD_ITEMS(steps) + item, e = item * SUBGROUP_SIZE + lane; \
            if (e < M * HELD_VECS(steps)) \
                PUT8(share + e / HELD_VECS(steps) * stride + IN_POOL(e % HELD_VECS(steps)), word) \
        } \
        subgroupBarrier(); \
        FOR_EACH(d, HELD_PIECE(steps)) \
            if (first_step + d < (steps)) \
                coopMatLoad(left[r * (steps) + first_step + d], pool, share + IN_POOL(d * K / 8), stride, OWN_ORDER); \
        subgroupBarrier(); \
    }
#define HOLD_ROWS(left, steps, t, extent) PUT_PIECES(left, steps, FETCHED_HELD(i, steps, t, extent))
#define FETCH_HELD(words, steps, t, extent) \
    FOR_EACH(i, HELD_LOADS(steps)) words[i] = FETCHED_HELD(i, steps, t, extent);
#define PUT_HELD(left, words, steps) PUT_PIECES(left, steps, words[i])
