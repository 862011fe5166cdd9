// The softcap, a term of the scores (lib/scores.glsl): c * tanh(s / c), where s is the scaled x.
//
// Let t = s / c. For |t| above 1/2 the tanh is 1 - 2u / (1 + u) with u = e^-2|t|, which cannot overflow. That loses
// what is small, so the Taylor series stands in below 1/2, exact there to 1e-7: t * (1 + t^2 * series). Times c this is
// s * (1 + t^2 * series), which needs no t where t is tiny: with a cap of 1e37 it is flushed to 0, and s has to come
// out as it is. For large |t| the cap is multiplied, and s, which may have overflowed, does not matter. NaN stays NaN
// whichever way the comparison goes.
const uint SIGN_BIT = 0x80000000u;
float scale_of_tanh = HAS_SOFTCAP ? push.score_scale / push.score_softcap : 0;

// Returns the capped score of x; `derivative` is that of the capped score by s, 1 - tanh^2.
vec4 capped(vec4 x, out vec4 derivative) {
    precise const vec4 s = x * push.score_scale;
    const vec4 t = x * scale_of_tanh, square = t * t;
    vec4 series = vec4(21844.0 / 6081075.0);
    series = series * square - 1382.0 / 155925.0;
    series = series * square + 62.0 / 2835.0;
    series = series * square - 17.0 / 315.0;
    series = series * square + 2.0 / 15.0;
    series = series * square - 1.0 / 3.0;
    series = square * series;
    const vec4 power = -2.88539008 * abs(t), u = EXP2_4(power), size = 1 - 2 * (u / (1 + u));
    const vec4 far = uintBitsToFloat(floatBitsToUint(size) | floatBitsToUint(t) & SIGN_BIT);
    const bvec4 is_near = lessThan(abs(t), vec4(0.5));
    const vec4 tanh_of_t = mix(far, t + t * series, is_near);
    precise const vec4 tanh_squared = tanh_of_t * tanh_of_t;
    derivative = 1 - tanh_squared;
    return mix(push.score_softcap * far, s + s * series, is_near);
}
