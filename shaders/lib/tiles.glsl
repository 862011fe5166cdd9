// The tile machinery of the portable kernels: staging into shared memory, the two small matrix products.
// forward_tiles.comp, the backward's passes and the baseline include it. It assumes that the pool has the sizes which
// src/plan/tuning.cpp computes, and that all invocations of a workgroup call what has a barrier.
//
// Ownership. LANES neighbouring invocations form a group; a group owns ROWS query rows, complete in keys and head
// dims, so row statistics never leave the group. Of a tile of scores, a lane holds COLS columns in blocks of four
// neighbours; of the output, every LANES-th vec4 of a row:
//     row r of a group         tile row    group * ROWS + r
//     column 4*b+i of a lane   tile key    4 * (b * LANES + lane) + i
//     output vec4 o of a lane  head dims   4 * (o * LANES + lane) ..
//
// Both products are sums of outer products over registers: a step reads ROWS/4 vec4 of one operand, which the lanes of
// a group share, and COLS/4 (OUT_VECS) vec4 of the other, in which neighbouring lanes read neighbouring vec4. So Q, K
// and P lie transposed in shared memory, four rows to a vec4; the transposition happens in registers, 4 x 4 at a time.
#include "lib/constants.glsl"

#ifdef DOT
#define LINES_OF(elements) ((elements) / 2)  // lib/lines.glsl
#define ELEMENTS_OF(lines) ((lines) * 2)
#else
#define LINES_OF(elements) (elements)
#define ELEMENTS_OF(lines) (lines)
#endif

const uint TILE_Q = ROWS * GROUPS;
const uint TILE_KV = COLS * LANES;
const uint CHUNK_VECS = CHUNK / 4;
#define CHUNKS_OF(head_dim) (((head_dim) + CHUNK - 1) / CHUNK)
const uint Q_STRIDE = POOL_STRIDE(TILE_Q);
const uint K_STRIDE = POOL_STRIDE(TILE_KV);
const uint P_KEYS = 4 * P_BLOCKS * LANES;
const uint QK_UNROLL = UNROLL < LINES_OF(CHUNK) ? UNROLL : LINES_OF(CHUNK);
const uint PV_UNROLL = UNROLL < LINES_OF(V_KEYS) ? UNROLL : LINES_OF(V_KEYS);
const uint Q_BLOCKS = TILE_Q / 4 * CHUNK_VECS, K_BLOCKS = TILE_KV / 4 * CHUNK_VECS;  // 4 x 4 blocks of a chunk
const uint K_FIRST = PLACE_BEHIND(Q_BLOCKS), QK_BLOCKS = K_FIRST + K_BLOCKS;          // their list
const uint QK_ITEMS = (QK_BLOCKS + THREADS - 1) / THREADS;  // of which an invocation stages this many
const uint V_ITEMS = (LINES_OF(V_KEYS) * V_STRIDE + THREADS - 1) / THREADS;

const uint POOL_Q = 0;                                // scores: Q chunk, lines of CHUNK x Q_STRIDE
const uint POOL_K = LINES_OF(CHUNK) * Q_STRIDE;       //         K chunk, lines of CHUNK x K_STRIDE
const uint POOL_P = 0;                                // output: P, lines of P_KEYS x Q_STRIDE
const uint POOL_V = LINES_OF(P_KEYS) * Q_STRIDE;      //         V, lines of V_KEYS x V_STRIDE


#include "lib/operands.glsl"
#include "lib/rows.glsl"
#include "lib/key_source.glsl"
#include "lib/lines.glsl"

// A 4 x 4 block, as stored: elements d .. d+3 of rows row .. row+3 of key, or of query.
struct Block {
    STAGED4 row[4];
};

Block load_block(bool of_key, Rows t, uint row, uint d, uint extent, bool inside) {
    Block block;
    FOR_EACH(i, 4) block.row[i] = load_staged4(of_key, t, row + i, d, extent, inside);
    return block;
}

#ifdef DOT
void store_block(bool of_key, uint at, uint stride, Block block) {
    [[unroll]] for (uint i = 0; i < 2; i++)
        pool[at + i * stride] =
            stored_line4(uvec4(block.row[0][i], block.row[1][i], block.row[2][i], block.row[3][i]));
}
#else
void store_block(bool of_key, uint at, uint stride, Block block) {
    mat4 rows;
    [[unroll]] for (uint i = 0; i < 4; i++) rows[i] = staged_floats(of_key, block.row[i]);
    const mat4 columns = transpose(rows);
    [[unroll]] for (uint i = 0; i < 4; i++) pool[at + i * stride] = columns[i];
}
#endif

// The blocks of a chunk in one list, Q's first: see PLACE_BEHIND. `extent`: head dims of both.
Block load_chunk_block(Rows q, Rows k, uint chunk, uint extent, uint first) {
    const uint e = first + thread;
    const bool of_k = is_behind(K_FIRST, first);
    Rows t = q;
    if (of_k) t = k;
    const uint row = (of_k ? e - K_FIRST : e) / CHUNK_VECS * 4;
    return load_block(of_k, t, t.first + row, chunk * CHUNK + e % CHUNK_VECS * 4, extent, extent % CHUNK == 0);
}

// place_of_block says where the block `index` of K or Q is put, and stride_of_block how far apart its lines are.
#define stride_of_block(of_k) ((of_k) ? K_STRIDE : Q_STRIDE)
uint place_of_block(bool of_k, uint index) {
    return (of_k ? POOL_K : POOL_Q) + index % CHUNK_VECS * LINES_OF(4) * stride_of_block(of_k) + index / CHUNK_VECS;
}

void store_chunk_block(uint first, Block block) {
    const uint e = first + thread;
    const bool of_k = is_behind(K_FIRST, first);
    store_block(of_k, place_of_block(of_k, of_k ? e - K_FIRST : e), stride_of_block(of_k), block);
}

// With HOLDS_BLOCKS an invocation finds once a tile what is the same in all its chunks: where the rows of its blocks
// begin, and where its blocks are put. That takes registers for instructions.
#ifndef ROLLED
const bool FINDS_BLOCKS = HOLDS_BLOCKS && !FETCHES_AHEAD;
const uint FOUND_ITEMS = FINDS_BLOCKS ? QK_ITEMS : 1;
StoredRow found_rows[4 * FOUND_ITEMS];
uint found_dims[FOUND_ITEMS], found_places[FOUND_ITEMS];

void find_blocks(Rows q, Rows k) {
    if (!FINDS_BLOCKS) return;
    [[unroll]] for (uint t = 0; t < FOUND_ITEMS; t++) {
        const uint e = t * THREADS + thread;
        const bool of_k = is_behind(K_FIRST, t * THREADS);
        Rows rows = q;
        if (of_k) rows = k;
        const uint index = of_k ? e - K_FIRST : e, row = rows.first + index / CHUNK_VECS * 4;
        [[unroll]] for (uint i = 0; i < 4; i++) found_rows[4 * t + i] = staged_row(of_k, rows, row + i);
        found_dims[t] = index % CHUNK_VECS * 4;
        found_places[t] = place_of_block(of_k, index);
    }
}

void store_found_block(uint t, uint chunk, uint extent) {
    const bool of_k = is_behind(K_FIRST, t * THREADS);
    const uint d = chunk * CHUNK + found_dims[t];
    Block block;
    [[unroll]] for (uint i = 0; i < 4; i++)
        block.row[i] = load_found4(of_k, found_rows[4 * t + i], d, extent, extent % CHUNK == 0);
    store_block(of_k, found_places[t], stride_of_block(of_k), block);
}
#else
#define find_blocks(q, k)
#endif

// Lines of the staged P and V are in an order that suits the lanes which store P: key 4 * (b * LANES + lane) + i stands
// in slot (4 * b + i) * LANES + lane or, of lines that are pairs of keys, pair 2 * (b * LANES + lane) + i in slot
// (2 * b + i) * LANES + lane. Returns the line's first key.
uint key_of_slot(uint slot) {
#ifdef DOT
    return slot / (2 * LANES) * (4 * LANES) + slot % LANES * 4 + slot % (2 * LANES) / LANES * 2;
#else
    return slot / (4 * LANES) * (4 * LANES) + slot % LANES * 4 + slot % (4 * LANES) / LANES;
#endif
}

#ifndef OUT_FIRST
#define OUT_FIRST 0  // vec4 of a row before the workgroup's own
#endif

// Item e of a V stage: 4 head dims of the line in slot first_slot + e / V_STRIDE of the P_KEYS keys from v.first on.
V_ITEM load_v_item(Rows v, uint first_slot, uint e) {
    const uint row = v.first + key_of_slot(first_slot + e / V_STRIDE);
    const bool inside = OUT_DIM % (4 * LANES * SLICES) == 0;
#define LOAD_V(row) \
    load_value4(value_row(v, row), (OUT_FIRST + e % V_STRIDE) * 4, OUT_DIM, inside)
    return V_ITEM_OF(row, LOAD_V);
}

// Staging in two steps: fetch_* issue the loads into registers while a chunk is being computed, store_* put them down
// between barriers. Without FETCHES_AHEAD (a CPU gains nothing by it) store_* do both.
Block fetched_qk[FETCHES_AHEAD ? QK_ITEMS : 1];
V_ITEM fetched_v[FETCHES_AHEAD ? V_ITEMS : 1];

void fetch_qk(Rows q, Rows k, uint chunk, uint extent) {
    if (!FETCHES_AHEAD) return;
    [[unroll]] for (uint t = 0; t < QK_ITEMS; t++)
        if (is_listed(Q_BLOCKS, K_FIRST, QK_BLOCKS, t * THREADS))
            fetched_qk[t] = load_chunk_block(q, k, chunk, extent, t * THREADS);
}

void store_qk(Rows q, Rows k, uint chunk, uint extent) {
#ifndef ROLLED
    if (FINDS_BLOCKS) {
        [[unroll]] for (uint t = 0; t < FOUND_ITEMS; t++)
            if (is_listed(Q_BLOCKS, K_FIRST, QK_BLOCKS, t * THREADS)) store_found_block(t, chunk, extent);
        return;
    }
#endif
    if (!FETCHES_AHEAD) {
        STAYS_LOOP for (uint first = 0; first < QK_BLOCKS; first += THREADS)
            if (is_listed(Q_BLOCKS, K_FIRST, QK_BLOCKS, first))
                store_chunk_block(first, load_chunk_block(q, k, chunk, extent, first));
        return;
    }
    [[unroll]] for (uint t = 0; t < QK_ITEMS; t++)
        if (is_listed(Q_BLOCKS, K_FIRST, QK_BLOCKS, t * THREADS)) store_chunk_block(t * THREADS, fetched_qk[t]);
}

void fetch_v(Rows v, uint first_slot) {
    if (!FETCHES_AHEAD) return;
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++)
        if (t * THREADS + thread < LINES_OF(V_KEYS) * V_STRIDE)
            fetched_v[t] = load_v_item(v, first_slot, t * THREADS + thread);
}

void store_v(Rows v, uint first_slot) {
    if (!FETCHES_AHEAD) {
        STAYS_LOOP for (uint e = thread; e < LINES_OF(V_KEYS) * V_STRIDE; e += THREADS)
            pool[POOL_V + e] = v_line4(load_v_item(v, first_slot, e));
        return;
    }
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++)
        if (t * THREADS + thread < LINES_OF(V_KEYS) * V_STRIDE)
            pool[POOL_V + t * THREADS + thread] = v_line4(fetched_v[t]);
}

// Private to an invocation: its part of the scores (then of P), four keys to a vec4, and of the output tile.
vec4 scores[ROWS * COLS / 4];
vec4 acc[ROWS * OUT_VECS];

// Products of two matrices in shared memory as sums of outer products over `steps` lines, `unrolled` of them at a time:
//   acc[r * right_vecs + c] += left[r] * right[c]
// left_at(line) is the place of the first of a line's left_vecs vec4, whose components are the rows r; right_at(line,
// c) is the place of its vec4 number c of right_vecs.
//
// ADD_PRODUCT loads a line of both before it multiplies. ADD_LONG_PRODUCT loads the right one vec4 by vec4, because it
// may not fit the registers: each(c, count) is the loop over them. Its statement `find_dropped` is {} or DROP_UNSEEN,
// after which a key counts as 0, whatever `right` is, where `left` is 0 in all rows. ADD_ISOLATED_PRODUCT is the same
// for a tile in which a left element of 0 means hidden: it counts as 0 in its row alone.
#define FOR_LINES(steps, unrolled) \
    for (uint first_line = 0; first_line < (steps); first_line += (unrolled)) \
        [[unroll]] for (uint i = 0; i < (unrolled); i++)
#define ADD_PRODUCT(acc, left_vecs, left_at, right_vecs, right_at, steps, unrolled) \
    FOR_LINES(steps, unrolled) { \
        const uint line = first_line + i; \
        LINE4 left[left_vecs], right[right_vecs]; \
        [[unroll]] for (uint x = 0; x < (left_vecs); x++) left[x] = line4_at(left_at(line) + x); \
        [[unroll]] for (uint c = 0; c < (right_vecs); c++) right[c] = line4_at(right_at(line, c)); \
        [[unroll]] for (uint r = 0; r < 4 * (left_vecs); r++) \
            [[unroll]] for (uint c = 0; c < (right_vecs); c++) \
                ADD_LINE(left[r / 4][r % 4], right[c], acc[r * (right_vecs) + c]); \
    }
#define ADD_LONG_PRODUCT(acc, left_vecs, left_at, right_vecs, right_at, each, steps, unrolled, find_dropped) \
    FOR_LINES(steps, unrolled) { \
        const uint line = first_line + i; \
        LINE4 left[left_vecs]; \
        [[unroll]] for (uint x = 0; x < (left_vecs); x++) left[x] = line4_at(left_at(line) + x); \
        NOTHING_DROPPED \
        find_dropped \
        each(c, right_vecs) { \
            LINE4 right = line4_at(right_at(line, c)); \
            DROP_FROM(right) \
            [[unroll]] for (uint r = 0; r < 4 * (left_vecs); r++) \
                ADD_LINE(left[r / 4][r % 4], right, acc[r * (right_vecs) + c]); \
        } \
    }
#define ADD_ISOLATED_PRODUCT(acc, left_vecs, left_at, right_vecs, right_at, each, steps) \
    for (uint line = 0; line < (steps); line++) { \
        LINE4 left[left_vecs]; \
        [[unroll]] for (uint x = 0; x < (left_vecs); x++) left[x] = line4_at(left_at(line) + x); \
        each(c, right_vecs) { \
            const LINE4 right = line4_at(right_at(line, c)); \
            [[unroll]] for (uint r = 0; r < 4 * (left_vecs); r++) { \
                const uint at = r * (right_vecs) + c; \
                const LINE1 x = left[r / 4][r % 4]; \
                ADD_SEEN_LINE(x, right, acc[at]); \
            } \
        } \
    }
#define UNROLL_EACH(i, count) [[unroll]] for (uint i = 0; i < (count); i++)

// A mask may hide a key that others around it see, and hidden content may be NaN: 0 * NaN is not 0.
#define DROP_UNSEEN \
    if (HIDES_KEYS) { DROP_WHERE_ALL_ARE_HIDDEN }

// UNKNOWN_ZERO is 0, because no dimension of a grid exceeds 2^31 - 1 (src/problem.cpp), but compilers cannot know that.
// Turnip's (Mesa 26.1) loads from shared memory with constant offsets of up to 4095 bytes, and spends an addition on
// each load with a larger one. An offset that it does not know is added once.
#ifdef ROLLED
#define UNKNOWN_ZERO 0
#else
#define UNKNOWN_ZERO (HOLDS_BLOCKS ? push.first_x >> 31 : 0)
#endif

// scores += Q chunk . K chunk^T
#define Q_AT(line) (POOL_Q + (line) * Q_STRIDE + group * (ROWS / 4))
#define K_AT(line, b) (k_place + (line) * K_STRIDE + (b) * LANES)
void multiply_qk() {
    const uint k_place = POOL_K + lane + UNKNOWN_ZERO;
    ADD_PRODUCT(scores, ROWS / 4, Q_AT, COLS / 4, K_AT, LINES_OF(CHUNK), QK_UNROLL)
}

// scores = A . B^T over the `extent` head dims of both tiles, of which the first chunk is fetched already. `after` is
// done while the last chunk is multiplied.
#define MULTIPLY_CHUNKS(a, b, extent, after) \
    [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) scores[x] = vec4(0); \
    find_blocks(a, b); \
    for (uint chunk = 0; chunk < CHUNKS_OF(extent); chunk++) { \
        barrier(); \
        store_qk(a, b, chunk, extent); \
        barrier(); \
        if (chunk + 1 < CHUNKS_OF(extent)) fetch_qk(a, b, chunk + 1, extent); \
        else after; \
        multiply_qk(); \
    }

void store_p_blocks(uint b) {
    [[unroll]] for (uint n = 0; n < P_BLOCKS; n++)
        [[unroll]] for (uint i = 0; i < LINES_OF(4); i++)
            [[unroll]] for (uint x = 0; x < ROWS / 4; x++) {
                LINE4 rows;
                [[unroll]] for (uint r = 0; r < 4; r++)
                    rows[r] = weights_of_line(scores[(4 * x + r) * (COLS / 4) + b + n], i);
                pool[POOL_P + ((LINES_OF(4) * n + i) * LANES + lane) * Q_STRIDE + group * (ROWS / 4) + x] =
                    stored_line4(rows);
            }
}

// Puts columns 4*first .. of this lane's P where multiply_pv reads them: keys as they come from scores, rows as vec4.
// Registers need constant indices, but `first` comes from a loop that some drivers do not unroll in spite of the hint
// (NVIDIA's, in the backward), so a comparison finds the block: the backward runs at 37 % of the FMA rate, and at 4 %
// without the comparison.
void store_p(uint first) {
    [[unroll]] for (uint b = 0; b < COLS / 4; b += P_BLOCKS)
        if (b == first) store_p_blocks(b);
}

// True if the tile of keys at hand has to be multiplied row by row, because some of its keys are hidden from some rows:
// what is not finite in them must not reach these rows.
bool tile_is_isolated = false;

// acc += P . V over the V_KEYS staged keys, whose lines stand from `first_slot` on in the staged P
#define P_AT(line) (POOL_P + (first_slot + (line)) * Q_STRIDE + group * (ROWS / 4))
#define V_AT(line, o) (v_place + (line) * V_STRIDE + (o) * LANES)
void multiply_pv(uint first_slot) {
    const uint v_place = POOL_V + lane + UNKNOWN_ZERO;
    if (ISOLATES_ROWS && tile_is_isolated) {
        ADD_ISOLATED_PRODUCT(acc, ROWS / 4, P_AT, OUT_VECS, V_AT, UNROLL_EACH, LINES_OF(V_KEYS))
        return;
    }
    ADD_LONG_PRODUCT(acc, ROWS / 4, P_AT, OUT_VECS, V_AT, UNROLL_EACH, LINES_OF(V_KEYS), PV_UNROLL, DROP_UNSEEN)
}

// acc += P . V, with P in scores. Meanwhile fetches the first chunk of the next tile of keys, if there is `more`.
void multiply_tile(Rows q, Rows next, bool more, Rows v) {
    [[unroll]] for (uint b = 0; b < COLS / 4; b += P_BLOCKS) {
        for (uint slot = 0; slot < LINES_OF(P_KEYS); slot += LINES_OF(V_KEYS)) {
            barrier();
            if (slot == 0) store_p(b);
            store_v(v, slot);
            barrier();
            if (slot + LINES_OF(V_KEYS) < LINES_OF(P_KEYS)) {
                fetch_v(v, slot + LINES_OF(V_KEYS));
            } else {
                v = tile_at(v, v.first + P_KEYS);
                if (b + P_BLOCKS < COLS / 4) fetch_v(v, 0);
                else if (more) fetch_qk(q, next, 0, HEAD_DIM_QK);
            }
            multiply_pv(slot);
        }
    }
}
