// The matrix kernel's loop with stale offsets: forward_matrix.comp has its pseudocode. A row's offset is what the
// exponents of its weights are relative to.
shared uint grown_tile;    // the first key of the tile that outgrew its offsets, plus 1; 0 if none has
shared uint large_scores;  // 1: every tile is finished, which rounds scores first
shared uint far_caps;      // 1: every tile is finished, because some score was too large for cap_scores()

// True if the mask of a tile is fetched ahead.
bool is_biased(TileCursor c, uint first_key) {
    return inverse_scale != 0 && int(first_key) >= c.first_inner && int(first_key) <= c.last_inner &&
           !terms_change(c.w, tile_rows(c.w), keys_from(first_key));
}

// True if the tile's scores need nothing but what they begin as, cap_scores() and exponentials(), and the next tile's
// keys need no test: they exist, and no mask hides one of them from all rows, or what it hides is finite as far as we
// know.
bool is_inner(TileCursor c) {
    const bool lies_inner = int(c.k.first) >= c.first_inner && int(c.k.first) <= c.last_inner &&
                            !terms_change(c.w, tile_rows(c.w), keys_from(c.k.first));
    if (!SKIPS_TILES || !lies_inner) return lies_inner;
    if (c.next_key < c.end_key && c.next_key + TILE_KV > c.end_key) return false;
    if (BIAS_AHEAD) return inverse_scale != 0 && bias_aligned && !zero_hidden_keys;
    return c.is_plain && (c.next_plain || c.next_key >= c.end_key);
}

// Finds the scores of a tile; `biased`: they begin as its mask. Returns what the scores are to be multiplied by.
float score_tile(TileCursor c, bool biased) {
    const bool changes = HAS_SOFTCAP || needs_finishing(c.w, own_rows(c.w), keys_from(c.k.first), !c.is_plain);
    const bool finish = !biased && changes;
    if (biased) fetch_any_bias(c.k.first);
    else no_bias();
    begin_tile(c.w, c.k.first, !finish);
    begin_scores();
    multiply_all_qk();
    if (finish || (biased && zero_hidden_keys)) finish_scores(c.w, c.k.first, !c.is_plain, biased);
    return finish ? 1.0 : push.score_scale;
}

// True if scores that begin as a mask are too large for that, in any row of the workgroup. No offset has been raised
// yet.
bool must_finish(float factor) {
    if (has_large_maximum(factor)) large_scores = 1;
    barrier();
    return large_scores != 0;
}

// Caps the scores of a half of the keys of an inner tile, which are q.k, and scales them (lib/softcap.glsl).
void cap_scores(uint half_index) {
    if (!HAS_SOFTCAP) return;
    if (half_index == 0) largest_square = 0;
    FOR_HALF(n, half_index, KEY_TILES)
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const float x = scores[r * KEY_TILES + n][e], square = x * x;
                largest_square = max(largest_square, floatBitsToUint(square));
                scores[r * KEY_TILES + n][e] = x * CAP_SCALE(square);
            }
}
void cap_all_scores() {
    if (HALVES == 2) cap_scores(0);
    cap_scores(HALVES - 1);
}
// Scores that were not finished have to be multiplied by this.
#define LEFT_SCALE (HAS_SOFTCAP ? 1.0 : push.score_scale)

// Computes P of an inner tile, and fetches K of the tile that follows, which is returned.
Rows inner_p(TileCursor c) {
    Rows next = tile_at(c.k, next_first(c));
    if (!HIDES_KEYS) next = next_whole_tile(c.k, step_to_next(c));
    begin_tile(c.w, c.k.first, true);
    begin_scores();
    if (HALVES == 2) multiply_qk(0);
    store_v();
    if (next.first < c.end_key) fetch_inner_k(next);
    if (HALVES == 2) {
        cap_scores(0);
        exponentials(0, LEFT_SCALE, false);
    }
    multiply_qk(HALVES - 1);
    cap_scores(HALVES - 1);
    exponentials(HALVES - 1, LEFT_SCALE, false);
    return next;
}

// Adds P . V of an inner tile, and fetches V and the mask of the tile that follows. There is no branch: if the mask of
// that tile is not wanted, the mask of this one is fetched once more.
void inner_pv(inout TileCursor c, Rows next) {
    fetch_bias(mix(c.k.first, next.first, int(next.first) <= c.last_inner));
    if (HALVES == 2) multiply_pv(0);
    store_k();
    if (!HIDES_KEYS) c.v = next_whole_tile(c.v, step_to_next(c));
    else c.v = tile_at(c.v, next.first);
    if (next.first < c.end_key) fetch_inner_v(c.v, c.first_dim);
    multiply_pv(HALVES - 1);
    add_tile_sums();
}

#ifdef TURNED
// Sets P of a tile that the subgroup's rows do not see to 0. It is never multiplied, but RADV cannot know that: without
// this it carries the last tile's P through the loop, and moves it between registers in every pass (by tools/gate
// --loops, at D64 609 instead of 599 clocks on navi31, 652 instead of 635 on gfx1201).
void no_p() { FOR_EACH(r, ROW_BLOCKS) FOR_EACH(n, KEY_TILES) put_p(r, n, ZEROS); }
#else
#define no_p()
#endif

// Computes P of a tile that is no inner one, and fetches K of the tile that follows. `biased`: its mask was fetched,
// and it gives the same bits as an inner tile. `finish_all`: it is finished even if its rows see all of it.
Rows boundary_p(TileCursor c, bool biased, bool finish_all) {
    const Rows next = tile_at(c.k, next_first(c));
    if (drops_unseen()) store_seen_v();
    else store_v();
    if (next.first < c.end_key) fetch_k(next, 0);
    no_tile_sums();
    largest_square = 0;
    no_p();
    if (sees(c.w, c.k.first)) {
        const bool changes = needs_finishing(c.w, own_rows(c.w), keys_from(c.k.first), !c.is_plain);
        const bool finish = !biased && (finish_all || changes);
        if (!biased) no_bias();
        begin_tile(c.w, c.k.first, !finish);
        begin_scores();
        multiply_all_qk();
        if (finish || (biased && zero_hidden_keys)) finish_scores(c.w, c.k.first, !c.is_plain, biased);
        if (!finish) cap_all_scores();
        const float factor = finish ? 1.0 : LEFT_SCALE;
        if (HALVES == 2) exponentials(0, factor, finish);
        exponentials(HALVES - 1, factor, finish);
    }
    return next;
}

void boundary_pv(inout TileCursor c, Rows next) {
    if (is_biased(c, next.first)) fetch_any_bias(next.first);
    if (drops_unseen() && next.first < c.end_key) find_seen(c.w, next.first);
    if (drops_unseen()) store_seen_k();
    else store_k();
    c.v = tile_at(c.v, next.first);
    if (next.first < c.end_key) fetch_v(c.v, c.first_dim);
    if (sees(c.w, c.k.first)) {
        multiply_all_pv();
        add_tile_sums();
    }
}

// Sets offsets from the tiles at whose keys the rows stand, or which are the nearest of the split. Where a slope adds
// less to a key the farther it is, offsets that are set from the first tile would be outgrown by each one that follows.
void set_offsets_near(TileCursor c) {
    const uint first_of_loop = c.k.first;
    const int first = position_of(c.w, c.w.first_row), last = position_of(c.w, c.w.last_row);
    const int least = int(c.k.begin), most = int(c.end_key) - 1;
    uint end = uint(clamp(last, least, most));
    c.is_plain = false;
    uint at = uint(clamp(first, least, most)) / TILE_KV * TILE_KV;
    if (is_gentle()) end = at;
    // Other forms gained nothing (H200, ALiBi, D128, N 4,096, causal; time over that without slopes). If the next tile
    // is fetched while this one is multiplied: 1.19 instead of 1.14. If the loop begins at these tiles, and goes on
    // behind the last key with the first one: 1.13 instead of 1.15, but not causal 1.13 instead of 1.12. If no offsets
    // are set from the first tile, of which the first rows may see more keys than of these: 1.20. Offsets from each
    // row's own key alone, a dot product in place of these tiles, are a gain at D64 (1.03 instead of 1.11) and a loss
    // here (1.17 instead of 1.14), where they leave the loop fewer registers. A slope that is found before Q is
    // fetched: 1.43 instead of 1.19, with batch 1.
    [[dont_unroll]] for (; at <= end; at += TILE_KV) {
        c.k = tile_at(c.k, at);
        barrier();
        fetch_k(c.k, 0);
        store_k();
        barrier();
        raise_offsets(score_tile(c, false), 0.0);
    }
    barrier();
    fetch_k(tile_at(c.k, first_of_loop), 0);
}

// Raises the flag if this tile has outgrown the offsets of own rows, unless they were set from it (`set_tile`). True
// if the tile has outgrown those of any row.
bool leaves_loop(TileCursor c, uint set_tile) {
    if (outgrows()) {
        if (HIDES_KEYS && has_nan_sum()) saw_nonfinite = 1;
        if (c.k.first != set_tile) grown_tile = c.k.first + 1;
    }
    if (passes_quick_cap()) {
        far_caps = 1;
        grown_tile = c.k.first + 1;
    }
    barrier();
    return grown_tile == c.k.first + 1;
}

void loop_with_stale_offsets(inout TileCursor c) {
    find_slope(c.w);
    if (SHIFTS_ROWS) set_offsets_near(c);
    if (drops_unseen()) {
        find_seen(c.w, c.k.first);
        store_seen_k();
    } else {
        store_k();
    }
    c.v = tile_at(c.v, c.k.first);
    fetch_v(c.v, c.first_dim);
    uint set_tile = c.k.first;
    bool outgrown, finish_all = false;
    find_bias(c.w);
    if (HAS_SOFTCAP) find_quick_cap();
    if (HAS_SOFTCAP && thread == 0) far_caps = quick_cap_holds ? 0 : 1;
    [[dont_unroll]] do {
        if (thread == 0) large_scores = 0;  // all have read it, before the last barrier
        barrier();
        if (thread == 0) grown_tile = 0;  // read after the next barrier only
        const bool biased = !finish_all && is_biased(c, c.k.first);
        const float factor = score_tile(c, biased);
        outgrown = biased && must_finish(factor);
        if (outgrown) {  // once more, finished
            finish_all = true;
            barrier();
            continue;
        }
        raise_offsets(factor, 0.0);
        if (has_large_offset()) large_scores = 1;
        barrier();
        const bool far = HAS_SOFTCAP && far_caps != 0;
        const bool inner_ones = !FINISHES_ALL_TILES && !finish_all && large_scores == 0 && !far;
        finish_all = false;
        [[dont_unroll]] while (c.k.first < c.end_key) {
            [[dont_unroll]] while (inner_ones && c.k.first < c.end_key && is_inner(c)) {
                const Rows next = inner_p(c);
                outgrown = leaves_loop(c, set_tile);
                if (outgrown) break;
                inner_pv(c, next);
                go_on(c, next);
                barrier();
            }
            if (outgrown || c.k.first >= c.end_key) break;
            const Rows next = boundary_p(c, inner_ones && is_biased(c, c.k.first), !inner_ones);
            outgrown = leaves_loop(c, set_tile);
            if (outgrown) break;
            boundary_pv(c, next);
            go_on(c, next);
            barrier();
        }
        if (outgrown) {
            set_tile = c.k.first;
            c.v = tile_at(c.v, c.k.first);
            fetch_v(c.v, c.first_dim);
        }
    } while (outgrown);
}

// Runs the loop. If a masked key or value was not finite, runs it again with hidden keys zeroed.
void attend(inout TileCursor c) {
    if (HIDES_KEYS && thread == 0) saw_nonfinite = 0;
    bool again;
    [[dont_unroll]] do {
        loop_with_stale_offsets(c);
        again = HIDES_KEYS && !zero_hidden_keys && has_nonfinite_result();
        if (again) {
            zero_hidden_keys = true;
            softmax_begin();
            go_to_first(c);
            fetch_k(c.k, 0);
        }
    } while (again);
}

bool is_spoiled(uint row) { return false; }
