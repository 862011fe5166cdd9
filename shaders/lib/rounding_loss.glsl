// dquery loses something by rounding, and this file gives it back. P sums to 1 in a row, and delta is rowsum(P o dP)
// less dlse, so the dS of a row sum to dlse (without softcap and sink), and what all keys have in common adds nothing
// else to dS . K. But delta comes from an out that is rounded to 16 bits, and products of 16 bits round dS, too. Then
// the dS of a row sum to something else, and a head dim in which all keys are large, as models have them, drowns the
// others. Let c be what keys have in common, and ds the dS that are multiplied:
//
//   dS . K = dS . (K - c) + dlse * c,   which is about   ds . K + (dlse - rowsum(ds)) * c
//
// On matrix units the last term is added. For 16-bit dot products, and with a softcap, whose derivative leaves the sum
// of dS unknown, it is what rounding takes from dS, rowsum(dS - ds) * c. Either takes some instructions an element, so
// it is done only where c is large beside what keys differ by (sums_loss).
//
// Two keys give c: the first and the last that some row of the query tile sees. Links do not lead back from the end, so
// that with whole blocks the second one is of a tile from the middle on, or else of the second tile. In each head dim c
// is the smaller of their numbers if both have one sign, else 0. A single key would not do, because the first token's
// may be unlike all others. Hidden content must change no bit, so neither key may be hidden.
//
// backward_query.comp, with the macro DOT, and backward_matrix_query.comp include it. It assumes lib/scores.glsl. A
// kernel calls begin_comparison(), a barrier, compare_keys(), a barrier, and find_whether_loss_is_large(). Before
// compare_keys() it calls fetch_compared(), early, so that it need not wait for the keys.
shared uint nearest_seen, most_common, most_different;  // the latter two are bits of numbers that are not negative
const float LARGE_BESIDE_DIFFERENCES = 4;               // a guess, not measured

uvec2 common_keys;       // the two keys
bool sums_loss = false;  // the kernel has to sum its dS

// The key nearest to an end of `keys`, which lie within the bounds of some row, that a mask leaves to some row of the
// query tile; keys.y if there is none. All invocations call it, and get the same.
uint seen_key(Work w, uvec2 keys, bool from_end) {
    const uint count = keys.y - keys.x;
    uint found = !HIDES_KEYS ? 0 : count;
    const Terms terms = terms_of(w, true);
    for (uint first = 0; HIDES_KEYS && first < count && found == count; first += THREADS) {
        const uvec2 ends = uvec2(first, min(first + THREADS, count));
        const uvec2 part = from_end ? keys.y - ends.yx : keys.x + ends;
        if (HAS_BLOCK_MAP && class_of_blocks(w, uvec2(w.first_row, w.last_row), part) == CLASS_HIDDEN) continue;
        barrier();
        if (thread == 0) nearest_seen = count;
        barrier();
        const uint at = first + thread, key = from_end ? keys.y - 1 - at : keys.x + at;
        bool seen = false;
        for (uint row = w.first_row; at < count && row <= w.last_row && !seen; row++)
            seen = finished(0, terms, row, visible_keys(w, row), int(key)) != HIDDEN;
        if (seen) atomicMin(nearest_seen, at);
        barrier();
        found = nearest_seen;
    }
    return found == count ? keys.y : from_end ? keys.y - 1 - found : keys.x + found;
}

// Returns both keys, or keys.y twice if there is none.
uvec2 seen_keys(Work w, uvec2 keys) {
#ifdef ID_HAS_LINKS
    if (WHOLE_BLOCKS) {
        Walk tiles;
        tiles.row = class_index(w);
        const uint first = begin_walk(tiles, keys.x).first, second = go_on_walk(tiles).first;
        const uint middle = begin_walk(tiles, keys.x + (keys.y - keys.x) / 2).first;
        const uint last = middle < keys.y && middle != first ? middle : second < keys.y ? second : first;
        return first < keys.y ? uvec2(max(first, keys.x), min(last + TILE_KV, keys.y) - 1) : keys.yy;
    }
#endif
    return uvec2(seen_key(w, keys, false), seen_key(w, keys, true));
}

// Keys are rounded as the operands of products are: else what dS sum to would be multiplied by the difference.
vec4 four_of_key(Rows k, uint key, uint d) {
    const RowStart at = row_start(tile_at(k, key), key, KEY_VALUE_BYTES);
    const vec4 x = key_value_floats(load_key_value4(at, d, HEAD_DIM_QK, false));
#if defined(F16_OPERANDS)
    return floats_of(TYPE_FLOAT16, operands_of(x));
#elif defined(BF16_OPERANDS)
    return floats_of(TYPE_BFLOAT16, operands_of(x));
#else
    return x;
#endif
}
vec4 in_common(vec4 a, vec4 b) {
    const vec4 c = mix(b, a, lessThan(abs(a), abs(b)));
    const bvec4 is_none = greaterThanEqual(floatBitsToUint(c) & SIZE_BITS, uvec4(EXPONENT_BITS));
    return mix(mix(c, vec4(0), lessThan(a * b, vec4(0))), vec4(0), is_none);
}
// Returns head dims d .. d+3 of c, which are zero from HEAD_DIM_QK on.
vec4 four_in_common(Rows k, uint d) {
    return in_common(four_of_key(k, common_keys.x, d), four_of_key(k, common_keys.y, d));
}

void begin_comparison() {
    if (thread == 0) most_common = most_different = 0;
}

// The head dims of the two keys that an invocation compares.
const uint COMPARED = (HEAD_DIM_QK + 4 * THREADS - 1) / (4 * THREADS);
struct ComparedKeys {
    vec4 first[COMPARED], last[COMPARED];
};

// Finds the two keys among `keys`, those that the tile sees, and fetches them. All invocations call it.
void fetch_compared(Work w, Rows k, uvec2 keys, out ComparedKeys compared) {
    [[unroll]] for (uint i = 0; i < COMPARED; i++) compared.first[i] = compared.last[i] = vec4(0);
    if (keys.x >= keys.y) return;
    common_keys = seen_keys(w, keys);
    if (common_keys.x >= keys.y) return;
    [[unroll]] for (uint i = 0; i < COMPARED; i++) {
        const uint d = 4 * (i * THREADS + thread);
        if (d >= HEAD_DIM_QK) continue;
        compared.first[i] = four_of_key(k, common_keys.x, d);
        compared.last[i] = four_of_key(k, common_keys.y, d);
    }
}
void compare_keys(ComparedKeys compared) {
    [[unroll]] for (uint i = 0; i < COMPARED; i++) {
        if (4 * (i * THREADS + thread) >= HEAD_DIM_QK) continue;
        const vec4 a = compared.first[i], b = compared.last[i], same = abs(in_common(a, b)), apart = abs(a - b);
        atomicMax(most_common, floatBitsToUint(max(max(same.x, same.y), max(same.z, same.w))));
        atomicMax(most_different, floatBitsToUint(max(max(apart.x, apart.y), max(apart.z, apart.w))));
    }
}
void find_whether_loss_is_large() {
    sums_loss = uintBitsToFloat(most_common) > LARGE_BESIDE_DIFFERENCES * uintBitsToFloat(most_different);
}

#ifndef DOT
// Returns the sum of a row's dS, of weights whose sum is 1 / factor.
float sum_of_gradients(Work w, uint row, float factor) {
    if (HAS_SOFTCAP) return 0;
    float sum = 0;
    if (HAS_DLSE) {
        const RowStart at = dense_row(backward().x.dlse, uvec2(0), 1, w, row);
        sum = FloatsIn(at.base).x[at.at] / factor;
    }
    if (HAS_SINKS) {  // the part of delta that its weight is missing for
        const RowStart at = statistics_of(w, row);
        const vec4 statistics = Vec4sIn(at.base).x[at.at / 4];
        if (statistics.w == 0) sum += statistics.y * sink_weight(w, row, statistics.x);
    }
    return sum;
}
#endif
