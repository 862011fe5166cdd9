// From q.k to a score in base 2: scale, softcap, mask, what is hidden.
// No infinities and no NaN tests: drivers may assume there are none. Hidden scores are far below the initial row maximum,
// and that far below the lowest visible score: 2^(hidden - row_max) is 0 even in a row that has seen nothing.
const float HIDDEN = -3e38;
const float NO_MAXIMUM = -2e38;
const float LOWEST_SCORE = -1e38;
const float HIGHEST_BIAS = 6.9e37;  // times log2(e) within the lowest score
const float GROWTH = 8.0;  // row_max may lag by this much: P stays below 2^8, far from overflow

// 1 - 2/(e^2x + 1) loses what is small, so the Taylor series stands in below 1/2, exact there to 1e-7. The clamp keeps
// e^2x finite and changes no float32 result.
vec4 tanh4(vec4 x) {
    const vec4 y = x * x;
    vec4 series = vec4(21844.0 / 6081075.0);
    series = series * y - 1382.0 / 155925.0;
    series = series * y + 62.0 / 2835.0;
    series = series * y - 17.0 / 315.0;
    series = series * y + 2.0 / 15.0;
    series = series * y - 1.0 / 3.0;
    const vec4 far = 1 - 2 / (exp2(2.88539008 * clamp(x, -20, 20)) + 1);
    return mix(far, x + x * (y * series), lessThan(abs(x), vec4(0.5)));
}

// q.k, scaled and capped. Rounded before anything is subtracted from it: then it is the same in every kernel and tile, and
// P of the backward that of out. H200, 'values=ascending d=64' (scores to 98): otherwise dquery is off by 1.9e-5, allowed 7.5e-6.
vec4 scaled(vec4 x) {
    precise vec4 score = x * p.scale_log2;
    if (SOFTCAP != 0) score = p.softcap_log2 * tanh4(score);
    return score;
}

// A scaled score with its mask; HIDDEN if the row, which sees `keys` of all, may not see the key. `masked` false: the mask
// is known to change nothing here.
// `shift` is added with the mask: the backward's -lse, which then cancels what large masks add before a score is lost in it.
float finished(float score, float shift, MaskRows mask, uint row, ivec2 keys, int key, uint last_key, bool masked) {
    bool hidden = key < keys.x || key >= keys.y;
    float added = 0;
    if (MASK != MASK_NONE && masked && !hidden) {
        // What is hidden anyway may be loaded too, ahead of the test: it must be there.
        const vec2 element = mask_element(mask_row(mask, row), min(uint(key), last_key) * mask_key_step());
        hidden = element.y != 0;
        added = LOG2_E * clamp(element.x, -HIGHEST_BIAS, HIGHEST_BIAS);
    }
    return hidden ? HIDDEN : clamp(score + (added + shift), LOWEST_SCORE, -LOWEST_SCORE);
}
