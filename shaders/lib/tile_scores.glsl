// Scores of a tile in the registers of lib/tiles.glsl: finishing them, and what the lanes of a row tell each other.
#include "lib/scores.glsl"

// x[r] = the group's combination of x[r] over its lanes. All invocations call it; the pool is overwritten.
#define ACROSS_LANES(x, combine) \
    if (LANES > 1) { \
        barrier(); \
        [[unroll]] for (uint m = 0; m < ROWS / 4; m++) \
            pool[thread * (ROWS / 4) + m] = vec4(x[4 * m], x[4 * m + 1], x[4 * m + 2], x[4 * m + 3]); \
        barrier(); \
        [[unroll]] for (uint m = 0; m < ROWS / 4; m++) { \
            vec4 all = pool[group * LANES * (ROWS / 4) + m]; \
            [[unroll]] for (uint l = 1; l < LANES; l++) \
                all = combine(all, pool[(group * LANES + l) * (ROWS / 4) + m]); \
            [[unroll]] for (uint i = 0; i < 4; i++) x[4 * m + i] = all[i]; \
        } \
    }
vec4 sum_of(vec4 a, vec4 b) { return a + b; }
vec4 max_of(vec4 a, vec4 b) { return max(a, b); }

// Adds the terms to the scaled scores of the tile of keys that begins at first_key.
void add_terms_to_scores(Work w, uint first_key, bool mask_is_mixed) {
    const Terms terms = terms_of(w, mask_is_mixed);
    FOR_EACH(r, ROWS) {
        const uint row = min(w.first_row + group * ROWS + r, w.last_row);
        const ivec2 keys = visible_keys(w, row);
        FOR_EACH(b, COLS / 4) {
            const int key = int(first_key + 4 * (b * LANES + lane));
            const uint x = r * (COLS / 4) + b;
            FOR_EACH(i, 4)
                scores[x][i] = finished(scores[x][i], terms, row, keys, key + int(i));
        }
    }
}

// Brings q.k of the tile to its scores.
void finish_scores(Work w, uint first_key, bool mask_is_mixed) {
    FOR_EACH(x, ROWS * COLS / 4) scores[x] = scaled(scores[x]);
    add_terms_to_scores(w, first_key, mask_is_mixed);
}
