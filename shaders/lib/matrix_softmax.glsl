// Online softmax over the accumulators of the matrix kernel. A row's offset is what its scores are relative to: its
// running maximum, or a stale one (forward_matrix.comp).
#include "lib/scores.glsl"
#include "lib/matrix_layout.glsl"
#include "lib/matrix_mask.glsl"
#include "lib/matrix_bias.glsl"

// If a tile's part of a row sum exceeds 2^14, offsets are set anew; up to it P fits 16 bits. The bits are compared,
// because drivers may assume that there is no NaN, whose bits exceed those of any number.
const uint GROWN_BITS = 0x46800000;

float row_offset[ROW_BLOCKS][SLOTS];
float row_sum[ROW_BLOCKS][SLOTS];  // this invocation's part
float tile_sum[ROW_BLOCKS][SLOTS];
#include "lib/matrix_slopes.glsl"

void softmax_begin() {
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(s, SLOTS) {
            row_offset[r][s] = NO_MAXIMUM;
            row_sum[r][s] = 0;
        }
    FOR_EACH(x, ROW_BLOCKS * OUT_TILES) acc[x] = ZEROS;
}

// This subgroup's first and last row that exist; a subgroup that has none has the tile's last row.
uvec2 own_rows(Work w) {
    const uint first = w.first_row + subgroup_row;
    return min(uvec2(first, first + ROW_BLOCKS * M - 1), uvec2(w.last_row));
}

// True if this subgroup's rows see any key of a tile, so that it takes part in the products. It is always true if P
// goes through shared memory, because llvmpipe takes a subgroup's barrier for the workgroup's, and with a mask, because
// a second pass must give the first one's bits.
bool sees(Work w, uint first_key) {
    if (HIDES_KEYS || P_MOVE >= MOVE_SHARED) return true;
    return w.first_row + subgroup_row <= w.last_row && !tile_is_hidden(w, own_rows(w), keys_from(first_key));
}

// Turns q.k of the tile into scores. With `only_hides` they began as the mask, whose minus infinity may have met NaN of
// keys that other rows see: hidden scores become minus infinity again, and the rest stays what it is.
void finish_scores(Work w, uint first_key, bool mask_is_mixed, bool only_hides) {
#ifdef QUICK_TERMS
    if (BEGINS_AS_SLOPES && slope_is_quick && stand_among_keys(w, own_rows(w))) {
        finish_near(w, first_key);
        return;
    }
#endif
    const Terms terms = terms_of(w, mask_is_mixed);
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(e, ELEMENTS) {
            const uvec2 place = place_of(places, e);
            const uint row = min(w.first_row + subgroup_row + r * M + place.x, w.last_row);
            const ivec2 keys = visible_keys(w, row);
            FOR_EACH(n, KEY_TILES) {
                const float begun = scores[r * KEY_TILES + n][e], score = scaled(vec4(begun)).x;
                const float done = finished(score, terms, row, keys, int(first_key + key_at(n * N + place.y)));
                const float kept = done == HIDDEN ? uintBitsToFloat(MINUS_INFINITY) : begun;
                scores[r * KEY_TILES + n][e] = only_hides ? kept : done;
            }
        }
}

// Finds a tile's largest score of each row, times a factor.
void find_maximum(uint r, float factor, out float most[SLOTS]) {
    FOR_EACH(s, SLOTS) most[s] = HIDDEN;
    FOR_EACH(n, KEY_TILES)
        FOR_EACH(e, ELEMENTS) most[slot(e)] = max(most[slot(e)], scores[r * KEY_TILES + n][e] * factor);
    max_along_rows(most);
    add_lacks(r, most);
}

void rescale(uint r, float shrink[SLOTS]) {
    FOR_EACH(s, SLOTS) row_sum[r][s] *= shrink[s];
    FOR_EACH(n, OUT_TILES)
        FOR_EACH(e, ELEMENTS) acc[r * OUT_TILES + n][e] *= shrink[slot(e)];
}

// Sets offsets to the maximum of the scores times a factor, where that has outgrown them by `growth`. Rows without a
// sum, which may be another invocation's, have nothing to rescale.
void raise_offsets(float factor, float growth) {
    FOR_EACH(r, ROW_BLOCKS) {
        float most[SLOTS], shrink[SLOTS];
        find_maximum(r, factor, most);
        bool grown = false;
        FOR_EACH(s, SLOTS) {
            const bool grows = most[s] > row_offset[r][s] + growth;
            shrink[s] = grows ? exp2(max(EXPONENT(row_offset[r][s], most[s]), -256.0)) : 1.0;
            if (grows) row_offset[r][s] = most[s];
            grown = grown || (grows && row_sum[r][s] > 0);
        }
        if (subgroupAny(grown)) rescale(r, shrink);
    }
}

// `finished`: the scores are, so that they may be large. Then the offset is taken from them first.
void exponentials_of(uint r, uint n, float factor, bool finished) {
    ACCUMULATOR p;
    FOR_EACH(e, ELEMENTS) {
        const float score = scores[r * KEY_TILES + n][e], offset = tile_offset[r][slot(e)];
#ifdef RUNNING_MAX
        // It is rounded before the offset is taken from it: then finished tiles and others give the same bits.
        precise const float scaled_score = score * factor;
        const float exponent = EXPONENT(scaled_score, offset);
#else
        const bool is_natural = NATURAL_SCORES && finished;
        const float exponent =
            is_natural ? EXPONENT(score, offset) : fma(score, factor * TO_BASE_2, -offset * TO_BASE_2);
#endif
        p[e] = EXP2(exponent);
#ifndef TURNED
        tile_sum[r][slot(e)] += p[e];
#endif
    }
#ifdef TURNED
    // All elements are of one row. RDNA3 and RDNA4 issue two additions at once if neither needs the other's sum (by
    // tools/gate --loops, 609 instead of 613 clocks on navi31 at D64, 585 instead of 591 on gfx1201 at D128).
    float even = p[0], odd = p[1];
    FOR_EACH(i, ELEMENTS / 2 - 1) {
        even += p[2 * i + 2];
        odd += p[2 * i + 3];
    }
    tile_sum[r][0] += even + odd;
#endif
    put_p(r, n, p);
}

void no_tile_sums() { FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) tile_sum[r][s] = 0; }

// Brings the scores of a half of the keys, times a factor, to P, and adds its row sums.
void exponentials(uint half_index, float factor, bool finished) {
    if (half_index == 0) {
        no_tile_sums();
        find_tile_offsets();
    }
    if (P_MOVE < MOVE_SHARED) {
        FOR_HALF(n, half_index, KEY_TILES) FOR_EACH(r, ROW_BLOCKS) exponentials_of(r, n, factor, finished);
    } else {
        FOR_EACH(r, ROW_BLOCKS) {
            FOR_EACH(n, KEY_TILES) exponentials_of(r, n, factor, finished);
            get_p(r);
        }
    }
}

// From this size of a row's offset on, every tile is finished, and exponents are differences of scores. Otherwise a
// fused multiply-add subtracts a rounded offset from an exact product. The offset is off by up to 2^-24 of itself,
// so the largest weight is near 1 but not equal to it. Where its 16-bit P differs from 1, out of a row that sees one
// key is not that key's value, and the backward takes the difference for a gradient: with a scale of 3,000 dquery
// was 76 where it is 0 (H200). Where S begins as a mask, each step of the product rounds the sum as well, head_dim /
// 16 of them. At 700, and 256 head dims, a weight is then off by 1e-3 at most, and by 1e-4 without a mask: bounds,
// not measurements.
const float LARGE_SCORE = 700;
#if defined(BIAS) && defined(BF16)  // a mask over the scale may pass what float32 has: such rows seem empty
const float LEAST_OFFSET = -3.4e38;
#else
const float LEAST_OFFSET = NO_MAXIMUM;
#endif
float size_of(float offset) { return mix(0.0, abs(offset), offset > LEAST_OFFSET); }
bool has_large_offset() {
    float most = 0;
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) most = max(most, size_of(row_offset[r][s]));
    return most > LARGE_SCORE;
}
#ifdef BIAS
bool has_large_maximum(float factor) {
    float most = 0;
    FOR_EACH(r, ROW_BLOCKS) {
        float of_row[SLOTS];
        find_maximum(r, factor, of_row);
        FOR_EACH(s, SLOTS) most = max(most, size_of(of_row[s]));
    }
    return most > LARGE_SCORE;
}
#else
bool has_large_maximum(float factor) { return false; }
#endif

bool outgrows() {
    bool grown = false;
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) grown = grown || floatBitsToUint(tile_sum[r][s]) > GROWN_BITS;
    return grown;
}

// True if a tile's sum is NaN, which only a masked key that is not finite can cause.
bool has_nan_sum() {
    uint most = 0;
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) most = max(most, floatBitsToUint(tile_sum[r][s]) & 0x7fffffff);
    return most > 0x7f800000;
}

// True if an output or a row sum of any row of the workgroup is not finite.
bool has_nonfinite_result() {
    uint most = 0;
    FOR_EACH(x, ROW_BLOCKS * OUT_TILES)
        FOR_EACH(e, ELEMENTS) most = max(most, floatBitsToUint(acc[x][e]) & 0x7fffffff);
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) most = max(most, floatBitsToUint(row_sum[r][s]) & 0x7fffffff);
    if (most >= 0x7f800000) saw_nonfinite = 1;
    barrier();
    return saw_nonfinite != 0;
}

void add_tile_sums() {
    FOR_EACH(r, ROW_BLOCKS) FOR_EACH(s, SLOTS) row_sum[r][s] += tile_sum[r][s];
}
