// Float masks of 16-bit elements in the matrix kernel, in modules of their own (macro BIAS). These need stale offsets,
// a known layout for the move of P, rows within 32-bit offsets and no softcap. In all other cases masks are added
// element by element (finish_scores).
//
// If a tile lies within the bounds, its mask is fetched while P . V of the tile before is computed, and S begins as the
// mask divided by the scale. The rounding error of that is in proportion to the scores: see LARGE_SCORE.
#ifdef BIAS
#define BIAS_AHEAD true
uint bias[ROW_BLOCKS * KEY_TILES * ELEMENTS / 2];  // elements 2 i and 2 i + 1 of an accumulator in a word
uint bias_row[ROW_BLOCKS][SLOTS];  // where this invocation's part of a row begins, in bytes from bias_base
uvec2 bias_base;
const uint BIAS_BYTES = IN_EIGHTS ? 16 : IN_WORDS ? 4 : 2;  // bytes of a mask that are loaded at a time
bool bias_aligned;                                          // true if the mask is aligned for such loads
float inverse_scale;                                        // 0: no tile's mask is fetched

void find_bias(Work w) {
    const MaskRows mask = mask_rows(w);
    bias_base = mask.base;
    bias_aligned = mask.base.x % BIAS_BYTES == 0;
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(e, ELEMENTS) {
            const uint row = min(w.first_row + subgroup_row + r * M + place_row(e), w.last_row);
            bias_row[r][slot(e)] = 2 * (mask_row(mask, row).at + key_at(place_column(0)));
        }
    const bool can_divide = push.score_scale > 1e-20 && push.score_scale < 1e20;
    inverse_scale = mask_key_step() != 0 && can_divide ? 1 / push.score_scale : 0;
}

#define FOR_BIAS(r, i) FOR_EACH(r, ROW_BLOCKS) FOR_EACH(i, ELEMENTS / 2)
#define BIAS_AT(r, e) address_add(bias_base, uvec2(2 * first_key + bias_row[r][slot(e)], 0))
#define BIAS_WORD(r, n, i) bias[((r) * KEY_TILES + (n)) * ELEMENTS / 2 + (i)]
// The bit of a pair's number that is bit 3 of its column.
#define COLUMN_8 (1u << ((SOURCE(7) & 7) - 1))
// Distance from an invocation's first key of a row to the key of element e of tile n.
#define BIAS_STEP(n, e) key_at((n) * N + step_column(e))
void fetch_singly(uint first_key) {
    FOR_BIAS(r, i) {
        const RowStart even = RowStart(BIAS_AT(r, 2 * i), 0), odd = RowStart(BIAS_AT(r, 2 * i + 1), 0);
        FOR_EACH(n, KEY_TILES)
            BIAS_WORD(r, n, i) =
                load_one_16bit(even, BIAS_STEP(n, 2 * i)) | load_one_16bit(odd, BIAS_STEP(n, 2 * i + 1)) << 16;
    }
}
void fetch_bias(uint first_key) {
    if (BIAS_BYTES == 16) {
        FOR_BIAS(r, i) {
            const uvec2 at = BIAS_AT(r, 2 * i);
            if (step_column(2 * i) == 0) FOR_EACH(n, KEY_TILES / 2) {
                const uvec4 eight = Uvec4sIn(at).x[n * 4];
                BIAS_WORD(r, 2 * n, i) = eight.x;
                BIAS_WORD(r, 2 * n, i | COLUMN_8) = eight.y;
                BIAS_WORD(r, 2 * n + 1, i) = eight.z;
                BIAS_WORD(r, 2 * n + 1, i | COLUMN_8) = eight.w;
            }
        }
    } else if (BIAS_BYTES == 4) {
        FOR_BIAS(r, i) {
            const uvec2 at = BIAS_AT(r, 2 * i);
            FOR_EACH(n, KEY_TILES) BIAS_WORD(r, n, i) = UintsIn(at).x[BIAS_STEP(n, 2 * i) / 2];
        }
    } else {
        fetch_singly(first_key);
    }
}
void fetch_any_bias(uint first_key) {
    if (bias_aligned) fetch_bias(first_key);
    else fetch_singly(first_key);
}
void no_bias() { FOR_BIAS(r, i) FOR_EACH(n, KEY_TILES) BIAS_WORD(r, n, i) = 0; }

void begin_as_bias() {
    FOR_BIAS(r, i)
        FOR_EACH(n, KEY_TILES) {
            vec2 two = floats_of(QUERY_TYPE, BIAS_WORD(r, n, i)) * inverse_scale;
#ifdef BF16
            // float16 has no number that large. NaN and infinity stay what they are.
            two = mix(two, min(two, vec2(1e30)), lessThan(floatBitsToUint(two) & SIZE_BITS, uvec2(EXPONENT_BITS)));
#endif
            scores[r * KEY_TILES + n][2 * i] = two.x;
            scores[r * KEY_TILES + n][2 * i + 1] = two.y;
        }
}
#else
#define BIAS_AHEAD false
const float inverse_scale = 0;
const bool bias_aligned = false;
void find_bias(Work w) {}
void fetch_bias(uint first_key) {}
void fetch_any_bias(uint first_key) {}
void no_bias() {}
void begin_as_bias() { FOR_EACH(x, ROW_BLOCKS * KEY_TILES) scores[x] = ZEROS; }
#endif
