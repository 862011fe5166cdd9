// A tile of P and of the gradient of its scores, recomputed from query, key, value, dout and the rows' statistics (Dao et
// al., arXiv:2205.14135, appendix B.4), with query rows and keys as lib/tiles.glsl owns them:
//
//   S = Q . K^T;  P = 2^(score - lse);  dP = dO . V^T;  dS = P o (dP - delta)
//
// where score is what the forward makes of S. Of a hidden key P is 0, and so is dS whatever dP is: a hidden value may be
// NaN. dS is the gradient of the finished score, thus of the mask; that of q.k is softmax_scale times it, and times
// 1 - tanh^2 under a softcap.
#include "lib/backward_problem.glsl"

float row_lse[ROWS], row_delta[ROWS], row_factor[ROWS];

#define ROW_SHIFT(r) (MASK == MASK_FLOAT ? -row_lse[r] : 0.0)
#include "lib/tile_scores.glsl"

void load_statistics(Work w) {
    FOR_EACH(r, ROWS) {
        const RowStart at = statistics_of(w, min(w.first_row + group * ROWS + r, w.last_row));
        const vec4 x = Vec4sIn(at.base).x[at.at / 4];
        row_lse[r] = x.x;
        row_delta[r] = x.y;
        row_factor[r] = x.z;
    }
}

vec4 weights[ROWS * COLS / 4];                    // P
vec4 slopes[SOFTCAP != 0 ? ROWS * COLS / 4 : 1];  // 1 - tanh^2

// Beyond this an lse cannot tell scores apart any more, nor how many it stands for: those that near to it are one to the
// forward too, whose scores are float32.
const float COARSE_LSE = 4e6, LSE_STEPS = 4e-7;

// From scores, which are Q . K^T. lse is subtracted as early as possible: what is left is small where P is not. With a float
// mask it is subtracted from what the mask adds.
void find_weights(Work w, uint first_key, bool masked) {
    const bool late = MASK == MASK_FLOAT;
    FOR_EACH(r, ROWS)
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            precise vec4 score = scores[x] * p.scale_log2;  // as scaled(), which has no slope
            if (SOFTCAP != 0) {
                const vec4 t = tanh4(score);
                slopes[x] = 1 - t * t;
                score = p.softcap_log2 * t;
            }
            scores[x] = score - (late ? 0 : row_lse[r]);
        }
    if (needs_hiding(w, first_key)) hide_scores(w, first_key, masked);
    FOR_EACH(r, ROWS) {
        const bool exists = w.first_row + group * ROWS + r <= w.last_row;
        const float coarse = late && abs(row_lse[r]) > COARSE_LSE ? LSE_STEPS * abs(row_lse[r]) : 0;
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            vec4 s = scores[x];
            if (late) s = mix(s, vec4(0), lessThan(abs(s), vec4(coarse)));
            const vec4 e = exp2(s) * row_factor[r];
            weights[x] = exists ? e : vec4(0);
        }
    }
}

// What the kernel multiplies P or dS with: its first rows are fetched while dP is computed.
void fetch_product();

// weights = P, scores = dS. The first chunk of q and k is fetched already. A score's slope is not in dS yet.
void find_gradients(Work w, Rows q, Rows k, Rows dout, Rows v, bool masked) {
    MULTIPLY_CHUNKS(q, k, HEAD_DIM_QK, fetch_qk(dout, v, 0, HEAD_DIM_V))
    find_weights(w, k.first, masked);
    MULTIPLY_CHUNKS(dout, v, HEAD_DIM_V, fetch_product())
    FOR_EACH(r, ROWS)
        FOR_EACH(b, COLS / 4) {
            const uint x = r * (COLS / 4) + b;
            scores[x] = mix(weights[x] * (scores[x] - row_delta[r]), vec4(0), equal(weights[x], vec4(0)));
        }
}

void apply_slopes() {
    if (SOFTCAP != 0) FOR_EACH(x, ROWS * COLS / 4) scores[x] *= slopes[x];
}
