// What the backward on matrix units makes of S and dP of a block: P = 2^(score - lse) and dS = P o (dP - delta), as
// lib/backward.glsl has it for the portable kernels. Most blocks take the short way, find_plain: every row sees every
// key, nothing but the scale makes S a score, and no row has a factor or is empty. It is right for keys and rows that
// do not exist as long as they are held, because no result of theirs is stored.
#include "lib/scores.glsl"
#include "lib/matrix_layout.glsl"
#include "lib/matrix_mask.glsl"

// Beyond this size an lse in base 2 is too coarse in float32 for the weights to sum to 1: 2^-24 of it is more than the
// 2^-15 of the exponent that operands of 16 bits leave unseen. Their rows get a factor, as all rows of the portable
// kernels do. NaN needs none, and shall not change how other rows are rounded.
const float LARGE_LSE = 512;
bool is_large(float lse) { return IS_FINITE(lse) && abs(lse) > LARGE_LSE; }

#ifdef KEY_VALUE
// The rows' numbers are those of the walked rows: accumulators in which every row is alike.
#define NUMBERS_AT(which, n) (buf + BUF_NUMBERS + (which) * NUMBERS_STRIDE + (block * BLOCK + (n) * N) / 4)
ACCUMULATOR walked_numbers(uint at) {
    ACCUMULATOR x;
    coopMatLoad(x, pool, at, 0, gl_CooperativeMatrixLayoutRowMajor);
    return x;
}
ACCUMULATOR minus_lse(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(0, n)); }
ACCUMULATOR minus_delta(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(1, n)); }
ACCUMULATOR factors(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(2, n)); }
#else
// The rows' numbers are those of the held rows.
float held_lse[ROW_BLOCKS][SLOTS];    // negative
float held_delta[ROW_BLOCKS][SLOTS];  // negative
float row_sum[ROW_BLOCKS][SLOTS];     // of P; this invocation's part. Only where some row of the workgroup is large
#endif

void begin_block(uint buf, uint block) {
    FOR_EACH(x, ROW_BLOCKS * BLOCK_TILES) scores[x] = ACCUMULATOR(0);
    if (!WANTS_DS) return;
    FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
        const ACCUMULATOR start = minus_delta(buf, block, n);
        FOR_EACH(r, ROW_BLOCKS) dp[r * BLOCK_TILES + n] = start;
#else
        FOR_EACH(r, ROW_BLOCKS) FOR_EACH(e, ELEMENTS) dp[r * BLOCK_TILES + n][e] = held_delta[r][slot(e)];
#endif
    }
}

// The scores of a block to P, and dP to dS.
void find_plain(uint buf, uint block) {
    FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
        const ACCUMULATOR lse = minus_lse(buf, block, n);
#define MINUS_LSE(r, e) lse[e]
#else
#define MINUS_LSE(r, e) held_lse[r][slot(e)]
#endif
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const float exponent = fma(scores[r * BLOCK_TILES + n][e], push.scale_log2, MINUS_LSE(r, e));
                const float p = EXP2(exponent);
                scores[r * BLOCK_TILES + n][e] = p;
                if (WANTS_DS) dp[r * BLOCK_TILES + n][e] *= p;
            }
    }
}

// A score less the lse, and the derivative of the softcap; HIDDEN where the row does not see the key.
float finished_exponent(float qk, float lse, Terms terms, uint row, int key, out float derivative) {
    vec4 derivatives;
    precise const float score = scaled(vec4(qk), derivatives).x;
    derivative = derivatives.x;
    const ivec2 keys = visible_keys(terms.w, row);
    if (MASK_KIND != MASK_FLOAT) return finished(score + lse, 0, terms, row, keys, key);
    const float exponent = finished(score, lse, terms, row, keys, key);
    const float coarse = abs(lse) > COARSE_LSE ? LSE_STEPS * abs(lse) : 0;
    return abs(exponent) < coarse ? 0 : exponent;
}

// Does what find_plain does for blocks of any kind. `first_key`: of the tile of keys, walked or held.
void find_finished(Work w, uint first_key, uint buf, uint block) {
    const Terms terms = terms_of(w, true);
    const ACCUMULATOR places = read_places();
    FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
        const ACCUMULATOR lse = minus_lse(buf, block, n), factor = factors(buf, block, n);
#endif
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const uvec2 place = place_of(places, e);
                const uint held = subgroup_row + r * M + place.x, walked = block * BLOCK + n * N + place.y;
#ifdef KEY_VALUE
                const uint row = w.first_row + walked, key = first_key + held;
                const float lost = IS_ZERO(factor[e]) || row > w.last_row ? 0 : factor[e];
#else
                const uint row = w.first_row + held, key = first_key + walked;
                const float lost = 1;
#endif
                const uint x = r * BLOCK_TILES + n;
                float derivative;
                const float exponent = finished_exponent(scores[x][e], MINUS_LSE(r, e), terms, min(row, w.last_row),
                                                         int(key), derivative);
                const bool hidden = IS_ZERO(lost) || floatBitsToUint(exponent) == floatBitsToUint(HIDDEN);
                const float p = hidden ? 0 : EXP2(exponent) * lost;
                scores[x][e] = p;
                if (WANTS_DS) dp[x][e] = hidden ? 0 : p * dp[x][e] * derivative;
#ifndef KEY_VALUE
                row_sum[r][slot(e)] += p;
#endif
            }
    }
}

// Moves P or dS of a block to p_left.
#define MOVE_TO_LEFT(x) \
    FOR_EACH(r, ROW_BLOCKS) { \
        FOR_EACH(n, BLOCK_TILES) put_p(r, n, x[r * BLOCK_TILES + n]); \
        get_p(r); \
    }

// Adds a block to the sums; `find` is a call of find_plain or find_finished.
#define ADD_BLOCK(buf, block, find) { \
    const uint at_qk = (buf) + (block) * BLOCK * QK_STRIDE, at_v = (buf) + BUF_V + (block) * BLOCK * V_STRIDE; \
    begin_block(buf, block); \
    multiply_scores(at_qk, at_v); \
    find; \
    if (WANTS_DV) { \
        MOVE_TO_LEFT(scores) \
        add_to_v(at_v); \
    } \
    if (WANTS_DS) { \
        MOVE_TO_LEFT(dp) \
        add_to_qk(at_qk); \
    } \
}
