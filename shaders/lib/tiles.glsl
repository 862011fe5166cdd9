// The tile machinery of the portable kernels: constants, staging into shared memory, the two small matrix products.
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
layout(local_size_x_id = SPEC_THREADS) in;
layout(constant_id = SPEC_THREADS) const uint THREADS = 64;
layout(constant_id = SPEC_LANES) const uint LANES = 8;
layout(constant_id = SPEC_ROWS) const uint ROWS = 4;
layout(constant_id = SPEC_COLS) const uint COLS = 4;
layout(constant_id = SPEC_CHUNK) const uint CHUNK = 16;
layout(constant_id = SPEC_P_BLOCKS) const uint P_BLOCKS = 1;
layout(constant_id = SPEC_V_KEYS) const uint V_KEYS = 16;
layout(constant_id = SPEC_PREFETCH) const uint PREFETCH = 1;
layout(constant_id = SPEC_HEAD_DIM_QK) const uint HEAD_DIM_QK = 64;
layout(constant_id = SPEC_HEAD_DIM_V) const uint HEAD_DIM_V = 64;
layout(constant_id = SPEC_WIDE_LOADS) const uint WIDE_LOADS = 1;
layout(constant_id = SPEC_WIDE_STRIDES) const uint WIDE_STRIDES = 0;
layout(constant_id = SPEC_POOL_VEC4) const uint POOL_VEC4 = 1024;

const uint GROUPS = THREADS / LANES;
const uint TILE_Q = ROWS * GROUPS;
const uint TILE_KV = COLS * LANES;
const uint CHUNK_VECS = CHUNK / 4;
const uint CHUNKS = (HEAD_DIM_QK + CHUNK - 1) / CHUNK;
const uint Q_STRIDE = POOL_STRIDE(TILE_Q);
const uint K_STRIDE = POOL_STRIDE(TILE_KV);
const uint P_KEYS = 4 * P_BLOCKS * LANES;
const uint V_STRIDE = POOL_V_STRIDE(HEAD_DIM_V, LANES);
const uint OUT_VECS = V_STRIDE / LANES;                                 // vec4 of an output row that a lane holds
const uint Q_BLOCKS = TILE_Q / 4 * CHUNK_VECS, K_BLOCKS = TILE_KV / 4 * CHUNK_VECS;  // 4 x 4 blocks of a chunk
const uint Q_ITEMS = (Q_BLOCKS + THREADS - 1) / THREADS;  // of which an invocation stages this many
const uint K_ITEMS = (K_BLOCKS + THREADS - 1) / THREADS;
const uint V_ITEMS = (V_KEYS * V_STRIDE + THREADS - 1) / THREADS;

shared vec4 pool[POOL_VEC4];
const uint POOL_Q = 0;                    // scores: Q chunk, CHUNK x Q_STRIDE
const uint POOL_K = CHUNK * Q_STRIDE;     //         K chunk, CHUNK x K_STRIDE
const uint POOL_P = 0;                    // output: P, P_KEYS x Q_STRIDE
const uint POOL_V = P_KEYS * Q_STRIDE;    //         V, V_KEYS x V_STRIDE

#include "lib/address.glsl"

uint thread = gl_LocalInvocationIndex;
uint lane = thread % LANES;
uint group = thread / LANES;

// Rows of one (batch, head) of a tensor; rows outside begin .. end-1 are never read and count as zero. Not empty
// wherever something is staged.
struct Rows {
    uvec2 base;
    uvec2 stride;
    uint begin, end;
};

uvec2 row_address(Rows t, uint row) {
    return address_add(t.base, WIDE_STRIDES != 0 ? mul_wide(row, t.stride) : mul_wide(row, t.stride.x));
}

vec4 load_row4(Rows t, uint row, uint d, uint extent) {
    const vec4 x = load4(row_address(t, clamp(row, t.begin, t.end - 1)), d, extent);
    return row >= t.begin && row < t.end ? x : vec4(0);
}

// A 4 x 4 block: elements d .. d+3 of rows row .. row+3.
mat4 load_block(Rows t, uint row, uint d, uint extent) {
    return mat4(load_row4(t, row, d, extent), load_row4(t, row + 1, d, extent), load_row4(t, row + 2, d, extent),
                load_row4(t, row + 3, d, extent));
}

mat4 load_chunk_block(Rows t, uint first_row, uint chunk, uint e) {
    return load_block(t, first_row + e / CHUNK_VECS * 4, chunk * CHUNK + e % CHUNK_VECS * 4, HEAD_DIM_QK);
}

void store_block(uint at, uint stride, mat4 rows) {
    const mat4 columns = transpose(rows);
    [[unroll]] for (uint i = 0; i < 4; i++) pool[at + i * stride] = columns[i];
}

void store_chunk_block(uint region, uint stride, uint e, mat4 rows) {
    store_block(region + e % CHUNK_VECS * 4 * stride + e / CHUNK_VECS, stride, rows);
}

// Keys of the staged P and V are in an order that suits the lanes which store P: key 4 * (b * LANES + lane) + i stands
// in slot (4 * b + i) * LANES + lane.
uint key_of_slot(uint slot) {
    return slot / (4 * LANES) * (4 * LANES) + slot % LANES * 4 + slot % (4 * LANES) / LANES;
}

// Item e of a V stage: 4 head dims of the key in slot first_slot + e / V_STRIDE of the P_KEYS keys from first_key on.
vec4 load_v_item(Rows t, uint first_key, uint first_slot, uint e) {
    return load_row4(t, first_key + key_of_slot(first_slot + e / V_STRIDE), e % V_STRIDE * 4, HEAD_DIM_V);
}

// Staging in two steps: fetch_* issue the loads into registers while a chunk is being computed, store_* put them down
// between barriers. Without PREFETCH (a CPU gains nothing by it) store_* do both.
mat4 fetched_q[PREFETCH != 0 ? Q_ITEMS : 1], fetched_k[PREFETCH != 0 ? K_ITEMS : 1];
vec4 fetched_v[PREFETCH != 0 ? V_ITEMS : 1];

void fetch_qk(Rows q, uint q_first, Rows k, uint k_first, uint chunk) {
    if (PREFETCH == 0) return;
    [[unroll]] for (uint t = 0; t < Q_ITEMS; t++)
        if (t * THREADS + thread < Q_BLOCKS) fetched_q[t] = load_chunk_block(q, q_first, chunk, t * THREADS + thread);
    [[unroll]] for (uint t = 0; t < K_ITEMS; t++)
        if (t * THREADS + thread < K_BLOCKS) fetched_k[t] = load_chunk_block(k, k_first, chunk, t * THREADS + thread);
}

void store_qk(Rows q, uint q_first, Rows k, uint k_first, uint chunk) {
    if (PREFETCH == 0) {
        for (uint e = thread; e < Q_BLOCKS; e += THREADS)
            store_chunk_block(POOL_Q, Q_STRIDE, e, load_chunk_block(q, q_first, chunk, e));
        for (uint e = thread; e < K_BLOCKS; e += THREADS)
            store_chunk_block(POOL_K, K_STRIDE, e, load_chunk_block(k, k_first, chunk, e));
        return;
    }
    [[unroll]] for (uint t = 0; t < Q_ITEMS; t++)
        if (t * THREADS + thread < Q_BLOCKS) store_chunk_block(POOL_Q, Q_STRIDE, t * THREADS + thread, fetched_q[t]);
    [[unroll]] for (uint t = 0; t < K_ITEMS; t++)
        if (t * THREADS + thread < K_BLOCKS) store_chunk_block(POOL_K, K_STRIDE, t * THREADS + thread, fetched_k[t]);
}

void fetch_v(Rows v, uint first_key, uint first_slot) {
    if (PREFETCH == 0) return;
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++)
        if (t * THREADS + thread < V_KEYS * V_STRIDE)
            fetched_v[t] = load_v_item(v, first_key, first_slot, t * THREADS + thread);
}

void store_v(Rows v, uint first_key, uint first_slot) {
    if (PREFETCH == 0) {
        for (uint e = thread; e < V_KEYS * V_STRIDE; e += THREADS)
            pool[POOL_V + e] = load_v_item(v, first_key, first_slot, e);
        return;
    }
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++)
        if (t * THREADS + thread < V_KEYS * V_STRIDE) pool[POOL_V + t * THREADS + thread] = fetched_v[t];
}

// Private to an invocation: its part of the scores (then of P), four keys to a vec4, and of the output tile.
vec4 scores[ROWS * COLS / 4];
vec4 acc[ROWS * OUT_VECS];

// scores += Q chunk . K chunk^T
void multiply_qk() {
    [[unroll]] for (uint d = 0; d < CHUNK; d++) {
        vec4 q[ROWS / 4], k[COLS / 4];
        [[unroll]] for (uint x = 0; x < ROWS / 4; x++) q[x] = pool[POOL_Q + d * Q_STRIDE + group * (ROWS / 4) + x];
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) k[b] = pool[POOL_K + d * K_STRIDE + b * LANES + lane];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            [[unroll]] for (uint b = 0; b < COLS / 4; b++)
                scores[r * (COLS / 4) + b] = fma(vec4(q[r / 4][r % 4]), k[b], scores[r * (COLS / 4) + b]);
    }
}

// Puts columns 4*b .. of this lane's P where multiply_pv reads them: keys as they come from scores, rows as vec4.
void store_p(uint b) {
    [[unroll]] for (uint n = 0; n < P_BLOCKS; n++)
        [[unroll]] for (uint i = 0; i < 4; i++)
            [[unroll]] for (uint x = 0; x < ROWS / 4; x++) {
                vec4 rows;
                [[unroll]] for (uint r = 0; r < 4; r++) rows[r] = scores[(4 * x + r) * (COLS / 4) + b + n][i];
                pool[POOL_P + ((4 * n + i) * LANES + lane) * Q_STRIDE + group * (ROWS / 4) + x] = rows;
            }
}

// acc += P . V over the V_KEYS staged keys, which stand from `first_slot` on in the staged P
void multiply_pv(uint first_slot) {
    for (uint four = 0; four < V_KEYS; four += 4)
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const uint k = four + i;
            vec4 p[ROWS / 4];
            [[unroll]] for (uint x = 0; x < ROWS / 4; x++)
                p[x] = pool[POOL_P + (first_slot + k) * Q_STRIDE + group * (ROWS / 4) + x];
            [[unroll]] for (uint o = 0; o < OUT_VECS; o++) {
                const vec4 v = pool[POOL_V + k * V_STRIDE + o * LANES + lane];
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    acc[r * OUT_VECS + o] = fma(vec4(p[r / 4][r % 4]), v, acc[r * OUT_VECS + o]);
            }
        }
}
