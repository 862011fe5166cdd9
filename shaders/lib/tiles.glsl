// The tile machinery of the portable kernels: constants, staging into shared memory, the two small matrix products.
//
// Ownership. LANES neighbouring invocations form a group; a group owns ROWS query rows, complete in keys and head
// dims, so row statistics never leave the group. Of a tile of scores, a lane holds COLS columns in blocks of four
// neighbours; of the output, every LANES-th vec4 of a row:
//     row r of a group         tile row    r * GROUPS + group
//     column 4*b+i of a lane   tile key    4 * (b * LANES + lane) + i
//     output vec4 o of a lane  head dims   4 * (o * LANES + lane) ..
//
// Keys lie permuted in the staged tile, so that lanes which read "their" key read neighbouring slots.
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
const uint ROW_STRIDE = POOL_ROW_STRIDE(CHUNK);
const uint P_STRIDE = POOL_P_STRIDE(P_BLOCKS, LANES);
const uint P_KEYS = 4 * P_BLOCKS * LANES;
const uint V_STRIDE = POOL_V_STRIDE(HEAD_DIM_V, LANES);
const uint OUT_VECS = V_STRIDE / LANES;                                 // vec4 of an output row that a lane holds
const uint Q_ITEMS = (TILE_Q * CHUNK_VECS + THREADS - 1) / THREADS;     // vec4 an invocation stages at a time
const uint K_ITEMS = (TILE_KV * CHUNK_VECS + THREADS - 1) / THREADS;
const uint V_ITEMS = (V_KEYS * V_STRIDE + THREADS - 1) / THREADS;

shared vec4 pool[POOL_VEC4];
const uint POOL_Q = 0;                      // scores: Q chunk, TILE_Q x ROW_STRIDE
const uint POOL_K = TILE_Q * ROW_STRIDE;    //         K chunk, TILE_KV x ROW_STRIDE
const uint POOL_P = 0;                      // output: P, TILE_Q x P_STRIDE
const uint POOL_V = TILE_Q * P_STRIDE;      //         V, V_KEYS x V_STRIDE

#include "lib/address.glsl"

uint thread = gl_LocalInvocationIndex;
uint lane = thread % LANES;
uint group = thread / LANES;

// Rows of one (batch, head) of a tensor; rows outside begin .. end-1 are never read and count as zero.
struct Rows {
    uvec2 base;
    uvec2 stride;
    uint begin, end;
};

uvec2 row_address(Rows t, uint row) {
    return address_add(t.base, WIDE_STRIDES != 0 ? mul_wide(row, t.stride) : mul_wide(row, t.stride.x));
}

vec4 load_row4(Rows t, uint row, uint d, uint extent) {
    return row >= t.begin && row < t.end ? load4(row_address(t, row), d, extent) : vec4(0);
}

// Item e of a staged chunk of Q or K: 4 elements of one row.
vec4 chunk_item(Rows t, uint first_row, uint chunk, uint e) {
    return load_row4(t, first_row + e / CHUNK_VECS, chunk * CHUNK + e % CHUNK_VECS * 4, HEAD_DIM_QK);
}

uint q_slot(uint e) { return POOL_Q + e / CHUNK_VECS * ROW_STRIDE + e % CHUNK_VECS; }

uint k_slot(uint e) {
    const uint key = e / CHUNK_VECS;
    const uint slot = key / (4 * LANES) * (4 * LANES) + key % 4 * LANES + key % (4 * LANES) / 4;
    return POOL_K + slot * ROW_STRIDE + e % CHUNK_VECS;
}

vec4 v_item(Rows t, uint first_row, uint e) {
    return load_row4(t, first_row + e / V_STRIDE, e % V_STRIDE * 4, HEAD_DIM_V);
}

// Staging in two steps: fetch_* issue the loads into registers while a chunk is being computed, store_* put them down
// between barriers. Without PREFETCH (a CPU gains nothing by it) store_* do both.
vec4 fetched_q[PREFETCH != 0 ? Q_ITEMS : 1], fetched_k[PREFETCH != 0 ? K_ITEMS : 1], fetched_v[PREFETCH != 0 ? V_ITEMS : 1];

void fetch_qk(Rows q, uint q_first, Rows k, uint k_first, uint chunk) {
    if (PREFETCH == 0) return;
    [[unroll]] for (uint t = 0; t < Q_ITEMS; t++) fetched_q[t] = chunk_item(q, q_first, chunk, t * THREADS + thread);
    [[unroll]] for (uint t = 0; t < K_ITEMS; t++) fetched_k[t] = chunk_item(k, k_first, chunk, t * THREADS + thread);
}

void store_qk(Rows q, uint q_first, Rows k, uint k_first, uint chunk) {
    if (PREFETCH == 0) {
        for (uint e = thread; e < TILE_Q * CHUNK_VECS; e += THREADS) pool[q_slot(e)] = chunk_item(q, q_first, chunk, e);
        for (uint e = thread; e < TILE_KV * CHUNK_VECS; e += THREADS) pool[k_slot(e)] = chunk_item(k, k_first, chunk, e);
        return;
    }
    [[unroll]] for (uint t = 0; t < Q_ITEMS; t++)
        if (t * THREADS + thread < TILE_Q * CHUNK_VECS) pool[q_slot(t * THREADS + thread)] = fetched_q[t];
    [[unroll]] for (uint t = 0; t < K_ITEMS; t++)
        if (t * THREADS + thread < TILE_KV * CHUNK_VECS) pool[k_slot(t * THREADS + thread)] = fetched_k[t];
}

void fetch_v(Rows v, uint first_row) {
    if (PREFETCH == 0) return;
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++) fetched_v[t] = v_item(v, first_row, t * THREADS + thread);
}

void store_v(Rows v, uint first_row) {
    if (PREFETCH == 0) {
        for (uint e = thread; e < V_KEYS * V_STRIDE; e += THREADS) pool[POOL_V + e] = v_item(v, first_row, e);
        return;
    }
    [[unroll]] for (uint t = 0; t < V_ITEMS; t++)
        if (t * THREADS + thread < V_KEYS * V_STRIDE) pool[POOL_V + t * THREADS + thread] = fetched_v[t];
}

// Private to an invocation: its part of the scores (then of P) and of the output tile.
vec4 scores[ROWS * COLS / 4];
vec4 acc[ROWS * OUT_VECS];

// scores += Q chunk . K chunk^T
void multiply_qk() {
    [[unroll]] for (uint d = 0; d < CHUNK_VECS; d++) {
        vec4 q[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) q[r] = pool[POOL_Q + (r * GROUPS + group) * ROW_STRIDE + d];
        [[unroll]] for (uint c = 0; c < COLS; c++) {
            const vec4 k = pool[POOL_K + (c * LANES + lane) * ROW_STRIDE + d];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float s = scores[r * (COLS / 4) + c / 4][c % 4];
                s = fma(q[r].x, k.x, s);
                s = fma(q[r].y, k.y, s);
                s = fma(q[r].z, k.z, s);
                s = fma(q[r].w, k.w, s);
                scores[r * (COLS / 4) + c / 4][c % 4] = s;
            }
        }
    }
}

// acc += P . V over the V_KEYS staged keys, which stand at vec4 `first` of the staged P
void multiply_pv(uint first) {
    for (uint k = 0; k < V_KEYS / 4; k++) {
        vec4 p[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) p[r] = pool[POOL_P + (r * GROUPS + group) * P_STRIDE + first + k];
        [[unroll]] for (uint o = 0; o < OUT_VECS; o++)
            [[unroll]] for (uint i = 0; i < 4; i++) {
                const vec4 v = pool[POOL_V + (4 * k + i) * V_STRIDE + o * LANES + lane];
                [[unroll]] for (uint r = 0; r < ROWS; r++) acc[r * OUT_VECS + o] = fma(vec4(p[r][i]), v, acc[r * OUT_VECS + o]);
            }
    }
}
