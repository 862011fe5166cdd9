#version 460
// dquery on matrix units from the dS^T that backward_matrix_key_value.comp has spilled (lib/spill.glsl): a plain
// product of two matrices. With it the backward has five products a tile instead of seven.
//
//   for each tile of WALKED keys that some row of the query tile sees:
//     K, dS^T -> shared, from registers that were loaded AHEAD tiles before
//     dQ += dS . K
//   dquery = softmax_scale * dQ
//
// Query tiles that backward_matrix_query.comp has found before are left out: those with a row whose lse is large or
// that is empty, and those where rounding loses much (lib/rounding_loss.glsl). If a sum is not finite and a mask hides
// keys, a hidden key may be the reason: the tile is left to that kernel, which comes again.
//
// Tile ownership: a workgroup has HELD_ROWS query rows of one head. Its SLICES groups of OWNERS subgroups share them,
// and each group has its own head dims. Grid: kv heads of all batches, query tiles of all heads of the group.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   two buffers, each  WALKED x head dims of K    WALKED x HELD_ROWS of dS^T
//   after the loop, over all of it, an equal share for each subgroup: dQ
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_matrix_spilled.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_matrix_spilled.def"
} push;
#define SPILLED
#include "lib/backward_matrix.glsl"
#include "lib/backward_problem.glsl"
uint slice() { return subgroup / OWNERS; }
#include "lib/backward_matrix_staging.glsl"
#include "lib/mask.glsl"
#include "lib/matrix_layout.glsl"
#include "lib/matrix_grid.glsl"
#include "lib/spill.glsl"
#include "lib/backward_matrix_results.glsl"

Work work;
uvec2 keys;     // begin .. end-1: those that some row of the tile sees
uint last_key;  // of these; 0 if there is none
Rows key_rows_of_work;
shared uint saw_nonfinite;  // 1: a sum is not finite

// Who finds dquery of a row.
uint state_at(uint row) {
    const uint head = work.batch * num_heads_q() + work.head;
    return head * MATRIX_STEPS(query_extent(), STATE_ROWS) + row / STATE_ROWS;
}
bool is_left_to_us(uint row) { return UintsIn(backward().x.tile_states).x[state_at(row)] == TILE_SPILLED; }
bool some_row_is_left_to_us() {
    bool some = false;
    for (uint row = work.first_row; row <= work.last_row; row += STATE_ROWS) some = some || is_left_to_us(row);
    return some;
}

// With a block map, steps whose tile is hidden are not spilled. Key tiles that are hidden from all steps of the query
// tile are passed over: a window has the others, a bit each.
uint step_tiles() { return MATRIX_STEPS(query_extent(), STEP_ROWS); }
uint link_row;  // of key tile 0
void find_link_row() {
    if (!HAS_BLOCK_MAP) return;
    ArgumentsIn a = arguments();
    const uint head = work.head * a.x.class_heads / num_heads_q(), batch = a.x.class_batches == 1 ? 0 : work.batch;
    link_row = (batch * a.x.class_heads + head) * MATRIX_STEPS(key_extent(), STEP_KEYS) * step_tiles();
}
bool is_spilled(uint key_tile, uint row) {
    const uint tile = min(key_tile, MATRIX_STEPS(key_extent(), STEP_KEYS) - 1);
    const uint step = min(row / STEP_ROWS, step_tiles() - 1);
    return LINK_CLASS(UintsIn(backward().x.key_links).x[link_row + tile * step_tiles() + step]) != CLASS_HIDDEN;
}
const uint WINDOW = SUBGROUP_SIZE < 32 ? SUBGROUP_SIZE : 32;
uint window_first = 0x80000000u, window_seen = 0;
// Returns the first key from `key` on whose tile is not passed over. From keys.y on there is none.
uint seen_from(uint key) {
    uint tile = key / STEP_KEYS;
    [[dont_unroll]] while (tile * STEP_KEYS < keys.y) {
        if (tile - window_first >= WINDOW) {
            bool seen = false;
            for (uint row = work.first_row; row <= work.last_row; row += STEP_ROWS)
                seen = seen || is_spilled(tile + lane % WINDOW, row);
            window_seen = subgroupBallot(seen).x;
            window_first = tile;
        }
        const uint rest = window_seen >> (tile - window_first);
        if (rest != 0) return max(key, (tile + findLSB(rest)) * STEP_KEYS);
        tile = window_first + WINDOW;
    }
    return tile * STEP_KEYS;
}

// dS^T of a tile of keys: item i of an invocation is vec4 number thread + i * THREADS, counted as they lie in memory.
const uint DS_OF_STEP = WALKED / M * SPILLED_KEYS, DS_VECS = HELD_ROWS / STEP_ROWS * DS_OF_STEP;
const uint DS_ITEMS = MATRIX_STEPS(DS_VECS, THREADS);
#define FOR_DS_ITEMS(i) \
    FOR_EACH(i, DS_ITEMS) if (DS_VECS % THREADS == 0 || thread + (i) * THREADS < DS_VECS)
#define STEP_OF(i) ((thread + (i) * THREADS) / DS_OF_STEP)   // of the tile
#define IN_STEP(i) ((thread + (i) * THREADS) % DS_OF_STEP)
struct FetchedTile {
    STORED8 k[QK_ITEMS];
    uvec4 ds[DS_ITEMS];
};
FetchedTile fetched[AHEAD];
uint ds_at[DS_ITEMS];  // where an item lies if the tile begins at key 0
void place_spill() {
    const uint head = work.batch * num_heads_kv() + work.head_kv;
    const uint of_head = work.head % group_size() * step_tiles(), first = of_head + work.first_row / STEP_ROWS;
    FOR_EACH(i, DS_ITEMS) {
        const uint step = min(first + STEP_OF(i), of_head + step_tiles() - 1) - push.first_step;
        ds_at[i] = spilled_step(head, step) + IN_STEP(i);
    }
}

// Rows of K are whole vec4 at 32-bit offsets.
const bool QUICK_K = LOAD_BYTES == 16 ? (WHOLE_QK ? !FAR_ROWS : false) : false;

// The tile of keys to fetch next. Beyond the end it is the last one again.
uint next;        // its first key, also beyond the end
uint next_spill;  // where its dS^T lies behind that of key 0
Rows next_rows;
uvec2 tile_bytes;  // of K
void begin_at(uint key) {
    next = HAS_BLOCK_MAP ? seen_from(key) : key;
    const uint from = min(next, last_key / WALKED * WALKED);
    next_spill = from / M * SPILLED_KEYS;
    next_rows = walked_tile_at(key_rows_of_work, from);
}
void move_on() {
    if (HAS_BLOCK_MAP) {
        begin_at(next + WALKED);
        return;
    }
    next += WALKED;
    const bool exists = next <= last_key;
    next_spill += exists ? WALKED / M * SPILLED_KEYS : 0;
    next_rows.origin += exists ? WALKED : 0;
    next_rows.base = address_add(next_rows.base, exists ? tile_bytes : uvec2(0));
}

void fetch_next(out FetchedTile tile) {
    const uint from = next_rows.origin;
    FOR_DS_ITEMS(i) {
        tile.ds[i] = SpillIn(push.spill).x[ds_at[i] + next_spill];
        if (HAS_BLOCK_MAP && !is_spilled(from / STEP_KEYS, work.first_row + STEP_OF(i) * STEP_ROWS))
            tile.ds[i] = uvec4(0);
    }
    if (QUICK_K) {
        const uint stride = next_rows.stride.x / 16;
        FOR_EACH(t, QK_ITEMS) {
            const uint row = clamp(from + ROW_OF(t, QK_VECS), next_rows.begin, next_rows.end - 1) - from;
            if (WALKED * QK_VECS % THREADS == 0 || ROW_OF(t, QK_VECS) < WALKED)
                tile.k[t] = fetch_whole8(next_rows.base, row * stride + COLUMN_OF(t, QK_VECS) * VECS_OF_8);
        }
    } else {
        FETCH(tile.k, QK_ITEMS, QK_VECS, 0, row_start(next_rows, from + row, KEY_VALUE_BYTES), HEAD_DIM_QK, WHOLE_QK)
    }
}
void put_tile(uint buf, FetchedTile tile) {
    STORE(buf, QK_STRIDE, QK_ITEMS, QK_VECS, operands_of(tile.k[t]))
    FOR_DS_ITEMS(i) {
        const uint block = IN_STEP(i) / SPILLED_KEYS, matrix = IN_STEP(i) % SPILLED_KEYS / SPILLED_MATRIX;
        const uint vec = IN_STEP(i) % SPILLED_MATRIX;
        const uint row = (STEP_OF(i) * STEP_ROWS + matrix * K) / 8;
        pool[buf + BUF_V + (block * M + vec / (K / 8)) * V_STRIDE + row + vec % (K / 8)] = tile.ds[i];
    }
}
// Zeroes the head dims of K that tiles have beyond those of the tensor: sums of them are looked at, too.
void clear_padding_of_keys() {
    const uint pad = QK_STRIDE - QK_VECS;
    for (uint e = thread; e < 2 * WALKED * pad; e += THREADS) {
        const uint row = e / pad;
        pool[row / WALKED * BUF_SIZE + row % WALKED * QK_STRIDE + QK_VECS + e % pad] = uvec4(0);
    }
}
void multiply_tile(uint buf) {
    FOR_EACH(block, BLOCKS) {
        const uint at = buf + BUF_V + block * BLOCK * V_STRIDE + subgroup_row / 8;
        FOR_EACH(k, KEY_STEPS)
            FOR_EACH(r, ROW_BLOCKS)
                coopMatLoad(p_own[r * KEY_STEPS + k], pool, at + k * K * V_STRIDE + r * M / 8, V_STRIDE,
                            gl_CooperativeMatrixLayoutColumnMajor);
        add_to_qk(buf + block * BLOCK * QK_STRIDE);
    }
}

// AHEAD tiles are under way. Tile i of these is multiplied while one more is fetched in its place, and while the next
// one is put to the pool. Where fewer are left, nothing more is fetched.
//
// The loop is written out for the tiles under way, and calls nothing that can return in several places: otherwise
// NVIDIA's compiler keeps matrices in memory (H200, 580.159, D128, batch 4, N 4,096: 12.8 instead of 5.6 ms for all
// passes).
uint under_way[AHEAD];  // their first keys
#define FETCH_NEXT(i) \
    under_way[i] = next; \
    fetch_next(fetched[i]); \
    move_on();
#define MULTIPLY(i) \
    multiply_tile((i) % 2 * BUF_SIZE); \
    put_tile(((i) + 1) % 2 * BUF_SIZE, fetched[((i) + 1) % AHEAD]); \
    barrier();
#define ADD_TILE(i) \
    FETCH_NEXT(i) \
    MULTIPLY(i)
void multiply_tiles() {
    begin_at(keys.x / WALKED * WALKED);
    tile_bytes = mul_wide(WALKED, key_rows_of_work.stride);
    FETCH_NEXT(0)
    FETCH_NEXT(1)
    if (AHEAD == 4) {
        FETCH_NEXT(2 % AHEAD)
        FETCH_NEXT(3 % AHEAD)
    }
    put_tile(0, fetched[0]);
    barrier();
    [[dont_unroll]] while (under_way[AHEAD - 1] < keys.y) {
        ADD_TILE(0)
        ADD_TILE(1)
        if (AHEAD == 4) {
            ADD_TILE(2 % AHEAD)
            ADD_TILE(3 % AHEAD)
        }
    }
    if (under_way[0] < keys.y) { MULTIPLY(0) }
    if (AHEAD == 4) {
        if (under_way[1] < keys.y) { MULTIPLY(1) }
        if (under_way[2 % AHEAD] < keys.y) { MULTIPLY(2 % AHEAD) }
    }
}

bool has_nonfinite_sum() {
    uint most = 0;
    FOR_EACH(x, ROW_BLOCKS * QK_TILES)
        FOR_EACH(e, ELEMENTS) most = max(most, floatBitsToUint(sum_qk[x][e]) & SIZE_BITS);
    if (most >= EXPONENT_BITS) saw_nonfinite = 1;
    barrier();
    return saw_nonfinite != 0;
}
void leave_to_query_pass() {
    for (uint row = work.first_row + thread * STATE_ROWS; row <= work.last_row; row += THREADS * STATE_ROWS)
        if (is_left_to_us(row)) UintsOut(backward().x.tile_states).x[state_at(row)] = TILE_NONFINITE;
}

void store_sums() {
    const Rows q = gradient_tile(backward().x.dquery, DQUERY, work);
    const float scale = backward().x.scale;
    FOR_EACH(r, ROW_BLOCKS) {
        const uint first = min(work.first_row + subgroup_row + r * M, work.last_row);
        const uint extent = is_left_to_us(first) ? HEAD_DIM_QK : 0;
        FOR_EACH(n, QK_TILES) FOR_EACH(e, ELEMENTS) sum_qk[r * QK_TILES + n][e] *= scale;
        STORE_SUM(sum_qk, QK_TILES, r, q, work.last_row, extent, false)
    }
}

void main() {
    const uvec2 place = place_in_grid(1, key_extent());
    const uint tile = push.first_y + gl_NumWorkGroups.y - 1 - place.y, head_kv = push.first_x + place.x;
    work = work_of_tile(head_kv * group_size() + tile / query_tiles(), tile % query_tiles());
    if (!some_row_is_left_to_us()) return;
    if (thread == 0) saw_nonfinite = 0;
    keys = tile_keys(work);
    key_rows_of_work = key_tensor_rows(push.key, KEY, work);
    key_rows_of_work.begin = keys.x;
    last_key = max(keys.y, 1) - 1;
    key_rows_of_work.end = last_key + 1;
    find_link_row();
    place_spill();
    if (SKIPS_TILES) clear_padding_of_keys();
    FOR_EACH(x, ROW_BLOCKS * QK_TILES) sum_qk[x] = ZEROS;
    multiply_tiles();
    if (SKIPS_TILES && has_nonfinite_sum()) leave_to_query_pass();
    else store_sums();
}
