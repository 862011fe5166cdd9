// Masks in the matrix kernel.
//
// Keys that no row of a tile may see can hold anything, and 0 * NaN is not 0: their V is zeroed. The loop with a running
// maximum does so as it stages V, which it knows S for by then. The other one has staged it before: only where V holds
// something that is not finite (odd_tile) does it look at P, and zero what has no weight.
shared uint seen[MATRIX_STEPS(TILE_KV, 32)];  // keys, a bit each
shared uint odd_tile;                         // the first key of the last tile of V with such content, plus 1

void forget_seen() {
    for (uint i = thread; i < MATRIX_STEPS(TILE_KV, 32); i += THREADS) seen[i] = 0;
}

bool is_seen(uint key) { return (seen[key / 32] >> key % 32 & 1) != 0; }

// Marks the keys that this subgroup's rows see: by their scores or, where P is laid out as they are, by their weights.
#define MARK_SEEN(sees) \
    const ACCUMULATOR places = read_places(); \
    uint words[MATRIX_STEPS(TILE_KV, 32)]; \
    FOR_EACH(i, MATRIX_STEPS(TILE_KV, 32)) words[i] = 0; \
    FOR_EACH(e, ELEMENTS) { \
        const uint column = place_of(places, e).y; \
        FOR_EACH(n, KEY_TILES) FOR_EACH(r, ROW_BLOCKS) if (sees) words[n * N / 32] |= 1u << (n * N % 32 + column); \
    } \
    FOR_EACH(i, MATRIX_STEPS(TILE_KV, 32)) atomicOr(seen[i], words[i]);
void mark_seen() { MARK_SEEN(scores[r * KEY_TILES + n][e] > NO_MAXIMUM) }
void mark_weighted() { MARK_SEEN(float(p_left[r * KEY_STEPS + n][e]) != 0) }

void store_seen_v() { STORE(POOL_V, V_STRIDE, V_ITEMS, V_VECS, is_seen(row) ? operands_of(fetched[t]) : uvec4(0)) }

// Whether the exponent of any of eight operands is all ones.
#if defined(F16) || defined(F16_OPERANDS)
const uint EXPONENTS = 0x7c007c00, LEAST_OF_EXPONENT = 0x04000400;
#else
const uint EXPONENTS = 0x7f807f80, LEAST_OF_EXPONENT = 0x00800080;
#endif
bool is_odd(uvec4 x) {
    const uvec4 carried = (x & EXPONENTS) + LEAST_OF_EXPONENT;
    return ((carried.x | carried.y | carried.z | carried.w) & 0x80008000) != 0;
}
void find_odd_v(uint first_key) {
    bool odd = false;
    FOR_EACH(t, V_ITEMS) odd = odd || is_odd(operands_of(fetched[t]));
    if (odd) odd_tile = first_key + 1;
}

// By all invocations, behind the barrier that V was staged for.
void drop_unseen_v() {
    forget_seen();
    barrier();
    mark_weighted();
    barrier();
    for (uint i = thread; i < TILE_KV * V_STRIDE; i += THREADS)
        if (!is_seen(i / V_STRIDE)) pool[POOL_V + i] = uvec4(0);
    barrier();
}

// A float mask of 16-bit elements is fetched while Q . K^T is computed: elements 2 i and 2 i + 1 of an accumulator in one
// word. Of tiles that lie within the bounds, and not of those that a row's offset is set at: scores beyond what is finite
// must have been seen by large_scores.
const bool BIAS_OF_16 = MASK == MASK_FLOAT ? ELEMENT_BYTES == 2 : false;
const bool BIAS_AHEAD = RUNNING_MAX == 0 ? (WIDE_ROWS == 0 ? BIAS_OF_16 : false) : false;
const bool NEIGHBOURS = SOURCE(4) == 8;  // 2 i and 2 i + 1 are, in a row
uint bias[BIAS_AHEAD ? ROW_BLOCKS * KEY_TILES * ELEMENTS / 2 : 1];
uint bias_row[ROW_BLOCKS][SLOTS];  // where it begins, in elements from bias_base
uvec2 bias_base;
bool bias_words;    // neighbours lie in one word, in all rows
bool bias_per_key;  // not one element for all keys of a row

void find_bias(Work w) {
    if (!BIAS_AHEAD) return;
    const MaskRows mask = mask_rows(w);
    bias_base = mask.base;
    bias_per_key = mask_key_step() != 0;
    bias_words = NEIGHBOURS && ((mask.base.x >> 1 | mask.stride.x | mask.heads.x) & 1) == 0;
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(e, ELEMENTS)
            bias_row[r][slot(e)] = mask_row(mask, min(w.first_row + subgroup_row + r * M + place_row(e), w.last_row)).at;
}

#if defined(F16) || defined(BF16)
#define BIAS_AT(e) (bias_row[r][slot(e)] + (first_key + n * N + place_column(e)))
#define FETCH_BIAS(word) \
    FOR_PART(n, part, KEY_TILES) \
        FOR_EACH(r, ROW_BLOCKS) FOR_EACH(i, ELEMENTS / 2) bias[(r * KEY_TILES + n) * ELEMENTS / 2 + i] = word;
void fetch_bias(uint first_key, uint part) {
    if (!BIAS_AHEAD) return;
    const RowStart row = RowStart(bias_base, 0);
    if (bias_words) {
        FETCH_BIAS(UintsIn(bias_base).x[BIAS_AT(2 * i) / 2])
    } else {
        FETCH_BIAS(load_bits(row, BIAS_AT(2 * i)) | load_bits(row, BIAS_AT(2 * i + 1)) << 16)
    }
}
float bias_of(uint r, uint n, uint e) { return floats_of(bias[(r * KEY_TILES + n) * ELEMENTS / 2 + e / 2])[e % 2]; }
#else
void fetch_bias(uint first_key, uint part) {}
float bias_of(uint r, uint n, uint e) { return 0; }
#endif

// 2^(score + bias - offset), in base 2; 0 of what is hidden, whose score may be anything.
float biased_weight(float score, float bias, float factor, float offset) {
    const bool hidden = floatBitsToUint(bias) == 0xff800000u;
#ifdef BF16  // float16 has no number that large
    bias = clamp(bias, -HIGHEST_BIAS, HIGHEST_BIAS);
#endif
    return hidden ? 0 : exp2(fma(score, factor, fma(bias, LOG2_E, -offset)));
}
