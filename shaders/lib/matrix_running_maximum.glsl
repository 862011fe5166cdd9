// The matrix kernel's loop with a running maximum: forward_matrix.comp has its pseudocode. HALVES is 1.
//
// A product of matrices spreads an element of V that is not finite to all rows of the tile. With ISOLATES_ROWS such
// elements are staged as 0. If there were any, the rows that see such a key are searched behind the loop, and their
// output becomes NaN. Running the loop once more costs a quarter even where it never happens (H200, causal, D128: 1.43
// instead of 1.12 ms).
shared uint nonfinite[MATRIX_STEPS(TILE_KV, 32)];    // keys of a tile whose V is not finite, a bit each
shared uint spoiled_rows[MATRIX_STEPS(TILE_Q, 32)];  // rows of the tile that see such a key, a bit each
shared uint staged_nonfinite;                        // 1: such elements were staged as 0
const uint EXPONENT_PAIR = OPERAND_EXPONENT | OPERAND_EXPONENT << 16;
const uint EXPONENT_STEP = OPERAND_EXPONENT & -OPERAND_EXPONENT;

// The sign bits of the halves of a word that are not finite. An exponent of ones, and only that, carries into the sign.
uint nonfinite_halves(uint word) {
    return (word & EXPONENT_PAIR) + (EXPONENT_STEP | EXPONENT_STEP << 16) & 0x80008000u;
}
// Returns the sign bits of eight elements that are not finite, in one word: 0 if all are finite.
uint nonfinite_any(uvec4 eight) {
    return nonfinite_halves(eight.x) | nonfinite_halves(eight.y) | nonfinite_halves(eight.z) |
           nonfinite_halves(eight.w);
}

// Returns eight elements, those that are not finite replaced by 0.
uvec4 finite_part(uvec4 eight) {
    [[unroll]] for (uint i = 0; i < 4; i++) eight[i] &= ~((nonfinite_halves(eight[i]) >> 15) * 0xffff);
    return eight;
}
void store_finite_v() {
    uint dropped = 0;
    FOR_EACH(t, V_ITEMS) dropped |= nonfinite_any(value_operands(FETCHED_V[t]));
    if (dropped == 0) {
        store_v();
    } else {
        STORE_V(finite_part(value_operands(FETCHED_V[t])))
        staged_nonfinite = 1;
    }
}

// Marks the keys of a tile of V that are not finite, in any head dim.
void find_nonfinite(Rows v) {
    for (uint i = thread; i < MATRIX_STEPS(TILE_KV, 32); i += THREADS) nonfinite[i] = 0;
    barrier();
    [[dont_unroll]] for (uint i = thread; i < TILE_KV * MATRIX_STEPS(HEAD_DIM_V, 8); i += THREADS) {
        const uint key = i % TILE_KV, d = i / TILE_KV * 8;
        const uvec4 eight = value_operands(fetch_value8(value_row(v, v.first + key), d, HEAD_DIM_V, false));
        if (nonfinite_any(eight) != 0) atomicOr(nonfinite[key / 32], 1u << key % 32);
    }
    barrier();
}

// True if a row sees a marked key of the tile from first_key on.
bool sees_nonfinite(Terms terms, uint row, uint first_key) {
    bool sees_any = false;
    const ivec2 keys = visible_keys(terms.w, row);
    [[dont_unroll]] for (uint key = 0; key < TILE_KV; key++)
        if ((nonfinite[key / 32] >> key % 32 & 1) != 0)
            sees_any = sees_any || finished(0, terms, row, keys, int(first_key + key)) > NO_MAXIMUM;
    return sees_any;
}

bool spoils_rows = false;
bool is_spoiled(uint row) { return spoils_rows && (spoiled_rows[row / 32] >> row % 32 & 1) != 0; }

// Finds the rows of the tile that see a key whose V is not finite; store_rows() makes them NaN.
void find_spoiled_rows(TileCursor c) {
    const Terms terms = terms_of(c.w, true);
    for (uint i = thread; i < MATRIX_STEPS(TILE_Q, 32); i += THREADS) spoiled_rows[i] = 0;
    [[dont_unroll]] for (uint first = c.k.begin; first < c.end_key; first += TILE_KV) {
        find_nonfinite(tile_at(c.v, first));
        [[dont_unroll]] for (uint row = thread; row < TILE_Q; row += THREADS)
            if (sees_nonfinite(terms, min(c.w.first_row + row, c.w.last_row), first))
                atomicOr(spoiled_rows[row / 32], 1u << row % 32);
        barrier();
    }
}

const bool DROPS_UNSEEN = HIDES_KEYS && !ISOLATES_ROWS;  // keys of V

void loop_with_running_maximum(inout TileCursor c) {
    if (BOTH_AHEAD) fetch_v(tile_at(c.v, c.k.first), c.first_dim);
    [[dont_unroll]] while (c.k.first < c.end_key) {
        if (DROPS_UNSEEN) forget_seen();
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
            else if (!BOTH_AHEAD) fetch_v(tile_at(c.v, c.k.first), c.first_dim);
            else if (next_first(c) < c.end_key) fetch_k(tile_at(c.k, next_first(c)), 0);
            multiply_qk(0);
        }
        const bool finish = needs_finishing(c.w, own_rows(c.w), keys_from(c.k.first), !c.is_plain);
        if (finish) finish_scores(c.w, c.k.first, !c.is_plain, false);
        const float factor = finish ? 1.0 : push.score_scale;
        raise_offsets(factor, GROWTH);
        exponentials(0, factor, finish);
        add_tile_sums();
        if (DROPS_UNSEEN) {
            mark_seen();
            barrier();
        } else if (SHARES_PLACE) {
            barrier();
        }
        if (ISOLATES_ROWS) store_finite_v();
        else if (DROPS_UNSEEN) store_seen_v();
        else store_v();
        go_on(c, tile_at(c.k, next_first(c)));
        barrier();
        if (c.k.first < c.end_key) {
            if (BOTH_AHEAD) fetch_v(tile_at(c.v, c.k.first), c.first_dim);
            else fetch_k(c.k, 0);
        }
        multiply_pv(0);
        if (SHARES_PLACE) barrier();
    }
}

void attend(inout TileCursor c) {
    if (ISOLATES_ROWS && thread == 0) staged_nonfinite = 0;
    loop_with_running_maximum(c);
    barrier();
    spoils_rows = ISOLATES_ROWS && staged_nonfinite != 0;
    if (spoils_rows) find_spoiled_rows(c);
}
