// Turns S and dP of a block into P = 2^(score - lse) and dS = P o (dP - delta), as lib/backward.glsl does for the
// portable kernels. Most blocks take the short way, find_plain: every row sees every key, nothing but the scale, slopes
// that S begins as and a mask that can be fetched as a matrix makes S a score, and no row has a factor or is empty.
// Held rows that do not exist may take it too, because none of their results is stored.

// A larger lse is too coarse in float32 for the row's weights to sum to 1: its step, 2^-24 of it, exceeds the 2^-15 of
// an exponent that 16-bit operands do not resolve. Such rows get a factor, as all rows of the portable kernels do. NaN
// needs none, and must not change how other rows are rounded.
const float LARGE_LSE = 512;
bool is_large(float lse) { return IS_FINITE(lse) && abs(lse) > LARGE_LSE; }

// The exponent of P in find_plain. With a mask and without a softcap, finished_exponent() gives the same bits: a kernel
// that starts again with finished blocks, because a hidden element was not finite, must store the same gradients. The
// score with a float mask is rounded as finished() rounds it, so that P is that of the forward.
#define PLAIN_EXPONENT(qk, mask, minus_lse) \
    (NATURAL_SCORES ? EXPONENT(fma(qk, push.score_scale, mask), -(minus_lse)) \
                    : fma(qk, push.score_scale, minus_lse))
#include "lib/scores.glsl"
#include "lib/matrix_layout.glsl"
#include "lib/matrix_mask.glsl"
#include "lib/backward_matrix_masks.glsl"

#ifdef KEY_VALUE
// In backward_matrix_key_value lse and delta belong to walked rows: they are accumulators whose rows are all alike.
#define NUMBERS_AT(which, n) (buf + BUF_NUMBERS + (which) * NUMBERS_STRIDE + (block * BLOCK + (n) * N) / POOL_FLOATS)
ACCUMULATOR walked_numbers(uint at) {
    ACCUMULATOR x;
#ifdef TURNED  // an invocation's elements are neighbouring rows
    FOR_EACH(e, ELEMENTS) x[e] = uintBitsToFloat(pool[at + place_column(0) / POOL_FLOATS + e / 2][e % 2]);
#else
    coopMatLoad(x, pool, at, 0, gl_CooperativeMatrixLayoutRowMajor);
#endif
    return x;
}
ACCUMULATOR minus_lse(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(0, n)); }
ACCUMULATOR minus_delta(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(1, n)); }
ACCUMULATOR factors(uint buf, uint block, uint n) { return walked_numbers(NUMBERS_AT(2, n)); }
#else
// In the other kernels lse and delta belong to held rows.
float held_lse[ROW_BLOCKS][SLOTS];    // negative
float held_delta[ROW_BLOCKS][SLOTS];  // negative
#ifdef MASK_GRADIENT
float held_factor[ROW_BLOCKS][SLOTS];  // 0 for rows that are empty, or do not exist
#else
float row_sum[ROW_BLOCKS][SLOTS];     // of P; this invocation's part. Only where some row of the workgroup is large
float lost[ROW_BLOCKS][SLOTS];        // by rounding, likewise, if sums_loss; then no tile is plain
#endif

#ifdef TURNED  // an invocation has the numbers of its own row, in each block
const uint HELD_NUMBERS = 1;
#define HELD_ROW(item) place_row(0)
#else
const uint HELD_NUMBERS = MATRIX_STEPS(M, SUBGROUP_SIZE);
#define HELD_ROW(item) min((item) * SUBGROUP_SIZE + lane, M - 1)
#endif
// True if rows of the tile may be relative to a number of their own: an lse that includes a large one is too coarse for
// what is left.
#ifdef QUICK_TERMS
#define MAY_BE_SHIFTED(w) (SHIFTS_ROWS && !(slope_is_quick && stand_among_keys(w, tile_rows(w))))
#else
#define MAY_BE_SHIFTED(w) SHIFTS_ROWS
#endif
struct HeldNumbers {
    vec4 of_row[ROW_BLOCKS * HELD_NUMBERS];
};
void fetch_held_numbers(Work w, out HeldNumbers numbers) {
    FOR_EACH(i, ROW_BLOCKS * HELD_NUMBERS) {
        const uint of_block = HELD_ROW(i % HELD_NUMBERS);
        const uint row = w.first_row + subgroup_row + i / HELD_NUMBERS * M + of_block;
        const RowStart from = statistics_of(w, min(row, w.last_row));
        numbers.of_row[i] = Vec4sIn(from.base).x[from.at / 4];
    }
}
bool has_odd_row(Work w, HeldNumbers numbers) {
    bool odd = MAY_BE_SHIFTED(w);
    FOR_EACH(i, ROW_BLOCKS * HELD_NUMBERS) odd = odd || is_large(numbers.of_row[i].x) || numbers.of_row[i].w != 0;
    return odd;
}
// Loads lse and delta of the held rows, through the subgroup's share of the pool. True if this invocation has seen a
// row that has a large lse or is empty.
#ifdef TURNED
bool hold_numbers(Work w, HeldNumbers numbers) {
    bool odd = MAY_BE_SHIFTED(w);
    FOR_EACH(r, ROW_BLOCKS) {
        const vec4 of_row = numbers.of_row[r];
        odd = odd || is_large(of_row.x) || of_row.w != 0;
        held_lse[r][0] = -of_row.x;
        held_delta[r][0] = -of_row.y;
    }
    return odd;
}
#else
bool hold_numbers(Work w, HeldNumbers numbers) {
    bool odd = MAY_BE_SHIFTED(w);
    FOR_EACH(r, ROW_BLOCKS) {
        FOR_EACH(item, HELD_NUMBERS) {
            const uint i = item * SUBGROUP_SIZE + lane;
            const vec4 of_row = numbers.of_row[r * HELD_NUMBERS + item];
            odd = odd || is_large(of_row.x) || of_row.w != 0;
            if (i >= M) continue;
            pool[share + i / 4][i % 4] = floatBitsToUint(-of_row.x);
            pool[share + M / 4 + i / 4][i % 4] = floatBitsToUint(-of_row.y);
#ifdef MASK_GRADIENT
            const float factor = of_row.w != 0 || w.first_row + subgroup_row + r * M + i > w.last_row ? 0 : of_row.z;
            pool[share + 2 * M / 4 + i / 4][i % 4] = floatBitsToUint(factor);
#endif
        }
        subgroupBarrier();
        ACCUMULATOR lse, delta, factor;
        coopMatLoad(lse, pool, share, 0, gl_CooperativeMatrixLayoutColumnMajor);
        coopMatLoad(delta, pool, share + M / 4, 0, gl_CooperativeMatrixLayoutColumnMajor);
#ifdef MASK_GRADIENT
        coopMatLoad(factor, pool, share + 2 * M / 4, 0, gl_CooperativeMatrixLayoutColumnMajor);
        FOR_EACH(e, ELEMENTS) held_factor[r][slot(e)] = factor[e];
#endif
        FOR_EACH(e, ELEMENTS) {
            held_lse[r][slot(e)] = lse[e];
            held_delta[r][slot(e)] = delta[e];
        }
        subgroupBarrier();
    }
    return odd;
}
#endif
#endif

// PAIRED subgroups exchange the weights P of a block: the subgroup for dvalue puts them here for the subgroup for dkey,
// element by element, because both have theirs in the same places. A weight of 0 means that the key is hidden: others
// are LEAST_PUT larger then. There are two places, so that one is read while the other is written: blocks take turns,
// or tiles if a subgroup is LAGGING. Those exchange operands of 16 bits, in float16 multiplied so that a small weight
// keeps its digits: it may have a large dP.
#if defined(F16) || defined(F16_OPERANDS)
#define PUT_SCALE (LAGGING ? 4096.0 : 1.0)
#define LEAST_PUT (LAGGING ? 1.0 / (1 << 26) : LEAST_WEIGHT)
#else
#define PUT_SCALE 1.0
#define LEAST_PUT LEAST_WEIGHT
#endif
const uint WEIGHT_WORDS = LAGGING ? ELEMENTS / 2 : ELEMENTS;
const uint WEIGHT_VECS = MATRIX_STEPS(WEIGHT_WORDS, POOL_FLOATS), WEIGHTS_SIZE = WEIGHT_VECS * SUBGROUP_SIZE;
uint turn = 0;  // the place of the tile's weights
uint weights_at(uint block, uint r, uint n) {
    const uint place = (LAGGING ? turn : block % 2) * OWNERS + owner;
    return POOL_WEIGHTS + ((place * ROW_BLOCKS + r) * BLOCK_TILES + n) * WEIGHTS_SIZE + lane;
}
void put_weights(ACCUMULATOR x, uint at) {
    FOR_EACH(v, WEIGHT_VECS) {
        POOL_TYPE words;
        FOR_EACH(i, POOL_FLOATS) {
            const uint w = min(v * POOL_FLOATS + i, WEIGHT_WORDS - 1);
            if (LAGGING) {
                const vec2 pair = PUT_SCALE * vec2(x[2 * w % ELEMENTS], x[(2 * w + 1) % ELEMENTS]);
                words[i] = word_of_pair(P_PAIR(pair.x, pair.y));
            } else {
                words[i] = floatBitsToUint(x[w]);
            }
        }
        pool[at + v * SUBGROUP_SIZE] = words;
    }
}
ACCUMULATOR get_weights(uint at) {
    ACCUMULATOR x;
    FOR_EACH(v, WEIGHT_VECS) {
        const POOL_TYPE words = pool[at + v * SUBGROUP_SIZE];
        FOR_EACH(i, POOL_FLOATS) {
            const uint w = min(v * POOL_FLOATS + i, WEIGHT_WORDS - 1);
            if (LAGGING) {
                const vec2 pair = floats_of_word(words[i]) / PUT_SCALE;
                x[2 * w % ELEMENTS] = pair.x;
                x[(2 * w + 1) % ELEMENTS] = pair.y;
            } else {
                x[w] = uintBitsToFloat(words[i]);
            }
        }
    }
    return x;
}

#include "lib/backward_matrix_slopes.glsl"

void begin_block(uint buf, uint block) {
    begin_scores(block);
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

// Turns scores of a block into P, and dP into dS. `mask` is where the block's masks begin among those of a row block.
#ifdef KEY_VALUE
const bool HIDES_IN_PLAIN = MASK_IS_PLAIN;
#else
// If a mask hides a key, P is 0, and dS is 0 too if dP is finite. These kernels test their sums, and start again
// without plain tiles if a sum is not finite.
const bool HIDES_IN_PLAIN = false;
#endif
void find_plain(uint buf, uint block, uint mask) {
    FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
        ACCUMULATOR lse = minus_lse(buf, block, n);
        add_lacks(lse, block, n);
#define MINUS_LSE(r, e) lse[e]
#else
#define MINUS_LSE(r, e) held_lse[r][slot(e)]
#endif
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const uint x = r * BLOCK_TILES + n;
                const float added = MASK_IS_PLAIN ? MASK_OF(r, mask + n, e) : 0;
                const bool hidden = HIDES_IN_PLAIN && floatBitsToUint(added) == MINUS_INFINITY;
                const float least = PAIRED && HIDES_IN_PLAIN ? LEAST_PUT : 0;  // a weight of 0 is a hidden key's
                const float lse_of_tile = MINUS_LSE(r, e) + LACKS(r, e);
                const float p = hidden ? 0 : EXP2(PLAIN_EXPONENT(scores[x][e], added, lse_of_tile)) + least;
                scores[x][e] = p;
                if (WANTS_DS && !PAIRED) dp[x][e] = hidden ? 0 : dp[x][e] * p;
            }
        if (PAIRED) FOR_EACH(r, ROW_BLOCKS) put_weights(scores[r * BLOCK_TILES + n], weights_at(block, r, n));
    }
}

// Returns the score minus the lse, and the derivative of the softcap; HIDDEN if the row does not see the key.
float finished_exponent(float qk, float minus_lse, Terms terms, uint row, int key, out float derivative) {
    vec4 derivatives;
    precise const float score = scaled(vec4(qk), derivatives).x;
    derivative = derivatives.x;
    const ivec2 keys = visible_keys(terms.w, row);
    if (!TERMS_ADD) {
        const bool may_begin_again = HIDES_KEYS && !HAS_SOFTCAP;
        return finished(may_begin_again ? PLAIN_EXPONENT(qk, 0, minus_lse) : score + minus_lse, terms, row, keys, key);
    }
    const float visible = finished(score, terms, row, keys, key);
    const float exponent = EXPONENT(visible, -minus_lse);
    const float coarse = abs(minus_lse) > COARSE_LSE ? LSE_STEPS * abs(minus_lse) : 0;
    return visible == HIDDEN ? HIDDEN : abs(exponent) < coarse ? 0 : exponent;
}

// Does for any block what find_plain does for plain ones. `first_key` is that of the tile of keys, walked or held.
void find_finished(Work w, uint first_key, uint buf, uint block) {
    const Terms terms = terms_of(w, true);
    const ACCUMULATOR places = read_places();
    FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
        const ACCUMULATOR lse = minus_lse(buf, block, n), factor = factors(buf, block, n);
#endif
        FOR_EACH(r, ROW_BLOCKS) {
            ACCUMULATOR weights;
            FOR_EACH(e, ELEMENTS) {
                const uvec2 place = place_of(places, e);
                const uint held = subgroup_row + r * M + place.x, walked = block * BLOCK + n * N + place.y;
#ifdef KEY_VALUE
                const uint row = w.first_row + walked, key = first_key + held;
                const float lost = IS_ZERO(factor[e]) || row > w.last_row ? 0 : factor[e];
#else
                const uint row = w.first_row + held, key = first_key + walked;
#ifdef MASK_GRADIENT
                const float lost = held_factor[r][slot(e)];
#else
                const float lost = 1;
#endif
#endif
                const uint x = r * BLOCK_TILES + n;
                float derivative;
                const float exponent = finished_exponent(scores[x][e], MINUS_LSE(r, e), terms, min(row, w.last_row),
                                                         int(key), derivative);
                const bool hidden = IS_ZERO(lost) || floatBitsToUint(exponent) == floatBitsToUint(HIDDEN);
                const float p = hidden ? 0 : EXP2(exponent) * lost;
                scores[x][e] = p;
#ifdef MASK_GRADIENT
                derivative = 1;  // the mask is added after the softcap
#endif
                if (PAIRED) weights[e] = hidden ? 0 : p * derivative + LEAST_PUT;
                else if (WANTS_DS) dp[x][e] = hidden ? 0 : p * derivative * dp[x][e];  // as pairs do
#if !defined(KEY_VALUE) && !defined(MASK_GRADIENT)
                row_sum[r][slot(e)] += p;
#endif
            }
            if (PAIRED) put_weights(weights, weights_at(block, r, n));
        }
    }
}

// Moves P or dS of a block to p_own.
#define MOVE_TO_LEFT(x) \
    FOR_EACH(r, ROW_BLOCKS) { \
        FOR_EACH(n, BLOCK_TILES) put_p(r, n, x[r * BLOCK_TILES + n]); \
        get_p(r); \
    }

// Takes the dS of a block off what their row should sum to; with a softcap, sums what they lose when they are rounded.
#if defined(KEY_VALUE) || defined(MASK_GRADIENT)
#define ADD_LOSS(in_plain_tile)
#else
#include "lib/rounding_loss.glsl"
#define ADD_LOSS(in_plain_tile) if (!(in_plain_tile) && sums_loss) add_loss();
void add_loss() {
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(n, BLOCK_TILES)
            FOR_EACH(i, ELEMENTS / 2) {
                const uint x = r * BLOCK_TILES + n;
                const PAIR rounded = P_PAIR(dp[x][2 * i], dp[x][2 * i + 1]);
                lost[r][slot(2 * i)] += (HAS_SOFTCAP ? dp[x][2 * i] : 0) - float(rounded.x);
                lost[r][slot(2 * i + 1)] += (HAS_SOFTCAP ? dp[x][2 * i + 1] : 0) - float(rounded.y);
            }
}
#endif

#ifdef KEY_VALUE
#define SPILL(block) SPILL_BLOCK(spill_at, block)
// Spills zeros for a block that is left out.
void spill_nothing(uint block) {
    if (SPILLS) {
        FOR_EACH(x, ROW_BLOCKS * BLOCK_TILES) scores[x] = ZEROS;
        MOVE_TO_LEFT(scores)
    }
    SPILL_BLOCK(spill_at, block)
}
#else
#define SPILL(block)
#endif

// Adds a block to the sums. `find` is a call of find_plain or find_finished; `finish` is true for the latter.
// `in_plain_tile` is a constant.
#define ADD_OWN_BLOCK(buf, block, in_plain_tile, finish, find) { \
    const uint at_qk = (buf) + (block) * BLOCK * QK_STRIDE, at_v = (buf) + BUF_V + (block) * BLOCK * V_STRIDE; \
    begin_block(buf, block); \
    if (!(finish)) fetch_block_masks(block); \
    multiply_scores(at_qk, at_v); \
    if (!(finish)) hold_masks(block); \
    find; \
    if (WANTS_DV) { \
        MOVE_TO_LEFT(scores) \
        add_to_v(SUMMED_V(buf, block, at_v)); \
    } \
    if (WANTS_DS) { \
        ADD_LOSS(in_plain_tile) \
        MOVE_TO_LEFT(dp) \
        SPILL(block) \
        add_to_qk(SUMMED_QK(buf, block, at_qk)); \
    } \
}

#ifdef KEY_VALUE
bool finds_dkey = subgroupBroadcastFirst(gl_SubgroupID) >= OWNERS;

void begin_paired_block(uint buf, uint block) {
    FOR_EACH(n, BLOCK_TILES) {
        ACCUMULATOR start = ZEROS;
        if (finds_dkey) start = minus_delta(buf, block, n);
        FOR_EACH(r, ROW_BLOCKS) scores[r * BLOCK_TILES + n] = start;
    }
    if (!finds_dkey) begin_scores(block);
}
// Turns dP - delta into dS by the weights from `weights_from` on. With `may_hide` a weight may be 0, which means a
// hidden key whose dP may be anything.
void take_weights(uint weights_from, bool may_hide) {
    const float least = may_hide ? LEAST_PUT : 0;
    FOR_EACH(x, ROW_BLOCKS * BLOCK_TILES) {
        const ACCUMULATOR weights = get_weights(weights_from + x * WEIGHTS_SIZE);
        FOR_EACH(e, ELEMENTS) {
            const float ds = scores[x][e] * (weights[e] - least);
            scores[x][e] = may_hide && IS_ZERO(weights[e]) ? 0 : ds;
        }
    }
}

// ADD_BLOCK for two subgroups that share their keys. The one for dvalue computes S, P and the sum over dO, the one for
// dkey computes dP, dS and the sum over Q. Query and dout have the same head dims here.
#define ADD_PAIRED_BLOCK(buf, block, finish, find) { \
    const uint at_qk = (buf) + (block) * BLOCK * QK_STRIDE, at_v = at_qk + BUF_V; \
    begin_paired_block(buf, block); \
    if (!(finish) && !finds_dkey) fetch_block_masks(block); \
    multiply_held(finds_dkey ? at_v : at_qk); \
    if (!(finish)) hold_masks(block); \
    if (!finds_dkey) find; \
    barrier(); \
    if (finds_dkey) take_weights(weights_at(block, 0, 0), HIDES_IN_PLAIN || (finish)); \
    MOVE_TO_LEFT(scores) \
    if (finds_dkey) SPILL(block) \
    add_to_qk(finds_dkey ? SUMMED_QK(buf, block, at_qk) : SUMMED_V(buf, block, at_v)); \
}
#ifdef MAY_LAG
#include "lib/backward_matrix_lag.glsl"
#else
#define ADD_LAGGING_BLOCK(buf, finish, find) {}
#endif
#define ADD_BLOCK(buf, block, in_plain_tile, finish, find) \
    if (LAGGING) ADD_LAGGING_BLOCK(buf, finish, find) \
    else if (PAIRED) ADD_PAIRED_BLOCK(buf, block, finish, find) \
    else ADD_OWN_BLOCK(buf, block, in_plain_tile, finish, find)
#else
#define ADD_BLOCK ADD_OWN_BLOCK
#endif
