// The matrix kernel's loop with a running maximum: forward_matrix.comp has its pseudocode. HALVES is 1.
//
// ISOLATES_ROWS: a product of matrices spreads what is not finite in V to all rows. So in tiles that hide keys from
// some rows, elements of V that are not finite are staged as 0, their keys are marked, and rows that see a marked key
// get an out of NaN at the end (row_spoiled).
shared uint nonfinite[MATRIX_STEPS(TILE_KV, 32)];  // keys of a tile, a bit each

// Zeroes what is not finite of eight elements of V, and marks their key.
uvec4 isolated(uvec4 eight, uint key) {
    bool found = false;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const bool low = (eight[i] & OPERAND_EXPONENT) == OPERAND_EXPONENT;
        const bool high = (eight[i] >> 16 & OPERAND_EXPONENT) == OPERAND_EXPONENT;
        eight[i] &= (low ? 0 : 0xffffu) | (high ? 0 : 0xffff0000u);
        found = found || low || high;
    }
    if (found) atomicOr(nonfinite[key / 32], 1u << key % 32);
    return eight;
}

void store_isolated_v() {
    for (uint i = thread; i < MATRIX_STEPS(TILE_KV, 32); i += THREADS) nonfinite[i] = 0;
    barrier();
    STORE(POOL_V, V_STRIDE, V_ITEMS, V_VECS,
          MASK_KIND == MASK_NONE || is_seen(row) ? isolated(operands_of(fetched[t]), row) : uvec4(0))
}

// Spoils the rows that see a marked key, by their scores.
void spoil_rows() {
    uint any_key = 0;
    FOR_EACH(i, MATRIX_STEPS(TILE_KV, 32)) any_key |= nonfinite[i];
    if (any_key == 0) return;
    const ACCUMULATOR places = read_places();
    FOR_EACH(e, ELEMENTS) {
        const uint column = place_of(places, e).y;
        FOR_EACH(n, KEY_TILES) {
            const uint key = key_at(n * N + column);
            FOR_EACH(r, ROW_BLOCKS)
                if ((nonfinite[key / 32] >> key % 32 & 1) != 0 && !(scores[r * KEY_TILES + n][e] <= NO_MAXIMUM))
                    row_spoiled[r][slot(e)] = uintBitsToFloat(NAN_BITS);
        }
    }
}

void attend(inout TileCursor c) {
    [[dont_unroll]] while (c.k.first < c.end_key) {
        if (MASK_KIND != MASK_NONE) forget_seen();
        begin_scores();
        [[dont_unroll]] for (uint chunk = 0; chunk < CHUNKS; chunk++) {
            if (chunk > 0) barrier();
            store_k();
            if (CHUNKS > 1) {
                fetch_staged_q(c.q, chunk);
                store_staged_q();
            }
            barrier();
            if (chunk + 1 < CHUNKS) fetch_k(c.k, chunk + 1);
            else fetch_v(tile_at(c.v, c.k.first), c.first_dim);
            multiply_qk(0);
        }
        const bool finish = needs_finishing(c.w, own_rows(c.w), c.k.first);
        if (finish) finish_scores(c.w, c.k.first, !c.visible);
        const float factor = finish ? 1.0 : push.scale_log2;
        raise_offsets(factor, GROWTH);
        exponentials(0, factor);
        add_tile_sums();
        const bool isolate = ISOLATES_ROWS && terms_finish(c.w, uvec2(c.w.first_row, c.w.last_row), c.k.first);
        if (MASK_KIND != MASK_NONE) {
            mark_seen();
            barrier();
        }
        if (isolate) store_isolated_v();
        else if (MASK_KIND != MASK_NONE) store_seen_v();
        else store_v();
        go_on(c, tile_at(c.k, next_first(c)));
        barrier();
        if (isolate) spoil_rows();
        if (c.k.first < c.end_key) fetch_k(c.k, 0);
        multiply_pv(0);
    }
}
