// Online softmax over tiles of scores in base 2 (Milakov and Gimelshein, arXiv:1805.02867), state per query row.
#include "lib/scores.glsl"

float row_max[ROWS];  // the same in every lane of a group
float row_sum[ROWS];  // this lane's part

void softmax_begin() {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        row_max[r] = NO_MAXIMUM;
        row_sum[r] = 0;
    }
}

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

// Scores in base 2 are scores times a factor. On the common path the factor is left to softmax_tile, which folds it
// into the exponential; it is not negative, so that it commutes with the maximum.
float common_factor() {
    if (p.scale_log2 < 0) [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) scores[x] = -scores[x];
    return abs(p.scale_log2);
}

// Finishes the scores of the tile that begins at first_key. Where nothing is hidden, capped or masked, softmax_tile has
// the factor, and this is not needed.
void finish_scores(Work w, uint first_key, bool masked) {
    [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) scores[x] = scaled(scores[x]);
    const MaskRows mask = mask_rows(w);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = min(w.first_row + group * ROWS + r, w.last_row);
        const ivec2 keys = visible_keys(w, row);
        FOR_EACH(b, COLS / 4) {
            const int key = int(first_key + 4 * (b * LANES + lane));
            const uint x = r * (COLS / 4) + b;
            [[unroll]] for (int i = 0; i < 4; i++)
                scores[x][i] = finished(scores[x][i], mask, row, keys, key + i, w.num_keys - 1, masked);
        }
    }
}

// Scores, times a factor that is not negative, to P; brings row_max, row_sum and the output accumulators up to date.
void softmax_tile(float factor) {
    float tile_max[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        vec4 m = scores[r * (COLS / 4)];
        [[unroll]] for (uint b = 1; b < COLS / 4; b++) m = max(m, scores[r * (COLS / 4) + b]);
        tile_max[r] = max(max(m.x, m.y), max(m.z, m.w)) * factor;
    }
    ACROSS_LANES(tile_max, max_of)
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (tile_max[r] > row_max[r] + GROWTH) {
            const float shrink = exp2(max(row_max[r] - tile_max[r], -256.0));
            row_max[r] = tile_max[r];
            row_sum[r] *= shrink;
            FOR_EACH(o, OUT_VECS) acc[r * OUT_VECS + o] *= shrink;
        }
        vec4 sum = vec4(0);
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) {
            const vec4 e = exp2(fma(scores[r * (COLS / 4) + b], vec4(factor), vec4(-row_max[r])));
            scores[r * (COLS / 4) + b] = e;
            sum += e;
        }
        row_sum[r] += (sum.x + sum.y) + (sum.z + sum.w);
    }
}
