#version 460
// FlashAttention forward on matrix units: VK_KHR_cooperative_matrix, 16-bit operands, float32 accumulators.
// Dao et al., arXiv:2205.14135, and Dao, arXiv:2307.08691 (queries outside, keys inside).
//
// There are two loops, each in modules of its own. The first one has no maximum, no reduction and no rescaling in its
// common path (lib/matrix_stale_offsets.glsl). A row's offset, which its exponents are relative to, stays what it was
// set to: any offset within 2^14 of the true maximum gives the same softmax. A tile whose part of a row sum outgrows
// that is left before P was used, and offsets are set from it:
//
//   K of the first tile -> shared
//   do:
//     S = Q . K^T;  offset = max(offset, rowmax(S));  O, row_sum *= 2^(change)
//     for each tile of keys that some row of the query tile sees, from this one on:
//       V -> shared;  fetch the next K
//       S = Q . K^T;  finish it where some own row does not see all of it
//       P = 2^(S * scale - offset);  tile_sum = rowsum(P);  if any tile_sum > 2^14 here: raise the flag
//       barrier;  leave if the flag is up
//       the next K -> shared;  fetch its V
//       O += P . V;  row_sum += tile_sum;  barrier
//   while left by the flag
//
// With slopes of the distance, offsets are first set from the tiles of keys that the rows stand at, and S of a tile on
// one side of all rows begins as the slope (lib/quick_slopes.glsl). With a softcap, S is capped in the loop by a quick
// polynomial; a tile that it does not hold for raises the flag, too, and from there on all tiles are finished.
//
// A subgroup whose rows see nothing of a tile leaves out its products where it may (sees()).
//
// With HALVES = 2, half of an inner tile's keys are multiplied before V is staged, half after it: P of the first half
// is made while S of the second is. A float mask is fetched while P . V of the tile before is computed, and is what S
// begins as (lib/matrix_bias.glsl).
//
// The second loop (macro RUNNING_MAX, lib/matrix_running_maximum.glsl) has a running maximum, stale by at most 2^8, so
// that a row's bits do not depend on its neighbours. It takes head dims in chunks. Masks: lib/matrix_mask.glsl.
//
//   for each tile:
//     S = 0;  for each CHUNK head dims:  K, and what of Q is not held, -> shared;  S += Q . K^T
//     finish;  where rowmax(S) > offset + 8: offset = rowmax(S), rescale;  P = 2^(S - offset)
//     V -> shared;  O += P . V;  row_sum += rowsum(P)
//
// A workgroup of one subgroup (few query rows, as in decoding) stages V where K was, if no row has padding and K is
// staged as a whole: there is a barrier more before V is staged and behind P . V. A multiprocessor has room for more of
// them then, which work while it waits. Where registers allow it, K and V are both fetched a tile ahead.
//
//   O /= rowsum over invocations;  lse = ln 2 * (offset + log2(row_sum))
//
// Scores and offsets are in base 2 here. With a float mask they are natural (lib/scores.glsl).
//
// Tile ownership: lib/matrix.glsl. A workgroup owns TILE_Q query rows of one head or, with packed heads, of all heads
// that share a kv head, and a slice of the head dims of V, against all keys or a split of them; combine.comp merges
// splits.
//
// Shared memory (one pool, in vec4 of eight 16-bit elements; strides odd):
//   TILE_KV x CHUNK of K    TILE_KV x OUT_SPAN of V (or in the place of K)    TILE_Q x what of Q is staged
//   places    0, 1, 2 ... to the larger of M and N, as floats, where the layout of accumulators is not known
//   scratch   of each subgroup: M x N floats, M x TILE_KV of P (as 16-bit accumulators: in their place); where the
//             layout is not known, or P goes through shared memory
//   before and after the loop, over all of it, an equal share for each subgroup: Q on its way in, O on its way out
//
// Beside it lie the flags of the first loop, and a bit for each key that a mask leaves to some row.
//
// One multiprocessor of an H200 bounds the tiles: 255 registers an invocation, 48 KiB for all its workgroups.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/forward_matrix.def"
#include "lib/as_push.glsl"
#ifndef RUNNING_MAX
#define QUICK_TERMS  // lib/score_facts.glsl
#define QUICK_CAP
#endif
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/forward_matrix.def"
} push;
#include "lib/matrix.glsl"
#include "lib/matrix_staging.glsl"
#include "lib/operand_layout.glsl"
#include "lib/mask.glsl"
#include "lib/matrix_softmax.glsl"
#include "lib/matrix_grid.glsl"
#include "lib/matrix_cursor.glsl"
#ifdef RUNNING_MAX
#include "lib/matrix_running_maximum.glsl"
#else
#include "lib/matrix_stale_offsets.glsl"
#endif
#include "lib/results.glsl"
#include "lib/matrix_results.glsl"

void main() {
    TileCursor cursor = find_cursor();
    const bool any = cursor.k.first < cursor.end_key;
    if (any) {
        fetch_k(cursor.k, 0);
        fetch_held_q(cursor.q);
        if (CHUNKS == 1) fetch_staged_q(cursor.q, 0);
        hold_q();
        barrier();
        if (CHUNKS == 1) store_staged_q();
        clear_padding();
    }
    write_places();
    find_offsets(cursor.k, cursor.v, cursor.first_dim);
    softmax_begin();
    if (any) attend(cursor);
    barrier();
    store_rows(cursor);
}
