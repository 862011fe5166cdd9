// A tile of P and of the gradient of its scores, recomputed from query, key, value, dout and the rows' statistics (Dao
// et al., arXiv:2205.14135, appendix B.4), with query rows and keys as lib/tiles.glsl owns them:
//
//   S = Q . K^T;  P = 2^(score - lse);  dP = dO . V^T;  dS = P o (dP - delta)
//
// where score is what the forward makes of S (lib/scores.glsl). P of a hidden key is 0, and so is dS whatever dP is: a
// hidden value may be NaN. Where a tile
// has hidden keys, P of a visible one is never 0, so that what is not finite in dP shows in dS.

// The statistics of the tile's rows stand at the pool's end. That takes 12 registers less than copies in every
// invocation, which is what lets the kernels fit devices that have 128.
const uint POOL_STATISTICS = POOL_VEC4 - TILE_Q;
vec4 row_statistics(uint r) { return pool[POOL_STATISTICS + group * ROWS + r]; }
float row_lse(uint r) { return row_statistics(r).x; }
float row_delta(uint r) { return row_statistics(r).y; }
// True if a row of the tile, counted from its first, sees no key: what dout and query have there counts for nothing.
bool is_empty(uint row) { return pool[POOL_STATISTICS + row].w != 0; }
#ifndef ROW_FACTOR
#define ROW_FACTOR(r) row_statistics(r).z
#endif

#include "lib/tile_scores.glsl"

// Loads the statistics of the tile's rows, which may be read after the next barrier.
void load_statistics(Work w) {
    barrier();
    for (uint r = thread; r < TILE_Q; r += THREADS) {
        const RowStart at = statistics_of(w, min(w.first_row + r, w.last_row));
        pool[POOL_STATISTICS + r] = Vec4sIn(at.base).x[at.at / 4];
    }
}

vec4 weights[ROWS * COLS / 4];  // P
// x times the derivative of the softcap, which may be NaN where x is hidden: 0 stays 0.
#define TIMES_CAP(x, derivative) mix((x) * (derivative), vec4(0), equal(x, vec4(0)))
bool tile_is_finished;          // some key of the tile may be hidden from some row

// The derivative of the softcap. A kernel says what becomes of it: WEIGHTS_TAKE_CAP multiplies it into the weights,
// which are P no more then; CAP_IS_KEPT keeps it for apply_cap_derivative, which the kernel calls.
vec4 cap_derivative[HAS_SOFTCAP && CAP_IS_KEPT ? ROWS * COLS / 4 : 1];
// ADD_TO_ROW_SUM(r, of_tile) of a kernel adds this lane's sum of P of a row over a tile. A tile is summed by itself:
// one long sum of 649 equal weights was off by 2e-6 of itself. A vec4 for it takes two waves of RDNA2 at 256 head dims.

// Brings scores, which are Q . K^T, to the weights P. The lse is subtracted as early as possible, because what is left
// is small where P is not; but not from a score to which a term is still to be added. That sum is rounded as the
// forward rounds it: P has to be that of out, of which delta is made, or the dS of a row do not sum to 0.
void find_weights(Work w, uint first_key, bool mask_is_mixed) {
    const bool late = TERMS_ADD;
    FOR_EACH(r, ROWS) {
        const float lse = late ? 0 : row_lse(r);
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            vec4 derivative;
            precise vec4 score = scores[x];  // everything that is made of scores is rounded step by step: see scaled()
            score = scaled(score, derivative);
            scores[x] = score - lse;
            if (HAS_SOFTCAP && CAP_IS_KEPT) cap_derivative[x] = derivative;
            else if (HAS_SOFTCAP && WEIGHTS_TAKE_CAP) weights[x] = derivative;
        }
    }
    tile_is_finished = !tile_is_plain(w, tile_rows(w), keys_from(first_key), mask_is_mixed || late);
    if (tile_is_finished) add_terms_to_scores(w, first_key, mask_is_mixed);
    FOR_EACH(r, ROWS) {
        const bool exists = w.first_row + group * ROWS + r <= w.last_row;
        const float size = late ? abs(row_lse(r)) : 0, coarse = size > COARSE_LSE ? LSE_STEPS * size : 0;
        const float factor = ROW_FACTOR(r), least = tile_is_finished && exists ? LEAST_WEIGHT : 0;
#ifdef ADD_TO_ROW_SUM
        float of_tile = 0;
#endif
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            const vec4 score = scores[x];
            const bvec4 hidden = lessThan(score, vec4(NO_MAXIMUM));
            vec4 s = late ? mix(EXPONENT(score, row_lse(r)), score, hidden) : score;
            if (late) s = mix(s, vec4(0), lessThan(abs(s), vec4(coarse)));
            const vec4 e = exists ? EXP2_4(s) * factor : vec4(0);
#ifdef ADD_TO_ROW_SUM
            of_tile += (e.x + e.y) + (e.z + e.w);  // before the derivative of the cap changes it
#endif
            weights[x] = HAS_SOFTCAP && WEIGHTS_TAKE_CAP ? TIMES_CAP(e, weights[x]) : e;
            weights[x] += mix(vec4(least), vec4(0), hidden);
        }
#ifdef ADD_TO_ROW_SUM
        ADD_TO_ROW_SUM(r, of_tile);
#endif
    }
}

// Fetches the first rows of what the kernel multiplies P or dS with, while dP is computed.
void fetch_product();

// Finds weights, and then the score gradients dS in `scores`, without a derivative of the cap that is kept. The first
// chunk of q and k is fetched already. p_only: nothing of dS is wanted.
void find_gradients(Work w, Rows q, Rows k, Rows dout, Rows v, bool mask_is_mixed, bool p_only) {
    MULTIPLY_CHUNKS(q, k, HEAD_DIM_QK, if (p_only) fetch_product(); else fetch_qk(dout, v, 0, HEAD_DIM_V))
    find_weights(w, k.first, mask_is_mixed);
    if (p_only) return;
    MULTIPLY_CHUNKS(dout, v, HEAD_DIM_V, fetch_product())
    const float hidden_weight = tile_is_finished ? 0 : -1;  // which no weight is
    const float least = tile_is_finished ? LEAST_WEIGHT : 0;
    FOR_EACH(r, ROWS) {
        const float delta = row_delta(r);
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            const vec4 ds = (weights[x] - least) * (scores[x] - delta);
            scores[x] = mix(ds, vec4(0), equal(weights[x], vec4(hidden_weight)));
        }
    }
}

void apply_cap_derivative() {
    if (HAS_SOFTCAP && CAP_IS_KEPT)
        FOR_EACH(x, ROWS * COLS / 4) scores[x] = TIMES_CAP(scores[x], cap_derivative[x]);
}
