// How q.k becomes a score: one contract of all forward and backward kernels. tile_scores.glsl calls it for tiles and
// the backward, forward_rows.comp and matrix_softmax.glsl for theirs. It assumes a Work whose sequences were found.
//
//   x = scaled(q.k)                          scale, softcap; its derivative is for the backward
//   score = finished(x, ...)                 what terms add, and what they hide
//   tile_is_plain(...)                       whether bounds, mask and terms leave a tile as it is
//   needs_finishing(...)                     whether a tile has to be finished at all
//
// Scores are in base 2, or natural numbers (lib/score_facts.glsl). EXPONENT() brings a difference of two to base 2.
//
// A term is lib/term_NAME.glsl: statements that finished() includes, or functions and a macro of statements that
// finished() names. Statements may read the parameters of finished() and the Terms. They add to `added` a natural
// number of at most HIGHEST_BIAS in size, or set `hidden`, or `spoiled` where the score becomes NaN. A term that needs
// more than the Work adds it to Terms. terms_change() has an expression that says in which tiles of rows and keys the
// term changes anything; every loop of every kernel asks it. What else loops need to know of a term is a fact in
// lib/score_facts.glsl, and the planner has some of these facts, too (src/plan/terms.hpp).
//
// A term whose gradient is wanted finds it in the gradient of the finished score, dS: q.k gets softmax_scale times
// that, and times the softcap's derivative. A kernel may let scores begin as a term in place of zeros
// (lib/matrix_bias.glsl).
//
// Hidden scores are no infinities, but far below the initial row maximum, and that far below the lowest visible score:
// 2^(hidden - row_max) is 0 even in a row that has seen nothing. A visible score that is NaN or plus infinity becomes
// NaN, and with it the row's sum and its results; minus infinity weighs nothing, as if it were hidden.
// A difference of any two of these and HIGHEST_SCORE is finite in base 2, with a float mask too; and twice the largest
// softcap, in base 2, is above NO_MAXIMUM (scales_of() in src/plan/build.cpp).
const float HIDDEN = -1.5e38;
const float NO_MAXIMUM = -1.3e38;
const float HIGHEST_BIAS = 6.9e37;
#define HIGHEST_SCORE (NATURAL_SCORES ? HIGHEST_BIAS : 1e38)  // 1e38 in base 2 either way
// Some loops know hidden keys by their weight of 0. The weights of visible keys must not vanish there, so 2^-126 is
// added to them. Score gradients take it off again, because all of a row's weights but one may be smaller.
const float LEAST_WEIGHT = 1.17549435e-38;
const bool ZERO_IS_HIDDEN = HIDES_KEYS || ISOLATES_ROWS;

// From a score to base 2, and from a natural number to the scores' base.
#define TO_BASE_2 (NATURAL_SCORES ? LOG2_E : 1.0)
#define FROM_NATURAL(x) (NATURAL_SCORES ? (x) : (x) * LOG2_E)
#define EXPONENT(score, offset) (((score) - (offset)) * TO_BASE_2)
#define GROWTH (8.0 / TO_BASE_2)  // row_max may lag by this much: P stays below 2^8, far from overflow

// Without a softcap finished() multiplies q.k by the scale and adds the mask at once: so does find_plain() of the
// backward on matrix units, whose P has to be that of out.
const bool SCALED_WITH_MASK = NATURAL_SCORES && !HAS_SOFTCAP;

#include "lib/softcap.glsl"
#include "lib/term_slopes.glsl"
#include "lib/term_sinks.glsl"
#ifdef QUICK_TERMS
#include "lib/quick_slopes.glsl"
#else
#define slopes_are_quick(w, rows, keys) false
#endif

// The terms know this beside the place of a score. A kernel asks for it once a tile.
struct Terms {
    Work w;
    MaskRows mask;
    bool mask_is_mixed;  // false: mask and block map are known to change nothing in this tile
    float slope;         // of the head, where heads are not packed
};
Terms terms_of(Work w, bool mask_is_mixed) {
    return Terms(w, mask_rows(w), mask_is_mixed, SLOPES == SLOPES_NONE || PACKED_HEADS ? 1 : slope_of(w, w.first_row));
}

// True if a term changes some score of a tile of rows from .x to .y and keys from .x to before .y: `||` of an
// expression for each term. The mask is left out, because some loops know its tiles (mask_class()), and so is the
// softcap, which is no matter of tiles.
bool terms_change(Work w, uvec2 rows, uvec2 keys) { return SLOPES != SLOPES_NONE && !slopes_are_quick(w, rows, keys); }

// True if nothing is hidden of such a tile, and nothing added but what the loop adds by itself (lib/score_facts.glsl).
// The others are hidden as a whole (tile_is_hidden() of lib/sequences.glsl) or mixed. Loops that know by other means
// what bounds or mask make of their tiles ask for the rest alone. Without `mixed` the tile's class is CLASS_PLAIN
// (mask_class()). Where a mask says so and no block map, tiles are finished all the same.
bool tile_is_plain(Work w, uvec2 rows, uvec2 keys, bool mixed) {
    return (!HIDES_KEYS || (HAS_BLOCK_MAP && !mixed)) && tile_is_visible(w, rows, keys) && !terms_change(w, rows, keys);
}

// Rows of the work's query tile, first and last that exist; keys of the tile that begins at first_key.
uvec2 tile_rows(Work w) { return uvec2(w.first_row, w.last_row); }
uvec2 keys_from(uint first_key) { return uvec2(first_key, first_key + TILE_KV); }

// Returns q.k, scaled and capped; with SCALED_WITH_MASK as it is. It is rounded before anything is subtracted from it,
// so that it is the same in every kernel and tile, and P of the backward is that of the forward. Otherwise dquery is
// off by 1.9e-5 where 7.5e-6 is allowed (H200, 'values=ascending d=64', scores up to 98).
vec4 scaled(vec4 x) {
    precise vec4 score = SCALED_WITH_MASK ? x : x * push.score_scale;
    vec4 derivative;
    if (HAS_SOFTCAP) score = capped(x, derivative);
    return score;
}

// Scales for the backward, with the derivative of the softcap.
vec4 scaled(vec4 x, out vec4 derivative) {
    precise vec4 score = SCALED_WITH_MASK ? x : x * push.score_scale;
    derivative = vec4(1);
    if (HAS_SOFTCAP) score = capped(x, derivative);
    return score;
}

// Returns what scaled() returned with the terms added, or HIDDEN if the row may not see the key. Bounds and lengths
// leave the row the keys `keys`, begin .. end-1.
float finished(float score, Terms terms, uint row, ivec2 keys, int key) {
    bool hidden = key < keys.x || key >= keys.y, spoiled = false;
    float added = 0;
    TERM_SLOPES
    TERM_BLOCKS
#include "lib/term_mask.glsl"
    // A capped score is within the range without a clamp, which might make a number of NaN.
    if (HAS_SOFTCAP && !HIDES_KEYS && !TERMS_ADD) return hidden ? HIDDEN : score;
    precise float sum = score;
    if (TERMS_ADD) sum = SCALED_WITH_MASK ? fma(score, push.score_scale, added) : score + FROM_NATURAL(added);
    hidden = hidden || floatBitsToUint(sum) == MINUS_INFINITY;
    spoiled = spoiled || !IS_FINITE(sum);
    const float visible = clamp(sum, -HIGHEST_SCORE, HIGHEST_SCORE);
    return hidden ? HIDDEN : spoiled ? uintBitsToFloat(NAN_BITS) : visible;
}

// True if scores of rows from .x to .y and keys from .x to before .y have to be finished. If not, they are q.k times
// score_scale, but for what the kernel does in its loop (lib/score_facts.glsl).
bool needs_finishing(Work w, uvec2 rows, uvec2 keys, bool mixed) {
    return FINISHES_ALL_TILES || !tile_is_plain(w, rows, keys, mixed);
}
