// What dquery loses where score gradients are rounded to 16 bits, and how it is given back. The dS of a row sum to
// nothing (without a softcap and dlse), so that what all keys have in common adds nothing to dS . K. Rounded ones do not
// sum to nothing: a head dim in which all keys are large, as models have them, then drowns the others. Let c be what
// keys have in common. With e = dS - rounded dS
//
//   dS . K = rounded dS . K + e . K,   and e . K = e . (K - c) + rowsum(e) * c
//
// of which the last term is the large one, and is added: e is summed for each row. That costs some instructions an
// element, so it is done only where c is large beside what keys differ by (loses_by_rounding).
//
// c is of two keys, the first and the last that some row of the query tile sees: of each head dim the smaller number if
// both have one sign, else 0. A single key would not do, because the first token's may be unlike all others. What is
// hidden must change no bit, so no hidden key will do.
//
// backward_query.comp, with the macro DOT, and backward_matrix_query.comp include it. It assumes lib/scores.glsl.
shared uint nearest_seen, most_common, most_different;
const float LARGE_BESIDE_DIFFERENCES = 4;  // a guess: of normal numbers it is 1 at most

// The key nearest to an end of `keys`, which lie within the bounds of some row, that a mask leaves to some row of the
// query tile; keys.y if there is none. All invocations call it, and get the same.
uint seen_key(Work w, uvec2 keys, bool from_end) {
    const uint count = keys.y - keys.x;
    uint found = MASK_KIND == MASK_NONE ? 0 : count;
    const Terms terms = terms_of(w, true);
    for (uint first = 0; MASK_KIND != MASK_NONE && first < count && found == count; first += THREADS) {
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

// Four elements of c.
vec4 in_common(vec4 a, vec4 b) {
    const vec4 c = mix(b, a, lessThan(abs(a), abs(b)));
    const bvec4 is_none = greaterThanEqual(floatBitsToUint(c) & SIZE_BITS, uvec4(EXPONENT_BITS));
    return mix(mix(c, vec4(0), lessThan(a * b, vec4(0))), vec4(0), is_none);
}

// compare_keys() is called with every part of the two keys by some invocation, between barriers; then
// loses_by_rounding() says whether what they have in common is large.
void begin_comparison() {
    if (thread == 0) most_common = most_different = 0;
}
void compare_keys(vec4 a, vec4 b) {
    const vec4 c = abs(in_common(a, b)), d = abs(a - b);
    atomicMax(most_common, floatBitsToUint(max(max(c.x, c.y), max(c.z, c.w))));
    atomicMax(most_different, floatBitsToUint(max(max(d.x, d.y), max(d.z, d.w))));
}
bool loses_by_rounding() {
    return uintBitsToFloat(most_common) > LARGE_BESIDE_DIFFERENCES * uintBitsToFloat(most_different);
}
