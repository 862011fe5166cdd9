#version 460
// dkey and dvalue on matrix units: VK_KHR_cooperative_matrix, 16-bit operands, float32 accumulators. For each tile of
// keys one pass over the queries of all heads that read it (Dao, arXiv:2307.08691, section 3.2), with all scores
// transposed: P^T and dS^T are then the left operands of the sums as they are.
//
//   K, V of the tile -> registers
//   for each query head of the group, each tile of WALKED queries of which some row sees some key of the tile:
//     Q, dO and the rows' statistics -> shared, while the tile before is multiplied
//     for each block of it:
//       S = K . Q^T;  dP = V . dO^T - delta
//       P = 2^(score - lse);  dS = P o dP                      // lib/backward_matrix_scores.glsl
//       dV += P . dO;  dK += dS . Q;  if it is asked for, dS^T -> scratch  // lib/backward_matrix_spill.glsl
//   dvalue = dV;  dkey = softmax_scale * dK
//
// If registers do not hold both sums, GRADIENTS leaves one of them out, or subgroups are PAIRED: two subgroups have the
// same keys. The first computes P and dV, the second dP, dS and dK, for which it gets P from the first through the
// pool: within the step or, if it is LAGGING, in the next one (lib/backward_matrix_lag.glsl). Tile ownership:
// lib/backward_matrix.glsl. A workgroup has HELD_ROWS keys of one kv head and a slice of the head dims of dK and dV.
// Grid: kv heads of all batches, tiles of keys, slices.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   two buffers, each  WALKED x head dims of Q    WALKED x head dims of dO    -lse, -delta, factor of WALKED rows
//   with TURNED also, in each buffer  head dims of Q x WALKED    head dims of dO x WALKED
//   with LAGGING also  WALKED x head dims of Q
//   places and scratch as forward_matrix.comp, then for each subgroup masks of its scores in a tile (MASK_SIZE),
//   then for each pair P of one or two blocks, or of two tiles
//   before and after the loop, over all of it, an equal share for each subgroup: K and V on their way in, dK and dV out
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_matrix_key_value.def"
#include "lib/as_push.glsl"
#define QUICK_TERMS  // lib/score_facts.glsl
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_matrix_key_value.def"
} push;
#define KEY_VALUE
#include "lib/backward_matrix.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/backward_matrix_staging.glsl"
#include "lib/mask.glsl"
#include "lib/backward_matrix_spill.glsl"
#include "lib/backward_matrix_scores.glsl"
#include "lib/matrix_grid.glsl"
#include "lib/backward_matrix_results.glsl"

Work work;
#include "lib/backward_matrix_walk.glsl"
uint first_key;  // of the workgroup's keys

Work work_at(Place at) {
    Work w = work;
    set_query_tile(w, w.head_kv * group_size() + at.head, at.first);
    return w;
}
uint first_key_of(Place at) { return first_key; }
uint first_link(Place at) {
    ArgumentsIn a = arguments();
    const uint head = (work.head_kv * group_size() + at.head) * a.x.class_heads / num_heads_q();
    const uint batch = a.x.class_batches == 1 ? 0 : work.batch;
    return ((batch * a.x.class_heads + head) * key_tiles() + first_key / HELD_ROWS) * query_tiles();
}

// A step is a query tile of a head: all of the first head, then those of the next.
uint step_of(Place at) { return at.head * query_tiles() + at.first / WALKED; }
void place_head(uint head) {
    const Work w = work_at(Place(head, 0));
    walked_qk = walked_tile_at(query_tile(push.query, QUERY, w), 0);
    walked_v = walked_tile_at(dout_tile(w), 0);
    walked_statistics = walked_tile_at(statistics_rows(w), 0);
    find_slope(w);
}

uvec2 mask_of(Place at) {
    Work w = work;
    set_query_tile(w, w.head_kv * group_size() + at.head, 0);
    return mask_of_tile(w, first_key + subgroup_row, at.first);
}

// This subgroup's keys, from .x to before .y.
uvec2 own_keys() {
    const uint first = first_key + subgroup_row;
    return uvec2(first, first + ROW_BLOCKS * M);
}
bool is_inner_block(Work w, Place at, uint block) {
    const uint first = at.first + block * BLOCK;
    return first + BLOCK <= work.num_queries &&
           !needs_finishing(w, uvec2(first, first + BLOCK - 1), own_keys(), false);
}
void begin_rows(Place at, uint first, uint count, bool plain) {
    begin_tile(work_at(at), plain, uvec2(first, first + count - 1), own_keys(), at.first, first_key + subgroup_row);
}
void place_spill(Place at) {
    const uint head = work.batch * num_heads_kv() + work.head_kv;
    if (SPILLS) spill_at = spilled_step(head, step_of(at) - (IS_RESUMED ? push.first_step : 0)) +
               ((first_key + subgroup_row) / M) * SPILLED_KEYS;
}
void move_spill(uint rows) {
    if (SPILLS) spill_at += rows / WALKED * (spill_key_blocks() * SPILLED_KEYS);
}
bool sees_block(Work w, Place at, uint block) {
    if (P_MOVE >= MOVE_SHARED || PAIRED) return true;
    const uint first = at.first + block * BLOCK;
    const uvec2 rows = uvec2(first, min(first + BLOCK, work.num_queries) - 1);
    return first < work.num_queries && !tile_is_hidden(work, rows, own_keys());
}

void drop_rows(Place at, uint buf, bool odd) {
    if (!odd) return;
    ZERO_ROWS(buf, IS_ZERO(factor_of(buf, row)))
    barrier();
}

const uint KEPT_QK = WANTS_DS ? ROW_BLOCKS * QK_TILES : 0, KEPT_V = WANTS_DV && !PAIRED ? ROW_BLOCKS * V_TILES : 0;
const uint KEPT = ROW_BLOCKS * (QK_TILES + (PAIRED ? 0 : V_TILES)) * ELEMENTS;
uvec2 kept_of_work() {
    uint head = work.batch * num_heads_kv() + work.head_kv;
    if (SPILLS) head %= push.spill_heads;
    return kept_base(head, first_key / HELD_ROWS, key_tiles(), KEPT);
}

// A workgroup's sums begin in the dispatch that has its first tile, and are stored in the one that has its last tile.
// They go through memory in between. The workgroup does nothing in a dispatch that has none of its tiles.
bool starts_here = true, ends_here = true;
bool has_tile_here() {
    if (!IS_RESUMED) return true;
    uvec2 own = uvec2(0, 1);  // keys that no row sees get zeros in the first dispatch
    if (walked.x < walked.y)
        own = uvec2(walked.x / WALKED, step_of(Place(group_size() - 1, walked.y + WALKED - 1)));
    starts_here = push.first_step <= own.x;
    ends_here = push.end_step >= own.y;
    if (push.end_step <= own.x || push.first_step >= own.y) return false;
    if (starts_here || ends_here) return true;
    const uint head = push.first_step / query_tiles();
    const uvec2 tiles = tiles_of_head(head);
    return tiles.x < tiles.y || push.end_step > step_of(Place(head + 1, walked.x));
}

void begin_sums() {
    FOR_EACH(x, KEPT_QK) sum_qk[x] = ZEROS;
    FOR_EACH(x, KEPT_V) sum_v[x] = ZEROS;
    if (starts_here) return;
    const uvec2 kept = kept_of_work();
    LOAD_KEPT(sum_qk, 0, KEPT_QK)
    LOAD_KEPT(sum_v, ROW_BLOCKS * QK_TILES * ELEMENTS, KEPT_V)
}

void keep_sums() {
    const uvec2 kept = kept_of_work();
    STORE_KEPT(sum_qk, 0, KEPT_QK)
    STORE_KEPT(sum_v, ROW_BLOCKS * QK_TILES * ELEMENTS, KEPT_V)
}

#ifdef TURNED  // element by element, as tests/emulation wants it
#define SCALE(x, by) FOR_EACH(e, ELEMENTS) x[e] *= by;
#else
#define SCALE(x, by) x *= by;
#endif
void store_sums() {
    const float scale = backward().x.scale;
    const uint last = key_extent() - 1;
    const Rows dk = tile_at(key_gradient_rows(backward().x.dkey, DKEY, work), first_key);
    const Rows dv = tile_at(key_gradient_rows(backward().x.dvalue, DVALUE, work), first_key);
    if (PAIRED) {
        Rows rows = dv;
        if (finds_dkey) rows = dk;
        FOR_EACH(r, ROW_BLOCKS) {
            FOR_EACH(n, QK_TILES) SCALE(sum_qk[r * QK_TILES + n], finds_dkey ? scale : 1)
            STORE_SUM(sum_qk, QK_TILES, r, rows, last, HEAD_DIM_QK, false)
        }
        return;
    }
    FOR_EACH(r, ROW_BLOCKS) {
        if (WANTS_DS) {
            FOR_EACH(n, QK_TILES) SCALE(sum_qk[r * QK_TILES + n], scale)
            STORE_SUM(sum_qk, QK_TILES, r, dk, last, HEAD_DIM_QK, false)
        }
        if (WANTS_DV) STORE_SUM(sum_v, V_TILES, r, dv, last, HEAD_DIM_V, false)
    }
}

void main() {
    const uvec2 place = place_in_grid(1, query_extent() * group_size());
    first_key = (push.first_y + place.y) * HELD_ROWS;
    work = work_of_keys(push.first_x + place.x);
    const uint end_key = min(first_key + HELD_ROWS, work.num_keys);
    walked = with_whole_tiles(seeing_rows(work, first_key, end_key), work.num_queries);
    if (!has_tile_here()) return;
    // Keys beyond the batch's length get zeros. Held keys beyond the tensor are not stored, but their dS is spilled.
    const bool all_count = end_key == first_key + HELD_ROWS || (!SPILLS && end_key == key_extent());
    inner = all_count ? rows_seeing_all(work, first_key, end_key) : uvec2(0);
    if (walked.x < walked.y) {
        Rows k = key_tensor_rows(push.key, KEY, work), v = key_tensor_rows(push.value, VALUE, work);
        k.end = v.end = work.num_keys;
        k = tile_at(k, first_key);
        v = tile_at(v, first_key);
        Rows first = k;
        if (PAIRED && finds_dkey) first = v;
        HOLD_ROWS(held_qk, QK_STEPS, first, HEAD_DIM_QK)
        if (WANTS_DS && !PAIRED) HOLD_ROWS(held_v, V_STEPS, v, HEAD_DIM_V)
        barrier();
        clear_padding();
        write_places();
#ifdef TURNED  // RADV takes matrices apart that outlive the branch in which they are loaded (navi31, D128: 138 moves)
        begin_sums();
        walk(masks_are_plain(first_key + HELD_ROWS <= work.num_keys));
    } else {
        begin_sums();
    }
#else  // H100, driver 580.159, D128: 6.10 ms in this order, 6.17 ms in the other
    }
    begin_sums();
    walk(masks_are_plain(first_key + HELD_ROWS <= work.num_keys));
#endif
    barrier();
    if (ends_here) store_sums();
    else keep_sums();
}
