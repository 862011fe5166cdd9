// Slopes of heads, as a term of lib/scores.glsl. Applied to the distance they are ALiBi (Press et al.,
// arXiv:2108.12409):
//
//   score - slope * |p - j|      row i stands at p = i + position, and sees keys begin .. end-1
//
// A row's scores are relative to the key that the term lowers least: of those that the bounds leave it the nearest or,
// if the slope is negative, the farthest. So what is added is 0 or less and made of a difference of integers. It is
// exact where weights are large, however far from all keys the row stands. The rest, row_shift(), goes into the lse.
//
// Applied to a mask, they are factors of its elements: lib/term_mask.glsl.
//
// A slope that is not finite spoils the rows of its head.
float slope_of(Work w, uint row) {
    ArgumentsIn a = arguments();
    // A driver may load the slope of the head that a loop over heads ends at: it must be there.
    const uint head = min(w.head + head_of(row), num_heads_q() - 1);
    const uint batch = a.x.slopes_per_batch != 0 ? w.batch : 0;
    return FloatsIn(a.x.slopes).x[batch * num_heads_q() + head];
}

// The distance of the row from the key relative to which its scores are. The bounds leave it `keys`, begin .. end-1,
// of which there is one.
int reach_of(Work w, float slope, uint row, ivec2 keys) {
    const int p = position_of(w, row), before = p - keys.x, behind = keys.y - 1 - p;
    if (slope < 0) return max(abs(before), abs(behind));
    return max(0, max(-before, -behind));
}

float bias_of_distance(float slope, float distance) {
    return clamp(slope * -distance, -HIGHEST_BIAS, HIGHEST_BIAS);
}

// Returns the natural number that the term leaves out of a row's scores. The row sees some key.
float row_shift(Work w, uint row) {
    if (!SHIFTS_ROWS) return 0;
    const float slope = slope_of(w, row);
    return bias_of_distance(slope, float(reach_of(w, slope, row, visible_keys(w, row))) + float(w.beyond));
}

// The gradient of a mask's element, from that of a score which it was added to.
vec4 gradient_of_mask(Work w, vec4 ds) {
    if (SLOPES != SLOPES_MASK) return ds;
    return mix(ds * slope_of(w, w.first_row), vec4(0), equal(ds, vec4(0)));  // hidden: 0, whatever the slope is
}

// Statements of finished(), behind which `slope` is the row's.
#define TERM_SLOPES \
    const float slope = SLOPES == SLOPES_NONE ? 1 : PACKED_HEADS ? slope_of(terms.w, row) : terms.slope; \
    spoiled = spoiled || !IS_FINITE(slope); \
    if (SLOPES == SLOPES_DISTANCE) { \
        const int distance = abs(position_of(terms.w, row) - key); \
        added += bias_of_distance(slope, float(distance - reach_of(terms.w, slope, row, keys))); \
    }
