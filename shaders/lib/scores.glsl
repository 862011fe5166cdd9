// How q.k becomes a score, in base 2: one contract of all forward and backward kernels. tile_scores.glsl calls it for
// tiles and the backward, forward_rows.comp and matrix_softmax.glsl for theirs. It assumes a Work whose sequences were
// found.
//
//   score = scaled(q.k)                      scale, softcap; its derivative is for the backward
//   score = finished(score, ...)             what terms add, and what they hide
//   needs_finishing(...)                     whether a tile has to be finished at all
//
// A term is a file with two functions, and a line in each of the two lists below:
//   void add_NAME(inout Finish f, ScoreRow row, int key)        adds to the score of a key, or hides it
//   bool NAME_finishes(Work w, uvec2 rows, uint first_key)      true if it does so in a tile of keys, for rows .x .. .y
// A term whose gradient is wanted finds it in the gradient of the finished score, dS: q.k gets softmax_scale times
// that, and times the softcap's derivative. A kernel may let scores begin as a term in place of zeros
// (lib/matrix_bias.glsl).
//
// There are no infinities and no NaN tests: drivers may assume there are none. Hidden scores are far below the initial
// row maximum, and that far below the lowest visible score: 2^(hidden - row_max) is 0 even in a row that has seen
// nothing.
const float HIDDEN = -3e38;
const float NO_MAXIMUM = -2e38;
const float LOWEST_SCORE = -1e38;
const float HIGHEST_BIAS = 6.9e37;  // times log2(e) within the lowest score
const float GROWTH = 8.0;  // row_max may lag by this much: P stays below 2^8, far from overflow

#include "lib/softcap.glsl"

// Holds what the scores of a row depend on. A term finds its own numbers from it when it needs them: numbers that are
// kept for a whole row take registers, of which the matrix kernel has none left.
struct ScoreRow {
    ivec2 keys;          // the keys that bounds and lengths leave to the row, begin .. end-1
    uint row;
    MaskRows mask;
    uint last_key;       // of the sequence
    bool mask_is_mixed;  // false: the mask is known to change nothing in this tile
};

ScoreRow score_row(Work w, MaskRows mask, uint row, bool mask_is_mixed) {
    return ScoreRow(visible_keys(w, row), row, mask, w.num_keys - 1, mask_is_mixed);
}

// Collects what the terms do to a scaled score.
struct Finish {
    float added;
    bool hidden;
};

void add_bounds(inout Finish f, ScoreRow row, int key) { f.hidden = f.hidden || key < row.keys.x || key >= row.keys.y; }
bool bounds_finish(Work w, uvec2 rows, uint first_key) {
    return int(first_key) < visible_keys(w, rows.y).x || int(first_key + TILE_KV) > visible_keys(w, rows.x).y;
}

void add_mask(inout Finish f, ScoreRow row, int key) {
    if (MASK_KIND == MASK_NONE || !row.mask_is_mixed || f.hidden) return;
    // A driver may load the mask of a hidden key ahead of the test: it must be there.
    const vec2 element = mask_element(mask_row(row.mask, row.row), min(uint(key), row.last_key) * mask_key_step());
    f.hidden = element.y != 0;
    f.added += LOG2_E * clamp(element.x, -HIGHEST_BIAS, HIGHEST_BIAS);
}
bool mask_finishes(Work w, uvec2 rows, uint first_key) { return MASK_KIND != MASK_NONE; }

// The terms, in their order.
void add_terms(inout Finish f, ScoreRow row, int key) {
    add_bounds(f, row, key);
    add_mask(f, row, key);
}
bool terms_finish(Work w, uvec2 rows, uint first_key) {
    return bounds_finish(w, rows, first_key) || mask_finishes(w, rows, first_key);
}

// q.k, scaled and capped, and the derivative of the cap. It is rounded before anything is subtracted from it: then it
// is the same in every kernel and tile, and P of the backward that of out. H200, 'values=ascending d=64' (scores to
// 98): otherwise dquery is off by 1.9e-5, allowed 7.5e-6.
vec4 scaled(vec4 x, out vec4 derivative) {
    precise vec4 score = x * push.scale_log2;
    derivative = vec4(1);
    if (HAS_SOFTCAP) score = capped(score, derivative);
    return score;
}
vec4 scaled(vec4 x) {
    vec4 derivative;
    return scaled(x, derivative);
}

// A scaled score with its terms; HIDDEN if the row may not see the key. `shift` is added with the terms: the
// backward's -lse, which then cancels what large masks add before a score is lost in it.
float finished(float score, float shift, ScoreRow row, int key) {
    Finish f = Finish(0, false);
    add_terms(f, row, key);
    return f.hidden ? HIDDEN : clamp(score + (f.added + shift), LOWEST_SCORE, -LOWEST_SCORE);
}

// True if a tile of keys has to be finished for rows from .x to .y. If not, scores are q.k times scale_log2.
bool needs_finishing(Work w, uvec2 rows, uint first_key) { return HAS_SOFTCAP || terms_finish(w, rows, first_key); }
