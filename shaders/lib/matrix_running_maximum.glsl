// The matrix kernel's loop with a running maximum: forward_matrix.comp has its pseudocode. HALVES is 1.
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
        if (MASK_KIND != MASK_NONE) {
            mark_seen();
            barrier();
            store_seen_v();
        } else {
            store_v();
        }
        go_on(c, tile_at(c.k, next_first(c)));
        barrier();
        if (c.k.first < c.end_key) fetch_k(c.k, 0);
        multiply_pv(0);
    }
}
