// A tile of P and of the gradient of its scores, recomputed from query, key, value, dout and the rows' statistics (Dao et
// al., arXiv:2205.14135, appendix B.4), with query rows and keys as lib/tiles.glsl owns them:
//
//   S = Q . K^T;  P = 2^(score - lse);  dP = dO . V^T;  dS = P o (dP - delta)
//
// where score is what the forward makes of S. Of a hidden key P is 0, and so is dS whatever dP is: a hidden value may be
// NaN. dS is the gradient of the finished score, thus of the mask; that of q.k is softmax_scale times it, and times
// 1 - tanh^2 under a softcap.
#include "lib/backward_problem.glsl"

// The statistics of the tile's rows, at the pool's end: 12 registers an invocation less than copies of its own, which is what
// lets this fit devices that have 128.
const uint POOL_STATISTICS = POOL_VEC4 - TILE_Q;
vec4 row_statistics(uint r) { return pool[POOL_STATISTICS + group * ROWS + r]; }
float row_lse(uint r) { return row_statistics(r).x; }
float row_delta(uint r) { return row_statistics(r).y; }
#ifndef ROW_FACTOR
#define ROW_FACTOR(r) row_statistics(r).z
#endif

#define ROW_SHIFT(r) (MASK == MASK_FLOAT ? -row_lse(r) : 0.0)
#include "lib/tile_scores.glsl"

// To be read behind the next barrier.
void load_statistics(Work w) {
    barrier();
    for (uint r = thread; r < TILE_Q; r += THREADS) {
        const RowStart at = statistics_of(w, min(w.first_row + r, w.last_row));
        pool[POOL_STATISTICS + r] = Vec4sIn(at.base).x[at.at / 4];
    }
}

vec4 weights[ROWS * COLS / 4];  // P

// Of a softcap, 1 - tanh^2. A kernel says what becomes of them: they are multiplied into weights, which are P no more then
// (SLOPED_WEIGHTS, that workgroup does), or kept for apply_slopes (KEPT_SLOPES, all do).
vec4 slopes[SOFTCAP != 0 && KEPT_SLOPES ? ROWS * COLS / 4 : 1];
#ifndef TAKE_WEIGHT
#define TAKE_WEIGHT(r, p)  // what the kernel does with P of a row, ahead of slopes
#endif

// Beyond this an lse cannot tell scores apart any more, nor how many it stands for: those that near to it are one to the
// forward too, whose scores are float32.
const float COARSE_LSE = 4e6, LSE_STEPS = 4e-7;

// From scores, which are Q . K^T. lse is subtracted as early as possible: what is left is small where P is not. With a float
// mask it is subtracted from what the mask adds.
void find_weights(Work w, uint first_key, bool masked) {
    const bool late = MASK == MASK_FLOAT;
    FOR_EACH(r, ROWS) {
        const float lse = late ? 0 : row_lse(r);
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            precise vec4 score = scores[x] * p.scale_log2;  // as scaled(), which has no slope
            if (SOFTCAP != 0) {
                const vec4 t = tanh4(score);
                if (KEPT_SLOPES) slopes[x] = 1 - t * t;
                else if (SLOPED_WEIGHTS) weights[x] = 1 - t * t;
                score = p.softcap_log2 * t;
            }
            scores[x] = score - lse;
        }
    }
    if (needs_hiding(w, first_key)) hide_scores(w, first_key, masked);
    FOR_EACH(r, ROWS) {
        const bool exists = w.first_row + group * ROWS + r <= w.last_row;
        const float size = late ? abs(row_lse(r)) : 0, coarse = size > COARSE_LSE ? LSE_STEPS * size : 0;
        const float factor = ROW_FACTOR(r);
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            vec4 s = scores[x];
            if (late) s = mix(s, vec4(0), lessThan(abs(s), vec4(coarse)));
            const vec4 e = exists ? exp2(s) * factor : vec4(0);
            TAKE_WEIGHT(r, e);
            weights[x] = SOFTCAP != 0 && SLOPED_WEIGHTS ? e * weights[x] : e;
        }
    }
}

// What the kernel multiplies P or dS with: its first rows are fetched while dP is computed.
void fetch_product();

// weights = P, and then scores = dS, without slopes that are kept. The first chunk of q and k is fetched already.
// p_only: nothing of dS is wanted.
void find_gradients(Work w, Rows q, Rows k, Rows dout, Rows v, bool masked, bool p_only) {
    MULTIPLY_CHUNKS(q, k, HEAD_DIM_QK, if (p_only) fetch_product(); else fetch_qk(dout, v, 0, HEAD_DIM_V))
    find_weights(w, k.first, masked);
    if (p_only) return;
    MULTIPLY_CHUNKS(dout, v, HEAD_DIM_V, fetch_product())
    FOR_EACH(r, ROWS) {
        const float delta = row_delta(r);
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            scores[x] = mix(weights[x] * (scores[x] - delta), vec4(0), equal(weights[x], vec4(0)));
        }
    }
}

void apply_slopes() {
    if (SOFTCAP != 0 && KEPT_SLOPES) FOR_EACH(x, ROWS * COLS / 4) scores[x] *= slopes[x];
}
