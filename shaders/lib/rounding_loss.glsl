// What dquery loses where score gradients are rounded to 16 bits, and how it is given back. The dS of a row sum to
// nothing (without a softcap and dlse), so that what all keys have in common adds nothing to dS . K. Rounded ones do not
// sum to nothing: a head dim in which all keys are large, as models have them, then drowns the others. Let c be any key.
// With e = dS - rounded dS
//
//   dS . K = rounded dS . K + e . K,   and e . K = e . (K - c) + rowsum(e) * c
//
// of which the last term is the large one, and is added: e is summed for each row (ADD_LOSS of a kernel), and c is the
// first key that some row of the query tile sees. What is hidden must change no bit, so no other one will do.
//
// backward_query.comp, with the macro DOT, and backward_matrix_query.comp include it. It assumes lib/scores.glsl.
shared uint seen_key;

// The first of `keys`, which lie within the bounds of some row, that a mask leaves to some row of the query tile; keys.y
// if there is none. All invocations call it, and get the same.
uint first_seen_key(Work w, uvec2 keys) {
    if (MASK_KIND == MASK_NONE) return keys.x;
    const Terms terms = terms_of(w, true);
    uint found = keys.y;
    for (uint first = keys.x; first < keys.y && found == keys.y; first += THREADS) {
        barrier();
        if (thread == 0) seen_key = keys.y;
        barrier();
        const uint key = first + thread;
        bool seen = false;
        for (uint row = w.first_row; key < keys.y && row <= w.last_row && !seen; row++)
            seen = finished(0, terms, row, visible_keys(w, row), int(key)) != HIDDEN;
        if (seen) atomicMin(seen_key, key);
        barrier();
        found = seen_key;
    }
    return found;
}

// Four elements of c: those that are not finite give nothing back, because they have spoiled the row already if it sees
// them.
vec4 finite_part(vec4 c) {
    return mix(c, vec4(0), greaterThanEqual(floatBitsToUint(c) & SIZE_BITS, uvec4(EXPONENT_BITS)));
}
