#version 460
// dbias on matrix units: VK_KHR_cooperative_matrix, 16-bit operands, float32 accumulators. The scores' gradient, summed
// where the mask broadcasts, in the order of batches, heads and query tiles.
//
//   for each batch, each query head, each query tile that share the workgroup's tile of the mask:
//     Q, dO of the tile -> registers
//     for each of its CHUNKS tiles of WALKED keys:
//       K, V -> shared, while the tile before is multiplied
//       for each block of it:
//         S = Q . K^T;  dP = dO . V^T - delta
//         P = 2^(score - lse);  D += P o dP                    // lib/backward_matrix_scores.glsl
//   dbias = D or, of a mask that all queries share, its columns' sums
//
// Tile ownership: lib/backward_matrix.glsl; D stays in registers. A workgroup has HELD_ROWS query rows and CHUNKS *
// WALKED keys of the mask. Grid: heads and batches of the mask, its query tiles, its tiles of keys.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   two buffers, each  WALKED x head dims of K    WALKED x head dims of V
//   places as forward_matrix.comp
//   a share for each subgroup: Q and dO on their way in, D on its way out
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_matrix_mask.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_matrix_mask.def"
} push;
#define MASK_GRADIENT
#include "lib/backward_matrix.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/backward_matrix_staging.glsl"
#include "lib/mask.glsl"
#include "lib/backward_matrix_scores.glsl"
#include "lib/mask_gradient.glsl"

ACCUMULATOR sums[ROW_BLOCKS * TILE_KEYS / N];  // D: block r of rows, tile n of keys is sums[r * TILE_KEYS / N + n]

uint first_key;
Shared by;
uint first_row, query_tiles_of_mask;  // the mask's query tiles: the workgroup's, or all where queries share the mask

// A part of the loop is a head of a query tile of a batch; heads come first, then query tiles, then batches. What
// follows from batch and query tile is found once for all heads.
uint batch, tile;  // of the part whose tensors are placed; batch by.batches.y stands for the end
Work work;
Rows query_rows_of_part, dout_rows_of_part, keys_of_part, values_of_part;
bool is_end() { return batch >= by.batches.y; }

// Keys begin .. end-1 of the tile that some row of the part sees.
uvec2 seen_keys() {
    if (work.first_row >= work.num_queries) return uvec2(0);
    const uvec2 keys = tile_keys(work);
    return uvec2(max(keys.x, first_key), min(keys.y, first_key + TILE_KEYS));
}
void find_work() {
    work.split = 0;
    work.batch = min(batch, by.batches.y - 1);
    work.head_kv = by.heads.x / group_size();
    find_sequences(work);
    set_query_tile(work, by.heads.x, first_row + tile * HELD_ROWS);
}
// Places the tensors of the first head, or goes on to the query tile or batch whose rows see a key.
void place_part() {
    [[dont_unroll]] for (; !is_end(); tile++) {
        if (tile >= query_tiles_of_mask) {  // of no query rows there are none
            tile = 0;
            batch++;
            if (is_end()) return;
        }
        find_work();
        const uvec2 keys = seen_keys();
        if (keys.x >= keys.y) continue;
        query_rows_of_part = query_tile(push.query, QUERY, work);
        dout_rows_of_part = dout_tile(work);
        keys_of_part = key_tensor_rows(push.key, KEY, work);
        values_of_part = key_tensor_rows(push.value, VALUE, work);
        keys_of_part.begin = values_of_part.begin = keys.x;
        keys_of_part.end = values_of_part.end = keys.y;
        return;
    }
}
Rows of_next_head(Rows t, uvec2 step) {
    t.head = address_add(t.head, step);
    t.base = address_add(t.base, step);
    return t;
}
void place_next_part() {
    if (work.head + 1 == by.heads.y) {
        tile++;
        place_part();
        return;
    }
    work.head++;
    query_rows_of_part = of_next_head(query_rows_of_part, stride_of(QUERY, 1));
    dout_rows_of_part = of_next_head(dout_rows_of_part, gradient_stride(DOUT, 1));
    if (work.head % group_size() != 0) return;
    work.head_kv++;
    keys_of_part = of_next_head(keys_of_part, stride_of(KEY, 1));
    values_of_part = of_next_head(values_of_part, stride_of(VALUE, 1));
}

Rows chunk_of(Rows rows, uint chunk) { return tile_at(rows, first_key + chunk * WALKED); }
void fetch_chunk(uint chunk, out Fetched fetched) {
    fetch_stage(chunk_of(keys_of_part, chunk), chunk_of(values_of_part, chunk), 0, fetched);
}

// Q, dO, lse and delta of a part on their way to registers. If registers allow, they are loaded ahead of the part.
const bool HOLDS_AHEAD = ROW_BLOCKS * (QK_STEPS + V_STEPS) <= 8;
uvec4 query_words[HELD_LOADS(QK_STEPS)], dout_words[HELD_LOADS(V_STEPS)];
HeldNumbers number_words;
void fetch_held() {
    FETCH_HELD(query_words, QK_STEPS, query_rows_of_part, HEAD_DIM_QK)
    FETCH_HELD(dout_words, V_STEPS, dout_rows_of_part, HEAD_DIM_V)
    fetch_held_numbers(work, number_words);
}

// Adds dS of a block. All tiles of D are stored to, because a store behind a test would put D into memory.
void add_block(Work w, uint tile) {
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(x, TILE_KEYS / N)
            FOR_EACH(n, BLOCK_TILES)
                FOR_EACH(e, ELEMENTS) {
                    const uint at = r * (TILE_KEYS / N) + x;
                    const float sum = sums[at][e] + gradient_of_mask(w, vec4(dp[r * BLOCK_TILES + n][e])).x;
                    sums[at][e] = x == tile + n ? sum : sums[at][e];
                }
}
#define AT_QK(buf, block) ((buf) + (block) * BLOCK * QK_STRIDE)
#define AT_V(buf, block) ((buf) + BUF_V + (block) * BLOCK * V_STRIDE)

// Multiplies the chunks of a plain part. Meanwhile the chunk that follows each is staged, and last the next part's
// first.
void add_plain_part() {
    FOR_EACH(chunk, CHUNKS) {
        const uint buf = chunk % 2 * BUF_SIZE;
        if (chunk != 0) barrier();
        if (chunk + 1 == CHUNKS) {
            place_next_part();
            if (HOLDS_AHEAD) fetch_held();
        }
        Fetched fetched;
        if (chunk + 1 == CHUNKS) fetch_chunk(0, fetched);
        else fetch_whole_stage(chunk_of(keys_of_part, chunk + 1), chunk_of(values_of_part, chunk + 1), 0, 0, fetched);
        FOR_EACH(block, BLOCKS) {
            const uint first = (chunk * BLOCKS + block) * BLOCK_TILES;
            begin_block(buf, block);
            multiply_scores(AT_QK(buf, block), AT_V(buf, block));
            find_plain(buf, block, first);
            FOR_EACH(r, ROW_BLOCKS)
                FOR_EACH(n, BLOCK_TILES)
                    sums[r * (TILE_KEYS / N) + first + n] += dp[r * BLOCK_TILES + n];
        }
        store_stage(BUF_SIZE - buf, 0, fetched);
    }
}
void add_any_part() {
    const Work w = work;
    [[dont_unroll]] for (uint chunk = 0; chunk < CHUNKS; chunk++) {
        const uint buf = chunk % 2 * BUF_SIZE;
        if (chunk != 0) barrier();
        if (chunk + 1 == CHUNKS) place_next_part();
        Fetched fetched;
        fetch_chunk((chunk + 1) % CHUNKS, fetched);
        [[dont_unroll]] for (uint block = 0; block < BLOCKS; block++) {
            begin_block(buf, block);
            multiply_scores(AT_QK(buf, block), AT_V(buf, block));
            find_finished(w, first_key + chunk * WALKED, buf, block);
            add_block(w, (chunk * BLOCKS + block) * BLOCK_TILES);
        }
        store_stage(BUF_SIZE - buf, 0, fetched);
    }
    if (HOLDS_AHEAD) fetch_held();
}

shared uint odd_rows[2];  // 1: some row has a large lse, or is empty; parts take turns

// A part is plain if all its rows exist, see all keys of the tile and have no factor, and no term but the mask changes
// its scores.
bool is_plain_part(bool odd) {
    const uvec2 keys = uvec2(first_key, first_key + TILE_KEYS);
    return !odd && PLAIN_SCORES && !FAR_ROWS && work.last_row + 1 == work.first_row + HELD_ROWS &&
           tile_is_visible(work, tile_rows(work), keys) && !terms_change(work, tile_rows(work), keys);
}

// The tile of the mask is the same for all parts. Returns whether it is held: if not, no part is plain.
bool hold_tile_of_mask() {
    const bool rows_exist = backward().x.dbias_queries == 1 || first_row + HELD_ROWS <= query_extent();
    const bool exists = rows_exist && first_key + TILE_KEYS <= arguments().x.key_limit;
    if (FAR_ROWS || !masks_are_plain(exists)) return false;
    hold_all_masks(mask_of_tile(work, 0, first_key));
    return true;
}

// Sums all parts. With `can_be_plain` some may be plain.
void add_parts(bool can_be_plain) {
    batch = by.batches.x;
    tile = 0;
    place_part();
    if (is_end()) return;
    const bool has_masks = can_be_plain && hold_tile_of_mask();
    if (HOLDS_AHEAD) fetch_held();
    Fetched fetched;
    fetch_chunk(0, fetched);
    store_stage(0, 0, fetched);
    uint turn = 0;
    [[dont_unroll]] while (!is_end()) {
        if (!HOLDS_AHEAD) fetch_held();
        PUT_HELD(held_qk, query_words, QK_STEPS)
        PUT_HELD(held_v, dout_words, V_STEPS)
        if (hold_numbers(work, number_words)) odd_rows[turn] = 1;
        barrier();
        const bool odd = odd_rows[turn] != 0;
        turn = 1 - turn;
        if (thread == 0) odd_rows[turn] = 0;
        if (has_masks && is_plain_part(odd)) add_plain_part();
        else add_any_part();
    }
}

bool has_nonfinite_sum() {
    uint most = 0;
    FOR_EACH(x, ROW_BLOCKS * TILE_KEYS / N)
        FOR_EACH(e, ELEMENTS) most = max(most, floatBitsToUint(sums[x][e]) & SIZE_BITS);
    if (most >= EXPONENT_BITS) saw_nonfinite = 1;
    barrier();
    return saw_nonfinite != 0;
}

// Stores D, a tile of keys at a time, through the subgroup's share.
void store_tiles(uint mask) {
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(x, TILE_KEYS / N) {
            put_floats(sums[r * (TILE_KEYS / N) + x], share);
            subgroupBarrier();
            FOR_EACH(item, M * N / SUBGROUP_SIZE) {
                const uint e = item * SUBGROUP_SIZE + lane, steps = subgroup_row + r * M + e / N;
                if (first_row + steps < query_extent())
                    store_element(dbias_row(mask, first_row, steps), first_key + x * N + e % N,
                                  float_at(share, e / N, e % N));
            }
            subgroupBarrier();
        }
}

// Stores the sums of D's columns.
void store_columns(uint mask) {
    const RowStart row = dbias_row(mask, 0, 0);
    FOR_EACH(x, TILE_KEYS / N) {
        ACCUMULATOR sum = sums[x];
        FOR_EACH(r, ROW_BLOCKS - 1) sum += sums[(r + 1) * (TILE_KEYS / N) + x];
        put_floats(sum, share);
        barrier();
        for (uint column = thread; column < N; column += THREADS) {
            float all = 0;
            for (uint s = 0; s < SUBGROUPS; s++)
                for (uint i = 0; i < M; i++) all += float_at(POOL_SHARES + s * SHARE, i, column);
            store_element(row, first_key + x * N + column, all);
        }
        barrier();
    }
}

void main() {
    const uint mask = push.first_x + gl_WorkGroupID.x;
    by = shared_by(mask);
    const bool one = backward().x.dbias_queries == 1;
    query_tiles_of_mask = one ? query_tiles() : 1;
    first_row = one ? 0 : (push.first_y + gl_WorkGroupID.y) * HELD_ROWS;
    first_key = (push.first_z + gl_WorkGroupID.z) * TILE_KEYS;
    clear_padding();
    write_places();
    if (thread == 0) saw_nonfinite = 0;
    bool plain = MASK_IS_PLAIN, again;
    [[dont_unroll]] do {
        if (thread < 2) odd_rows[thread] = 0;
        barrier();
        FOR_EACH(x, ROW_BLOCKS * TILE_KEYS / N) sums[x] = ZEROS;
        add_parts(plain);
        again = plain && has_nonfinite_sum();
        plain = false;
    } while (again);
    if (one) store_columns(mask);
    else store_tiles(mask);
}
