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
//       S = Q . K^T;  finish it where some own row does not see all of it;  P = 2^(S * scale - offset);  tile_sum = rowsum(P)
//       if any tile_sum > 2^14 here: raise the flag
//       barrier;  leave if the flag is up
//       the next K -> shared;  fetch its V
//       O += P . V;  row_sum += tile_sum;  barrier
//   while left by the flag
//
// A subgroup whose rows see nothing of a tile leaves out its products where it may (sees()).
//
// With PARTS = 2, half of an inner tile's keys are multiplied before V is staged, half behind it: P of the first half is made
// while S of the second is. A float mask is fetched while P . V of the tile before is computed, and is what S begins as.
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
    uint end_key;
    int first_inner, last_inner;  // tiles that begin from here to here exist whole, within every row's bounds; without a
                                  // mask, the next one too or not at all
    // With a mask:
    Classes classes;
    uint next_key;               // of the tile behind this one
    bool visible, next_visible;  // whether the mask changes nothing: in this tile, in the next
};

void find_next(inout Slice s, uint from) {
    s.next_key = next_in(s.classes, from, s.end_key);
    s.next_visible = is_visible(s.classes, s.next_key);
}
uint next_first(Slice s) { return MASK == MASK_NONE ? s.k.first + TILE_KV : s.next_key; }

void go_on(inout Slice s, Rows next) {
    s.k = next;
    s.visible = s.next_visible;
    if (MASK != MASK_NONE) find_next(s, next.first + TILE_KV);
}

void go_to_first(inout Slice s) {
    find_next(s, s.k.begin / TILE_KV * TILE_KV);
    go_on(s, tile_at(s.k, s.next_key));
}

// Heads (times SLICES) and query tiles of the grid: all tiles of a section of the heads first, of which caches hold K and V.
// Under a bound the last tiles are the shortest, and level what long ones leave: of these a section needs some.
uvec2 place_in_grid() {
    const uvec2 at = gl_WorkGroupID.xy, grid = gl_NumWorkGroups.xy;
    const uint unit = (PACK != 0 ? 1 : group_size()) * SLICES;  // what shares K and V
    const float kib = float(p.seqlen_kv) * ((HEAD_DIM_QK + HEAD_DIM_V) * ELEMENT_BYTES / 1024.0);
    if (SECTION == 0 || float(SECTION) * unit >= kib * float(grid.x) || float(grid.x) * float(grid.y) > 4e9) return at;
    uint wide = max(1u, uint(SECTION / kib)) * unit;
    if (p.bound_hi < int(p.seqlen_kv) - 1 || p.bound_lo > -int(p.seqlen_q)) wide = max(wide, MATRIX_STEPS(LEVEL / grid.y, unit) * unit);
    if (wide >= grid.x) return at;
    const uint i = at.y * grid.x + at.x, first = i / (wide * grid.y) * wide, rest = i % (wide * grid.y);
    const uint width = min(wide, grid.x - first);
    return uvec2(first + rest % width, rest / width);
}

Slice find_slice() {
    Slice s;
    const uvec2 place = place_in_grid();
    const uint x = p.first_head + place.x;
    s.w = work_of_tile(x / SLICES, p.first_tile + place.y);
    if (SPLIT != 0) s.w.part = (p.splits & 0xffff) + gl_WorkGroupID.z;
    s.first_dim = x % SLICES * OUT_SPAN;
    const uvec2 keys = tile_keys(s.w);
    s.q = query_tile(s.w);
    s.k = key_rows(s.w);
    s.v = value_rows(s.w);
    s.k.begin = s.v.begin = keys.x;
    s.k.end = s.v.end = s.end_key = keys.y;
    s.classes = classes_of(s.w);
    const ivec2 first_row = visible_keys(s.w, s.w.first_row), last_row = visible_keys(s.w, s.w.last_row);
    s.first_inner = last_row.x;
    s.last_inner = min(first_row.y, int(s.end_key)) - int(TILE_KV);
    if (MASK == MASK_NONE && s.end_key % TILE_KV != 0) s.last_inner = min(s.last_inner, int(s.end_key) - 2 * int(TILE_KV));
    go_to_first(s);
    return s;
}

// Without a test, where it exists whole.
Rows inner_tile_after(Rows t) {
    t.first += TILE_KV;
    t.origin = t.first;
    t.base = address_add(t.base, mul_wide(TILE_KV, t.stride));
    return t;
}

// Whether the mask of a tile is fetched ahead.
bool is_biased(Slice s, uint first_key) {
    return inverse_scale != 0 && int(first_key) >= s.first_inner && int(first_key) <= s.last_inner;
}

// Whether its scores need nothing but what exponentials() does, and the next tile's rows no test: they exist, and no mask
// hides one entirely, or what it hides is finite as far as we know.
bool is_inner(Slice s) {
    const bool lies_inner = int(s.k.first) >= s.first_inner && int(s.k.first) <= s.last_inner;
    if (MASK == MASK_NONE || !lies_inner) return lies_inner;
    if (s.next_key < s.end_key && s.next_key + TILE_KV > s.end_key) return false;
    if (BIAS_AHEAD) return inverse_scale != 0 && bias_aligned && !careful;
    return s.visible && (s.next_visible || s.next_key >= s.end_key);
}

// The scores of a tile, with or without its mask fetched; what they are to be multiplied by.
float score_tile(Slice s, bool biased) {
    if (biased) fetch_any_bias(s.k.first);
    else no_bias();
    begin_scores();
    multiply_all_qk();
    const bool finish = !biased && needs_finish(s.w, s.k.first);
    if (finish) finish_scores(s.w, s.k.first, !s.visible);
    return finish ? 1.0 : p.scale_log2;
}

// Whether scores that begin as a mask are too large for it, in any row of the workgroup. No offset has been raised by them.
bool must_finish(float factor) {
    if (has_large_maximum(factor)) large_scores = 1;
    barrier();
    return large_scores != 0;
}

// A tile of the first loop up to P; fetches K of the next, which is returned.
Rows inner_p(Slice s) {
    Rows next = tile_at(s.k, next_first(s));
    if (MASK == MASK_NONE) next = inner_tile_after(s.k);
    begin_scores();
    if (PARTS == 2) multiply_qk(0);
    store_v();
    if (next.first < s.end_key) fetch_inner_k(next);
    if (PARTS == 2) exponentials(0, p.scale_log2);
    multiply_qk(PARTS - 1);
    exponentials(PARTS - 1, p.scale_log2);
    return next;
}

// The rest of it; fetches V of the next, and its mask: without a branch, where the next has none this one's once more.
void inner_pv(inout Slice s, Rows next) {
    fetch_bias(mix(s.k.first, next.first, int(next.first) <= s.last_inner));
    if (PARTS == 2) multiply_pv(0);
    store_k();
    if (MASK == MASK_NONE) s.v = inner_tile_after(s.v);
    else s.v = tile_at(s.v, next.first);
    if (next.first < s.end_key) fetch_inner_v(s.v, s.first_dim);
    multiply_pv(PARTS - 1);
    add_tile_sums();
}

// The same of other tiles. `biased`: its mask was fetched, and it gives the same bits as an inner one. `finish_all`: whether
// its rows see all of it or not.
Rows boundary_p(Slice s, bool biased, bool finish_all) {
    const Rows next = tile_at(s.k, next_first(s));
    if (drops_unseen()) store_seen_v();
    else store_v();
    if (next.first < s.end_key) fetch_k(next, 0);
    no_tile_sums();
    if (sees(s.w, s.k.first)) {
        if (!biased) no_bias();
        begin_scores();
        multiply_all_qk();
        const bool finish = !biased && (finish_all || needs_finish(s.w, s.k.first));
        if (finish) finish_scores(s.w, s.k.first, !s.visible);
        const float factor = finish ? 1.0 : p.scale_log2;
        if (PARTS == 2) exponentials(0, factor);
        exponentials(PARTS - 1, factor);
    }
    return next;
}

void boundary_pv(inout Slice s, Rows next) {
    if (is_biased(s, next.first)) fetch_any_bias(next.first);
    if (drops_unseen() && next.first < s.end_key) find_seen(s.w, next.first);
    if (drops_unseen()) store_seen_k();
    else store_k();
    s.v = tile_at(s.v, next.first);
    if (next.first < s.end_key) fetch_v(s.v, s.first_dim);
    if (sees(s.w, s.k.first)) {
        multiply_all_pv();
        add_tile_sums();
    }
}

// Raises the flag where a tile has outgrown the offsets, which were set from `set_tile`; whether any row's has.
bool leaves_loop(Slice s, uint set_tile) {
    if (outgrows()) {
        if (MASK != MASK_NONE && has_odd_sum()) odd_result = 1;
        if (s.k.first != set_tile) grown_tile = s.k.first + 1;
    }
    barrier();
    return grown_tile == s.k.first + 1;
}

void stale_loop(inout Slice s) {
    const bool no_inner = SOFTCAP != 0 || WIDE_ROWS != 0;
    if (drops_unseen()) {
        find_seen(s.w, s.k.first);
        store_seen_k();
    } else {
        store_k();
    }
    s.v = tile_at(s.v, s.k.first);
    fetch_v(s.v, s.first_dim);
    uint set_tile = s.k.first;
    bool outgrown, finish_all = false;
    find_bias(s.w);
    [[dont_unroll]] do {
        if (thread == 0) large_scores = 0;  // all have read it, before the last barrier
        barrier();
        if (thread == 0) grown_tile = 0;  // read after the next barrier only
        const bool biased = !finish_all && is_biased(s, s.k.first);
        const float factor = score_tile(s, biased);
        outgrown = biased && must_finish(factor);
        if (outgrown) {  // once more, finished
            finish_all = true;
            barrier();
            continue;
        }
        raise_offsets(factor, 0.0);
        if (has_large_offset()) large_scores = 1;
        barrier();
        const bool inner_ones = !no_inner && !finish_all && large_scores == 0;
        finish_all = false;
        [[dont_unroll]] while (s.k.first < s.end_key) {
            [[dont_unroll]] while (inner_ones && s.k.first < s.end_key && is_inner(s)) {
                const Rows next = inner_p(s);
                outgrown = leaves_loop(s, set_tile);
                if (outgrown) break;
                inner_pv(s, next);
                go_on(s, next);
                barrier();
            }
            if (outgrown || s.k.first >= s.end_key) break;
            const Rows next = boundary_p(s, inner_ones && is_biased(s, s.k.first), !inner_ones);
            outgrown = leaves_loop(s, set_tile);
            if (outgrown) break;
            boundary_pv(s, next);
            go_on(s, next);
            barrier();
        }
        if (outgrown) {
            set_tile = s.k.first;
            s.v = tile_at(s.v, s.k.first);
            fetch_v(s.v, s.first_dim);
        }
    } while (outgrown);
}

// Once or, where a mask hides what is not finite, twice.
void stale_loops(inout Slice s) {
    if (MASK != MASK_NONE && thread == 0) odd_result = 0;
    bool again;
    [[dont_unroll]] do {
        stale_loop(s);
        again = MASK != MASK_NONE && !careful && has_odd_result();
        if (again) {
            careful = true;
            softmax_begin();
            go_to_first(s);
            fetch_k(s.k, 0);
        }
    } while (again);
}

#ifndef BIAS
void running_loop(inout Slice s) {  // PARTS is 1
    [[dont_unroll]] while (s.k.first < s.end_key) {
        if (MASK != MASK_NONE) forget_seen();
        begin_scores();
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
            multiply_qk(0);
        }
        const bool finish = needs_finish(s.w, s.k.first);
        if (finish) finish_scores(s.w, s.k.first, !s.visible);
        const float factor = finish ? 1.0 : p.scale_log2;
        raise_offsets(factor, GROWTH);
        exponentials(0, factor);
        add_tile_sums();
        if (MASK != MASK_NONE) {
            mark_seen();
            barrier();
            store_seen_v();
        } else {
            store_v();
        }
        go_on(s, tile_at(s.k, next_first(s)));
        barrier();
        if (s.k.first < s.end_key) fetch_k(s.k, 0);
        multiply_pv(0);
    }
}
#endif

// The result of block r: statistics from where they are, the output through the subgroup's share of the pool, in as
// few equal pieces as fit; an item is 8 elements of a row.
const uint OUT_UNIT = OUT_ROUNDED ? 8 : 4;  // elements of a vec4 of the pool
const uint OUT_FIT = (SHARE / M - 1) * OUT_UNIT / N;
const uint OUT_PIECES = MATRIX_STEPS(OUT_TILES, OUT_FIT), OUT_PIECE = MATRIX_STEPS(OUT_TILES, OUT_PIECES);
const uint OUT_VECS = OUT_PIECE * N / 8, OUT_STRIDE = OUT_PIECE * N / OUT_UNIT | 1;
const uint OUT_ITEMS = MATRIX_STEPS(M * OUT_VECS, SUBGROUP_SIZE);

void store_floats8(RowStart at, uint d, vec4 low, vec4 high, bool whole) {
    if (whole) {
        store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, low, high);
    } else {
        store_out(at, d, low);
        store_out(at, d + 4, high);
    }
}

void store8_out(RowStart at, uint d, uint from) {
    const bool whole = SPLIT == 0 && WIDE_LOADS == 2 && d + 8 <= HEAD_DIM_V;
#if defined(F16) || defined(BF16)
    if (OUT_ROUNDED && whole) store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, pool[from]);
    else if (OUT_ROUNDED) store_floats8(at, d, floats_of(pool[from].xy), floats_of(pool[from].zw), false);
    else
#endif
        store_floats8(at, d, uintBitsToFloat(pool[from]), uintBitsToFloat(pool[from + 1]), whole);
}

void store_piece(Slice s, Rows o, uint r, uint first_tile, uint at) {
    FOR_EACH(t, OUT_ITEMS) {
        const uint i = t * SUBGROUP_SIZE + lane, row = s.w.first_row + subgroup_row + r * M + i / OUT_VECS;
        const uint d = first_tile * N + i % OUT_VECS * 8;
        // Of the last piece, tiles may be missing: what lies there is not of this slice.
        if ((M * OUT_VECS % SUBGROUP_SIZE == 0 || i < M * OUT_VECS) && row <= s.w.last_row && d < OUT_SPAN)
            store8_out(out_row(s.w, o, row), s.first_dim + d, at + i / OUT_VECS * OUT_STRIDE + i % OUT_VECS * (8 / OUT_UNIT));
    }
}

void store_block(Slice s, Rows o, uint r, ACCUMULATOR places) {
    const uint at = subgroup * SHARE;
    float scale[SLOTS];
    FOR_EACH(x, SLOTS) scale[x] = row_sum[r][x] > 0 ? 1 / row_sum[r][x] : 0;
    FOR_EACH(e, ELEMENTS)
        if (!KNOWN || step_column(e) == 0) {
            const uvec2 place = place_of(places, e);
            const uint row = s.w.first_row + subgroup_row + r * M + place.x;
            if (place.y == 0 && row <= s.w.last_row && s.first_dim == 0)
                store_statistics(s.w, row, row_offset[r][slot(e)], row_sum[r][slot(e)]);
        }
    FOR_EACH(piece, OUT_PIECES) {
        const uint first = piece * OUT_PIECE;
        FOR_EACH(n, OUT_TILES)
            if (n >= first && n < first + OUT_PIECE) {
                const uint to = at + (n - first) * N / OUT_UNIT;
                FOR_EACH(e, ELEMENTS) acc[r * OUT_TILES + n][e] *= scale[slot(e)];
                if (OUT_ROUNDED) put_rounded(acc[r * OUT_TILES + n], to, OUT_STRIDE);
                else coopMatStore(acc[r * OUT_TILES + n], pool, to, OUT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
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
#ifndef BIAS
    if (any && RUNNING_MAX != 0) running_loop(s);
    else
#endif
        if (any) stale_loops(s);
    barrier();
    store_rows(s);
}
