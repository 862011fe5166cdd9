#version 460
// FlashAttention forward on matrix units: VK_KHR_cooperative_matrix, 16-bit operands, float32 accumulators.
// Dao et al., arXiv:2205.14135, and Dao, arXiv:2307.08691 (queries outside, keys inside).
//
// Two loops. The first has no maximum, no reduction and no rescaling in its common path. A row's offset stays what it was
// set to: any offset within 2^14 of the true maximum gives the same softmax. A tile whose part of a row sum outgrows that
// is left before P was used, and offsets are set from it:
//
//   K of the first tile -> shared
//   do:
//     S = Q . K^T;  offset = max(offset, rowmax(S));  O, row_sum *= 2^(change)
//     for each tile of keys that some row of the query tile sees, from this one on:
//       V -> shared;  fetch the next K
//       S = Q . K^T;  finish it on boundary tiles;  P = 2^(S * scale - offset);  tile_sum = rowsum(P)
//       if any tile_sum > 2^14 here: raise the flag
//       barrier;  leave if the flag is up
//       the next K -> shared;  fetch its V
//       O += P . V;  row_sum += tile_sum;  barrier
//   while left by the flag
//
// With PARTS = 2, half of the keys are multiplied before a tile is staged, half behind it: P of the first half is made while
// S of the second is. A float mask is fetched ahead of either.
//
// The second has a running maximum, stale by at most 2^8, so that a row's bits do not depend on its neighbours
// (RUNNING_MAX). It takes head dims in chunks. Masks: lib/matrix_mask.glsl.
//
//   for each tile:
//     S = 0;  for each CHUNK head dims:  K, and what of Q is not held, -> shared;  S += Q . K^T
//     finish;  where rowmax(S) > offset + 8: offset = rowmax(S), rescale;  P = 2^(S - offset)
//     V -> shared;  O += P . V;  row_sum += rowsum(P)
//
//   O /= rowsum over invocations;  lse = ln 2 * (offset + log2(row_sum))
//
// Tile ownership: lib/matrix.glsl. A workgroup owns TILE_Q query rows of one head or, packed, of all heads that share a kv
// head, and a slice of the head dims of V, against all keys or a part of them, which combine.comp merges.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   TILE_KV x CHUNK of K    TILE_KV x OUT_SPAN of V    TILE_Q x what of Q is not held
//   places    M x N floats, where the layout of accumulators is not known
//   scratch   of each subgroup: M x N floats, M x TILE_KV of P (as 16-bit accumulators: in their place); where the layout is
//             not known, or P goes through shared memory
//   before and after the loop, over all of it, an equal share for each subgroup: Q on its way in, O on its way out
//
// Beside it, flags of the first loop, and a bit for each key that a mask leaves to some row.
//
// What one multiprocessor of an H200 holds bounds the tiles: 255 registers an invocation, 48 KiB for all its workgroups.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/forward.h"
#include "lib/matrix.glsl"
#include "lib/problem.glsl"
#include "lib/mask.glsl"
#include "lib/matrix_softmax.glsl"  // and lib/matrix_mask.glsl

shared uint grown_tile;   // of the first loop: the first key of the tile that outgrew its offsets, plus 1
shared uint large_scores;  // 1: every tile is finished, which rounds scores first

struct Slice {
    Work w;
    Rows q, k, v;
    uint first_dim;  // of V
    uint end_key, classes;
};

Slice find_slice() {
    Slice s;
    const uint x = p.first_head + gl_WorkGroupID.x;
    s.w = work_of_tile(x / SLICES, p.first_tile + gl_WorkGroupID.y);
    if (SPLIT != 0) s.w.part = (p.splits & 0xffff) + gl_WorkGroupID.z;
    s.first_dim = x % SLICES * OUT_SPAN;
    const uvec2 keys = tile_keys(s.w);
    s.q = query_tile(s.w);
    s.k = key_rows(s.w);
    s.v = value_rows(s.w);
    s.k.begin = s.v.begin = keys.x;
    s.k.end = s.v.end = s.end_key = keys.y;
    s.classes = class_index(s.w);
    s.k = tile_at(s.k, next_tile(s.classes, keys.x / TILE_KV * TILE_KV, s.end_key));
    return s;
}

// Without a test, where it exists whole.
Rows inner_tile_after(Rows t) {
    t.first += TILE_KV;
    t.origin = t.first;
    t.base = address_add(t.base, mul_wide(TILE_KV, t.stride));
    return t;
}

Rows tile_after(Slice s) { return tile_at(s.k, next_tile(s.classes, s.k.first + TILE_KV, s.end_key)); }

void set_offsets(Slice s) {
    clear_scores();
    multiply_all_qk();
    const bool finish = needs_finish(s.w, s.k.first);
    if (finish) finish_scores(s.w, s.k.first, tile_class(s.classes, s.k.first) == CLASS_MIXED);
    raise_offsets(finish ? 1.0 : p.scale_log2, 0.0);
}

// A tile of the first loop up to P; fetches K of the next, which is returned. `inner`, a constant: it has nothing to
// finish, and all rows of the next one exist.
Rows stale_p(Slice s, uint set_tile, bool inner) {
    const bool walks = inner && MASK == MASK_NONE;
    Rows next = tile_after(s);
    if (walks) next = inner_tile_after(s.k);
    clear_scores();
    const float factor = inner ? p.scale_log2 : 1.0;
    if (PARTS == 2) {
        if (inner) fetch_bias(s.k.first, 0);
        multiply_qk(0);
    }
    store_v();
    if (MASK != MASK_NONE) find_odd_v(s.k.first);
    if (next.first < s.end_key) {
        if (walks) fetch_inner_k(next);
        else fetch_k(next, 0);
    }
    if (inner) fetch_bias(s.k.first, PARTS - 1);
    if (PARTS == 2 && inner) exponentials(0, factor, inner);
    multiply_qk(PARTS - 1);
    if (!inner) finish_scores(s.w, s.k.first, tile_class(s.classes, s.k.first) == CLASS_MIXED);
    if (PARTS == 2 && !inner) exponentials(0, factor, inner);
    exponentials(PARTS - 1, factor, inner);
    if (outgrows() && s.k.first != set_tile) grown_tile = s.k.first + 1;
    return next;
}

// Whether it outgrew the offsets in any row of the workgroup.
bool has_outgrown(Slice s) {
    barrier();
    return grown_tile == s.k.first + 1;
}

// The rest of it; fetches V of the next.
void stale_pv(inout Slice s, Rows next, bool inner) {
    const bool walks = inner && MASK == MASK_NONE;
    if (MASK != MASK_NONE && odd_tile == s.k.first + 1) drop_unseen_v();
    if (PARTS == 2) multiply_pv(0);
    store_k();
    if (walks) s.v = inner_tile_after(s.v);
    else s.v = tile_at(s.v, next.first);
    if (next.first < s.end_key) {
        if (walks) fetch_inner_v(s.v, s.first_dim);
        else fetch_v(s.v, s.first_dim);
    }
    multiply_pv(PARTS - 1);
    add_tile_sums();
    s.k = next;
    barrier();
}

// Whether a tile's scores need nothing but what exponentials() does.
bool is_inner(Slice s, int first_inner, int last_inner, uint set_tile) {
    if (int(s.k.first) < first_inner || int(s.k.first) > last_inner) return false;
    if (MASK == MASK_NONE) return true;
    if (BIAS_AHEAD) return bias_per_key && s.k.first != set_tile;
    return tile_class(s.classes, s.k.first) == CLASS_VISIBLE;
}

void stale_loop(inout Slice s) {
    // Tiles that need not be finished begin from first_inner to last_inner, and the tile behind each exists whole.
    const ivec2 first_row = visible_keys(s.w, s.w.first_row), last_row = visible_keys(s.w, s.w.last_row);
    const int first_inner = last_row.x, last_inner = min(first_row.y - int(TILE_KV), int(s.end_key) - 2 * int(TILE_KV));
    const bool no_inner = SOFTCAP != 0 || WIDE_ROWS != 0;
    store_k();
    s.v = tile_at(s.v, s.k.first);
    fetch_v(s.v, s.first_dim);
    uint set_tile = s.k.first;
    bool outgrown;
    if (thread == 0) odd_tile = 0;
    find_bias(s.w);
    [[dont_unroll]] do {
        if (thread == 0) large_scores = 0;  // all have read it, before the last barrier
        barrier();
        if (thread == 0) grown_tile = 0;  // read after the next barrier only
        set_offsets(s);
        if (has_large_offset()) large_scores = 1;
        barrier();
        const bool inner_ones = !no_inner && large_scores == 0;
        outgrown = false;
        [[dont_unroll]] while (s.k.first < s.end_key && !outgrown) {
            [[dont_unroll]] while (inner_ones && is_inner(s, first_inner, last_inner, set_tile)) {
                const Rows next = stale_p(s, set_tile, true);
                outgrown = has_outgrown(s);
                if (outgrown) break;
                stale_pv(s, next, true);
            }
            if (outgrown || s.k.first >= s.end_key) break;
            const Rows next = stale_p(s, set_tile, false);
            outgrown = has_outgrown(s);
            if (!outgrown) stale_pv(s, next, false);
        }
        if (outgrown) {
            set_tile = s.k.first;
            s.v = tile_at(s.v, s.k.first);
            fetch_v(s.v, s.first_dim);
        }
    } while (outgrown);
}

void running_loop(inout Slice s) {
    [[dont_unroll]] while (s.k.first < s.end_key) {
        if (MASK != MASK_NONE) forget_seen();
        clear_scores();
        [[dont_unroll]] for (uint chunk = 0; chunk < CHUNKS; chunk++) {
            if (chunk > 0) barrier();
            store_k();
            if (CHUNKS > 1) {
                fetch_lying_q(s.q, chunk);
                store_lying_q();
            }
            barrier();
            if (chunk + 1 < CHUNKS) fetch_k(s.k, chunk + 1);
            else fetch_v(tile_at(s.v, s.k.first), s.first_dim);
            multiply_all_qk();
        }
        const bool finish = needs_finish(s.w, s.k.first);
        if (finish) finish_scores(s.w, s.k.first, tile_class(s.classes, s.k.first) == CLASS_MIXED);
        const float factor = finish ? 1.0 : p.scale_log2;
        raise_offsets(factor, GROWTH);
        if (PARTS == 2) exponentials(0, factor, false);
        exponentials(PARTS - 1, factor, false);
        add_tile_sums();
        if (MASK != MASK_NONE) {
            mark_seen();
            barrier();
            store_seen_v();
        } else {
            store_v();
        }
        s.k = tile_after(s);
        barrier();
        if (s.k.first < s.end_key) fetch_k(s.k, 0);
        if (PARTS == 2) multiply_pv(0);
        multiply_pv(PARTS - 1);
    }
}

// The result of block r: statistics from where they are, the output through the subgroup's share of the pool, as many tiles
// at a time as fit; an item is 8 elements of a row.
const uint OUT_FIT = (SHARE / M - 1) / (N / 4), OUT_PIECE = OUT_TILES < OUT_FIT ? OUT_TILES : OUT_FIT;
const uint OUT_VECS = OUT_PIECE * N / 8, OUT_STRIDE = OUT_VECS * 2 | 1;
const uint OUT_ITEMS = MATRIX_STEPS(M * OUT_VECS, SUBGROUP_SIZE);

void store8_out(RowStart at, uint d, vec4 low, vec4 high) {
    if (SPLIT == 0 && WIDE_LOADS == 2 && d + 8 <= HEAD_DIM_V) {
        store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, low, high);
    } else {
        store_out(at, d, low);
        store_out(at, d + 4, high);
    }
}

void store_piece(Slice s, Rows o, uint r, uint first_tile, uint at) {
    FOR_EACH(t, OUT_ITEMS) {
        const uint i = t * SUBGROUP_SIZE + lane, row = s.w.first_row + subgroup_row + r * M + i / OUT_VECS;
        const uint d = first_tile * N + i % OUT_VECS * 8, from = at + i / OUT_VECS * OUT_STRIDE + i % OUT_VECS * 2;
        // Of the last piece, tiles may be missing: what lies there is not of this slice.
        if ((M * OUT_VECS % SUBGROUP_SIZE == 0 || i < M * OUT_VECS) && row <= s.w.last_row && d < OUT_SPAN)
            store8_out(out_row(s.w, o, row), s.first_dim + d, uintBitsToFloat(pool[from]), uintBitsToFloat(pool[from + 1]));
    }
}

void store_block(Slice s, Rows o, uint r, ACCUMULATOR places) {
    const uint at = subgroup * SHARE;
    float scale[SLOTS];
    FOR_EACH(x, SLOTS) scale[x] = row_sum[r][x] > 0 ? 1 / row_sum[r][x] : 0;
    FOR_EACH(e, ELEMENTS) {
        const uvec2 place = place_of(places, e);
        const uint row = s.w.first_row + subgroup_row + r * M + place.x;
        if (place.y == 0 && row <= s.w.last_row && s.first_dim == 0)
            store_statistics(s.w, row, row_offset[r][slot(e)], row_sum[r][slot(e)]);
    }
    for (uint first = 0; first < OUT_TILES; first += OUT_PIECE) {
        FOR_EACH(n, OUT_TILES)
            if (n >= first && n < first + OUT_PIECE) {
                FOR_EACH(e, ELEMENTS) acc[r * OUT_TILES + n][e] *= scale[slot(e)];
                coopMatStore(acc[r * OUT_TILES + n], pool, at + (n - first) * N / 4, OUT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
        subgroupBarrier();
        store_piece(s, o, r, first, at);
        subgroupBarrier();
    }
}

void store_rows(Slice s) {
    const Rows o = out_tile(s.w);
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS) sum_along_rows(row_sum[r]);
    barrier();  // from the pool's map to equal shares of it
    FOR_EACH(r, ROW_BLOCKS) store_block(s, o, r, places);
}

void main() {
    Slice s = find_slice();
    const bool any = s.k.first < s.end_key;
    if (any) {
        fetch_k(s.k, 0);
        fetch_held_q(s.q);
        if (CHUNKS == 1) fetch_lying_q(s.q, 0);
        hold_q();
        barrier();
        if (CHUNKS == 1) store_lying_q();
        clear_padding();
    }
    write_places();
    softmax_begin();
    if (any && RUNNING_MAX != 0) running_loop(s);
    else if (any) stale_loop(s);
    barrier();
    store_rows(s);
}
