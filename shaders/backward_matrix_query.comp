#version 460
// dquery on matrix units: VK_KHR_cooperative_matrix, 16-bit operands, float32 accumulators. One pass over the keys for
// each tile of queries (Dao, arXiv:2307.08691, section 3.2).
//
//   Q, dO of the tile -> registers
//   for each tile of WALKED keys that some row of the query tile sees:
//     K, V -> shared, while the tile before is multiplied
//     for each block of it:
//       S = Q . K^T;  dP = dO . V^T - delta
//       P = 2^(score - lse);  dS = P o dP                      // lib/backward_matrix_scores.glsl
//       dQ += dS . K;  where it matters, sum dS                // lib/rounding_loss.glsl
//   dquery = softmax_scale * dQ;  where some lse is large, over rowsum(P), whose inverse is kept for the other kernel
//
// If dS is spilled, backward_matrix_spilled.comp finds dquery of most tiles. TILES says which are left to this kernel:
// at first those with an odd row (of a large lse, or without keys) and those where rounding loses much; afterwards
// those that the other kernel found not to be finite.
//
// Tile ownership: lib/backward_matrix.glsl. A workgroup has HELD_ROWS query rows of one head and a slice of dQ's head
// dims. Grid: heads of all batches, query tiles, slices.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   two buffers, each  WALKED x head dims of K    WALKED x head dims of V
//   with TURNED also, in each buffer  head dims of K x WALKED    behind both  rows of dO that no register holds
//   places and scratch as forward_matrix.comp, then for each subgroup masks of its scores in a tile (MASK_SIZE)
//   before and after the loop, over all of it, an equal share for each subgroup: Q and dO on their way in, dQ out
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_matrix_query.def"
#include "lib/as_push.glsl"
#define QUICK_TERMS  // lib/score_facts.glsl
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_matrix_query.def"
} push;
#include "lib/backward_matrix.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/backward_matrix_staging.glsl"
#include "lib/mask.glsl"
#include "lib/backward_matrix_scores.glsl"
#include "lib/matrix_grid.glsl"

Work work;
shared uint odd_rows;  // 1: some row has a large lse, or is empty
#ifdef TURNED  // RADV would find the rows' places before the loop and spill them (navi31, D128: 14 registers)
#define LANE_OF_STORES (lane + (odd_rows >> 1))
#endif
#include "lib/backward_matrix_results.glsl"
#include "lib/backward_matrix_walk.glsl"
void place_head(uint head) {
    walked_qk = walked_tile_at(walked_qk, 0);
    walked_v = walked_tile_at(walked_v, 0);
}
uint step_of(Place at) { return at.first / WALKED; }

uvec2 mask_of(Place at) { return mask_of_tile(work, 0, at.first); }

uvec2 own_rows() {
    const uint first = work.first_row + subgroup_row;
    return min(uvec2(first, first + ROW_BLOCKS * M - 1), uvec2(work.last_row));
}
bool is_inner_block(Work w, Place at, uint block) {
    const uint first = at.first + block * BLOCK;
    return !needs_finishing(w, own_rows(), uvec2(first, first + BLOCK), false);
}
void begin_rows(Place at, uint first, uint count, bool plain) {
    begin_tile(work, plain, own_rows(), uvec2(first, first + count), at.first, work.first_row + subgroup_row);
}
bool sees_block(Work w, Place at, uint block) {
    if (P_MOVE >= MOVE_SHARED) return true;
    const uint first = at.first + block * BLOCK;
    return work.first_row + subgroup_row <= work.last_row &&
           !tile_is_hidden(work, own_rows(), uvec2(first, first + BLOCK));
}
Work work_at(Place at) { return work; }
uint first_key_of(Place at) { return at.first; }
uint first_link(Place at) { return class_index(work); }
uint state_at() { return (work.batch * num_heads_q() + work.head) * query_tiles() + work.first_row / HELD_ROWS; }

void drop_rows(Place at, uint buf, bool odd) {
    if (!HIDES_KEYS || !zero_hidden_keys) return;
    find_seen(work, at.first);
    ZERO_ROWS(buf, !is_seen(row))
    barrier();
}

const uint KEPT_SUMS = ROW_BLOCKS * QK_TILES, KEPT = (KEPT_SUMS + ROW_BLOCKS) * ELEMENTS;
uvec2 kept_of_work() {
    const uint head = work.batch * num_heads_q() + work.head;
    return kept_base(head, work.first_row / HELD_ROWS, query_tiles(), KEPT);
}

void begin_sums() {
    FOR_EACH(x, KEPT_SUMS) sum_qk[x] = ZEROS;
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) row_sum[r][s] = lost[r][s] = 0;
    if (starts_loop()) return;
    const uvec2 kept = kept_of_work();
    LOAD_KEPT(sum_qk, 0, KEPT_SUMS)
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(s, SLOTS) row_sum[r][s] = FloatsIn(kept).x[KEPT_AT((KEPT_SUMS + r) * ELEMENTS + s)];
}

const float LEAST_LOSS = 9.5367432e-7;  // 2^-20, 16 steps

// Sums `lost` along the rows. Factors are known after the last keys.
void find_loss() {
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS) {
        sum_along_rows(lost[r]);
        // Sums of a few least steps of float16 are noise of numbers that products may take for 0.
#if defined(F16) || defined(F16_OPERANDS)
        FOR_EACH(x, SLOTS) if (abs(lost[r][x]) < LEAST_LOSS) lost[r][x] = 0;
#endif
        if (!ends_loop()) continue;
        FOR_EACH(e, ELEMENTS) if (!KNOWN || step_column(e) == 0) {
            const uint row = work.first_row + subgroup_row + r * M + place_of(places, e).x;
            lost[r][slot(e)] += sum_of_gradients(work, min(row, work.last_row), row_sum[r][slot(e)]);
        }
    }
}

// Gives the sums what rounding has taken from them, by way of the subgroup's share of the pool.
void give_back_loss() {
    for (uint v = lane; v < QK_TILES * N / 4; v += SUBGROUP_SIZE) {
        const uvec4 four = floatBitsToUint(four_in_common(walked_qk, slice() * QK_TILES * N + v * 4));
        PUT8(share + IN_POOL(v), four)
    }
    subgroupBarrier();
    FOR_EACH(n, QK_TILES) {
        ACCUMULATOR c;
        coopMatLoad(c, pool, share + IN_POOL(n * N / 4), 0, OWN_ORDER);
        FOR_EACH(r, ROW_BLOCKS) FOR_EACH(e, ELEMENTS) sum_qk[r * QK_TILES + n][e] += lost[r][slot(e)] * c[e];
    }
    subgroupBarrier();
}

void keep_sums() {
    const uvec2 kept = kept_of_work();
    STORE_KEPT(sum_qk, 0, KEPT_SUMS)
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(s, SLOTS) FloatsOut(kept).x[KEPT_AT((KEPT_SUMS + r) * ELEMENTS + s)] = row_sum[r][s];
}

bool has_nonfinite_sum() {
    uint most = 0;
    FOR_EACH(x, KEPT_SUMS) FOR_EACH(e, ELEMENTS) most = max(most, floatBitsToUint(sum_qk[x][e]) & SIZE_BITS);
    if (most >= EXPONENT_BITS) saw_nonfinite = 1;
    barrier();
    return saw_nonfinite != 0;
}

// Turns row sums into factors. A row whose sum is not finite keeps the factor 1, because its weights are NaN anyway.
void find_factors(bool odd) {
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS) {
        if (odd) sum_along_rows(row_sum[r]);
        if (odd && HAS_SINKS)
            FOR_EACH(e, ELEMENTS)
                if (!KNOWN || step_column(e) == 0) {
                    if (IS_ZERO(row_sum[r][slot(e)])) continue;
                    const uint row = work.first_row + subgroup_row + r * M + place_of(places, e).x;
                    row_sum[r][slot(e)] += sink_weight(work, min(row, work.last_row), -held_lse[r][slot(e)]);
                }
        FOR_EACH(s, SLOTS)
            row_sum[r][s] = !odd || IS_ZERO(row_sum[r][s]) || !IS_FINITE(row_sum[r][s]) ? 1 : 1 / row_sum[r][s];
        if (odd && slice() == 0) FOR_EACH(e, ELEMENTS)
            if (!KNOWN || step_column(e) == 0) {
                const uvec2 place = place_of(places, e);
                const uint row = work.first_row + subgroup_row + r * M + place.x;
                if (place.y != 0 || row > work.last_row) continue;
                const RowStart to = statistics_of(work, row);
                FloatsOut(to.base).x[to.at + 2] = row_sum[r][slot(e)];
            }
    }
}

// Tells backward_matrix_spilled.comp whether it is to find the tile: it does where no row is odd, and rounding loses
// little. Returns true if so.
bool leaves_tile(ComparedKeys compared) {
    find_slope(work);
    HeldNumbers numbers;
    fetch_held_numbers(work, numbers);
    if (has_odd_row(work, numbers)) odd_rows = 1;
    compare_keys(compared);
    barrier();
    find_whether_loss_is_large();
    const bool left = odd_rows == 0 && !sums_loss;
    if (thread == 0 && slice() == 0) UintsOut(backward().x.tile_states).x[state_at()] = left ? TILE_SPILLED : TILE_ODD;
    return left;
}

bool is_empty_row(uint row) {
    const RowStart from = statistics_of(work, row);
    return Vec4sIn(from.base).x[from.at / 4].w != 0;
}

void store_sums(bool odd) {
    const Rows q = gradient_tile(backward().x.dquery, DQUERY, work);
    const float scale = backward().x.scale;
    FOR_EACH(r, ROW_BLOCKS) {
        FOR_EACH(n, QK_TILES) FOR_EACH(e, ELEMENTS) sum_qk[r * QK_TILES + n][e] *= scale * row_sum[r][slot(e)];
        STORE_SUM(sum_qk, QK_TILES, r, q, work.last_row, HEAD_DIM_QK, odd && is_empty_row(row))
    }
}

void main() {
    const uvec2 place = place_in_grid(group_size(), key_extent());
    work = work_of_last_tile(push.first_x + place.x, push.first_y + place.y);
    if (TILES == TILE_NONFINITE && UintsIn(backward().x.tile_states).x[state_at()] != TILE_NONFINITE) return;
    const Rows q = query_tile(push.query, QUERY, work), dout = dout_tile(work);
    walked = tile_keys(work);
    inner = uvec2(visible_keys(work, work.last_row).x, max(0, visible_keys(work, work.first_row).y));
    walked_qk = key_tensor_rows(push.key, KEY, work);
    walked_v = key_tensor_rows(push.value, VALUE, work);
    walked_qk.begin = walked_v.begin = walked.x;
    walked_qk.end = walked_v.end = walked.y;
    if (thread == 0) odd_rows = saw_nonfinite = 0;
    begin_comparison();
    ComparedKeys compared;
    fetch_compared(work, walked_qk, walked, compared);
    barrier();
    if (TILES == TILE_ODD && leaves_tile(compared)) return;
    HOLD_ROWS(held_qk, QK_STEPS, q, HEAD_DIM_QK)
    HOLD_ROWS(held_v, V_HELD_STEPS, dout, HEAD_DIM_V)
    find_slope(work);
    HeldNumbers numbers;
    fetch_held_numbers(work, numbers);
    if (hold_numbers(work, numbers)) odd_rows = 1;
    compare_keys(compared);
    barrier();
#ifdef TURNED
    stage_own_v(dout);
#endif
    clear_padding();
    write_places();
    const bool odd = odd_rows != 0;
    find_whether_loss_is_large();
    const bool plain = !odd && !sums_loss && masks_are_plain(work.last_row + 1 == work.first_row + HELD_ROWS);
    bool again;
    [[dont_unroll]] do {
        begin_sums();
        walk(plain && !zero_hidden_keys);
        again = HIDES_KEYS && !zero_hidden_keys && has_nonfinite_sum();
        if (again) zero_hidden_keys = true;
    } while (again);
    barrier();
    if (ends_loop()) find_factors(odd);
    if (sums_loss) find_loss();
    barrier();  // from the pool's map to equal shares of it
    if (sums_loss) give_back_loss();
    if (ends_loop()) store_sums(odd);
    else keep_sums();
}
