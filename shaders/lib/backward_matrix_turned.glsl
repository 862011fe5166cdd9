// The backward's products turned round (macro TURNED), and the staging that they want. lib/matrix_turned.glsl says what
// turned products are for, and what the planner demands of a matrix unit.
//
//   kernel                      scores                          sums
//   backward_matrix_query       S^T = K . Q^T, dP^T = V . dO^T    dQ^T += K^T . dS^T
//   backward_matrix_key_value   S = Q . K^T, dP = dO . V^T        dV^T += dO^T . P;  dK^T += Q^T . dS
//
// Walked rows are left operands of the scores as they are. For the sums they are wanted transposed: those of `qk`, and
// of `v` in backward_matrix_key_value, are stored a second time, by patches of TURNED_ROWS rows and eight head dims.
// Held rows, P and dS are right operands: columns of the accumulators.
#define PATCH_OF(t, first_thread) ((thread + (first_thread)) % THREADS + (t) / TURNED_ROWS * THREADS)
#define ROW_OF_PATCH(t, first_thread) (PATCH_OF(t, first_thread) % PATCH_ROWS * TURNED_ROWS + (t) % TURNED_ROWS)
#define HAS_PATCH(t, first_thread, vecs) \
    (PATCH_ROWS * (vecs) % THREADS == 0 || PATCH_OF(t, first_thread) < PATCH_ROWS * (vecs))
// If half of the invocations are enough for a tensor's patches, the other half takes the patches of `v`.
const bool HALF_IS_ENOUGH = PATCH_ROWS * LARGER(QK_VECS, V_VECS) <= THREADS / 2;
const uint V_FIRST = HALF_IS_ENOUGH ? THREADS / 2 : 0;

#define FETCH_PATCHES(fetched, items, first_thread, vecs, row_start_of, extent, whole) \
    FOR_EACH(t, items) { \
        const uint row = ROW_OF_PATCH(t, first_thread), d = PATCH_OF(t, first_thread) / PATCH_ROWS * 8; \
        if (HAS_PATCH(t, first_thread, vecs)) fetched[t] = fetch8(row_start_of, d, extent, whole); \
    }
void fetch_stage(Rows qk, Rows v, uint stage, out Fetched fetched) {
    const uint from = stage * STAGED_ROWS;
    FETCH_PATCHES(fetched.qk, QK_ITEMS, 0, QK_VECS, row_start(qk, qk.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_QK,
                  WHOLE_QK)
#ifdef KEY_VALUE
    FETCH_PATCHES(fetched.v, V_ITEMS, V_FIRST, V_VECS, row_start(v, v.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_V,
                  WHOLE_V)
#else
    FETCH(fetched.v, V_ITEMS, V_VECS, 0, row_start(v, v.first + from + row, KEY_VALUE_BYTES), HEAD_DIM_V, WHOLE_V)
#endif
}

// An invocation finds before the loop where its first patch lies: `offset` in the tile, in bytes; row_place among the
// rows in the pool and column_place among the transposed ones, in elements of the pool. Where patches have two rows,
// turned_half_* says which half of an element is theirs.
struct Patch {
    uint offset, row_place, column_place;
};
Patch patch_qk, patch_v;
uint turned_half_qk, turned_half_v;
#define FIRST_PATCH(patch, half_of, t, first_thread, stride_in_pool) { \
        const uint number = PATCH_OF(0, first_thread), group = number % PATCH_ROWS, vec = number / PATCH_ROWS; \
        patch.offset = group * TURNED_ROWS * t.stride.x + vec * 16; \
        patch.row_place = ROW_AT(group * TURNED_ROWS, 0, 1) * (stride_in_pool) + vec * UNIT; \
        patch.column_place = vec * 8 * COLUMNS_STRIDE + group * TURNED_ROWS / NUMBERS; \
        half_of = group % 2; \
    }
void find_offsets(Rows qk, Rows v) {
    FIRST_PATCH(patch_qk, turned_half_qk, qk, 0, QK_STRIDE)
#ifdef KEY_VALUE
    FIRST_PATCH(patch_v, turned_half_v, v, V_FIRST, V_STRIDE)
#else
    patch_v.offset = thread / V_VECS * v.stride.x + thread % V_VECS * 16;
#endif
}

// fetch_whole_stage does what fetch_stage does, for tiles whose rows all exist and of which none is far.
const bool EVEN_PATCHES = THREADS % PATCH_ROWS == 0, EVEN_V = THREADS % V_VECS == 0;
const bool ALL_V = STAGED_ROWS * V_VECS % THREADS == 0;
const bool WIDE_QK = LOAD_BYTES == 16 && WHOLE_QK && EVEN_PATCHES;
const bool WIDE_PATCHES_V = LOAD_BYTES == 16 && WHOLE_V && EVEN_PATCHES;
const bool WIDE_V = LOAD_BYTES == 16 && WHOLE_V && EVEN_V;
#define FETCH_WIDE_PATCHES(fetched, items, first_thread, vecs, tile, patch) \
    FOR_EACH(t, items) \
        if (HAS_PATCH(t, first_thread, vecs)) \
            fetched[t] = fetch_at(tile.base, t % TURNED_ROWS * tile.stride.x + \
                                                 t / TURNED_ROWS * (THREADS / PATCH_ROWS * 16), patch.offset);
void fetch_whole_stage(Rows qk, Rows v, uint behind, uint stage, out Fetched fetched) {
    const uint from = behind + stage * STAGED_ROWS;
    const Rows qk_stage = next_whole_tile(qk, from), v_stage = next_whole_tile(v, from);
    if (WIDE_QK) {
        FETCH_WIDE_PATCHES(fetched.qk, QK_ITEMS, 0, QK_VECS, qk_stage, patch_qk)
    } else {
        FETCH_PATCHES(fetched.qk, QK_ITEMS, 0, QK_VECS, row_of_whole_tile(qk_stage, row, KEY_VALUE_BYTES), HEAD_DIM_QK,
                      WHOLE_QK)
    }
#ifdef KEY_VALUE
    if (WIDE_PATCHES_V) {
        FETCH_WIDE_PATCHES(fetched.v, V_ITEMS, V_FIRST, V_VECS, v_stage, patch_v)
    } else {
        FETCH_PATCHES(fetched.v, V_ITEMS, V_FIRST, V_VECS, row_of_whole_tile(v_stage, row, KEY_VALUE_BYTES), HEAD_DIM_V,
                      WHOLE_V)
    }
#else
    if (WIDE_V) {
        FOR_EACH(t, V_ITEMS)
            if (ALL_V || thread / V_VECS + t * (THREADS / V_VECS) < STAGED_ROWS)
                fetched.v[t] = fetch_at(v_stage.base, t * (THREADS / V_VECS) * v_stage.stride.x, patch_v.offset);
    } else {
        FETCH(fetched.v, V_ITEMS, V_VECS, 0, row_of_whole_tile(v_stage, row, KEY_VALUE_BYTES), HEAD_DIM_V, WHOLE_V)
    }
#endif
}

// Neighbouring rows of a patch are ROW_STEP apart in the pool. ROW_AT has only this step within eight rows, and a patch
// never crosses a multiple of eight.
const uint ROW_STEP = P_EXCHANGED ? 2 : 1;
#define STORE_PATCHES(fetched, items, first_thread, vecs, patch, half_of, at, stride, at_columns) \
    FOR_EACH(p, (items) / TURNED_ROWS) \
        if (HAS_PATCH(p * TURNED_ROWS, first_thread, vecs)) { \
            uint row_place = patch.row_place + p * (THREADS / PATCH_ROWS * UNIT); \
            uint column = patch.column_place + p * (THREADS / PATCH_ROWS * 8 * COLUMNS_STRIDE), half_index = half_of; \
            if (!EVEN_PATCHES) { \
                const uint number = PATCH_OF(p * TURNED_ROWS, first_thread), group = number % PATCH_ROWS; \
                row_place = ROW_AT(group * TURNED_ROWS, 0, 1) * (stride) + number / PATCH_ROWS * UNIT; \
                column = number / PATCH_ROWS * 8 * COLUMNS_STRIDE + group * TURNED_ROWS / NUMBERS; \
                half_index = group % 2; \
            } \
            uvec4 rows[4]; \
            FOR_EACH(i, TURNED_ROWS) { \
                rows[i] = fetched[p * TURNED_ROWS + i]; \
                PUT8((at) + row_place + i * ROW_STEP * (stride), rows[i]) \
            } \
            put_patch((at_columns) + column, COLUMNS_STRIDE, TURNED_ROWS, half_index, rows); \
        }
void store_stage(uint buf, uint stage, Fetched fetched) {
    const uint from = stage * STAGED_ROWS, at_v = buf + BUF_V + from * V_STRIDE;
    STORE_PATCHES(fetched.qk, QK_ITEMS, 0, QK_VECS, patch_qk, turned_half_qk, buf + from * QK_STRIDE, QK_STRIDE,
                  buf + BUF_QK_COLUMNS + from / NUMBERS)
#ifdef KEY_VALUE
    STORE_PATCHES(fetched.v, V_ITEMS, V_FIRST, V_VECS, patch_v, turned_half_v, at_v, V_STRIDE,
                  buf + BUF_V_COLUMNS + from / NUMBERS)
#else
    STORE(at_v, V_STRIDE, V_ITEMS, V_VECS, fetched.v[t])
#endif
}

#ifndef KEY_VALUE
// Stores those head dims of dout to the pool that are not held in registers. Each subgroup stores its own rows.
void stage_own_v(Rows dout) {
    const uint vecs = V_STAGED_STEPS * K / 8;
    FOR_EACH(item, MATRIX_STEPS(ROW_BLOCKS * M * vecs, SUBGROUP_SIZE)) {
        const uint e = item * SUBGROUP_SIZE + lane, row = subgroup_row + e / vecs;
        if (e < ROW_BLOCKS * M * vecs)
            PUT8(POOL_STAGED_V + row * STAGED_V_STRIDE + IN_POOL(e % vecs),
                 load_query8(row_start(dout, dout.first + row, QUERY_BYTES), V_HELD_STEPS * K + e % vecs * 8,
                             HEAD_DIM_V))
    }
}
#endif

// clear_padding puts zeros into both buffers where tiles have more head dims than the tensors.
#define ZERO_BEHIND(at, elements, vecs, stride) { \
        const uint pad = MATRIX_STEPS(elements, 8) - (vecs); \
        for (uint e = thread; e < WALKED * pad; e += THREADS) \
            PUT8((at) + e / pad * (stride) + ((vecs) + e % pad) * UNIT, uvec4(0)) \
    }
#define ZERO_COLUMNS(at, columns, vecs) \
    for (uint e = (vecs) * 8 * COLUMNS_STRIDE + thread; e < (columns) * COLUMNS_STRIDE; e += THREADS) \
        pool[(at) + e] = uvec2(0);
void clear_padding() {
    FOR_EACH(s, 2) {
        const uint at = s * BUF_SIZE;
        ZERO_BEHIND(at, LARGER(QK_STEPS * K, QK_COLUMNS), QK_VECS, QK_STRIDE)
        ZERO_BEHIND(at + BUF_V, LARGER(V_STEPS * K, V_COLUMNS), V_VECS, V_STRIDE)
        ZERO_COLUMNS(at + BUF_QK_COLUMNS, QK_COLUMNS, QK_VECS)
#ifdef KEY_VALUE
        ZERO_COLUMNS(at + BUF_V_COLUMNS, V_COLUMNS, V_VECS)
#endif
    }
}

// Zeroes walked rows of a buffer; `is_dropped` is an expression of `row`. All invocations call it, between barriers. An
// invocation has NUMBERS rows, which share the elements of transposed rows.
#define ZERO_ROWS(buf, is_dropped) \
    for (uint first = thread * NUMBERS; first < WALKED; first += THREADS * NUMBERS) { \
        uvec2 kept = uvec2(0xffffffff); \
        for (uint i = 0; i < NUMBERS; i++) { \
            const uint row = first + i; \
            if (!(is_dropped)) continue; \
            kept[i / 2] &= i % 2 == 0 ? 0xffff0000 : 0xffff; \
            for (uint x = 0; x < QK_STRIDE; x++) pool[(buf) + ROW_AT(row, 0, 1) * QK_STRIDE + x] = uvec2(0); \
            for (uint x = 0; x < V_STRIDE; x++) pool[(buf) + BUF_V + ROW_AT(row, 0, 1) * V_STRIDE + x] = uvec2(0); \
        } \
        for (uint at = BUF_QK_COLUMNS + first / NUMBERS; at < BUF_NUMBERS; at += COLUMNS_STRIDE) \
            pool[(buf) + at] &= kept; \
    }
