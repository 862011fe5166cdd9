// Online softmax over tiles of scores (Milakov and Gimelshein, arXiv:1805.02867), with state for each query row. Scores
// and row_max are natural or in base 2, as scores.glsl says. forward_tiles.comp calls it for each tile of keys. It
// assumes that `scores` and `acc` are laid out as lib/tiles.glsl says.
#include "lib/tile_scores.glsl"

float row_max[ROWS];  // the same in every lane of a group
float row_sum[ROWS];  // this lane's part

void softmax_begin() {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        row_max[r] = NO_MAXIMUM;
        row_sum[r] = 0;
    }
}

// If nothing is hidden, capped or added, scores in base 2 are q.k times a factor, which is left to softmax_tile: D64
// has 35.7 TFLOP/s then, and 27.5 if scores are always finished (H200). The factor is not negative, so that it commutes
// with the maximum.
float common_factor() {
    if (push.score_scale < 0) [[unroll]] for (uint x = 0; x < ROWS * COLS / 4; x++) scores[x] = -scores[x];
    return abs(push.score_scale);
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
            const float shrink = exp2(max(EXPONENT(row_max[r], tile_max[r]), -256.0));
            row_max[r] = tile_max[r];
            row_sum[r] *= shrink;
            FOR_EACH(o, OUT_VECS) acc[r * OUT_VECS + o] *= shrink;
        }
        vec4 sum = vec4(0);
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) {
            precise const vec4 score = scores[r * (COLS / 4) + b] * factor;  // see scaled()
            const vec4 exponent = EXPONENT(score, row_max[r]);
            vec4 e = EXP2_4(exponent);
            if (ZERO_IS_HIDDEN) e += mix(vec4(LEAST_WEIGHT), vec4(0), lessThan(score, vec4(NO_MAXIMUM)));
            scores[r * (COLS / 4) + b] = e;
            sum += e;
        }
        row_sum[r] += (sum.x + sum.y) + (sum.z + sum.w);
    }
}
