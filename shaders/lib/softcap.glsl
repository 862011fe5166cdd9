// The softcap, a term of the scores (lib/scores.glsl): c * tanh(s / c).

// 1 - 2/(e^2x + 1) loses what is small, so the Taylor series stands in below 1/2, exact there to 1e-7. The clamp keeps
// e^2x finite and changes no float32 result.
const uint HALF_BITS = 0x3f000000u;
vec4 tanh4(vec4 x) {
    const vec4 y = x * x;
    vec4 series = vec4(21844.0 / 6081075.0);
    series = series * y - 1382.0 / 155925.0;
    series = series * y + 62.0 / 2835.0;
    series = series * y - 17.0 / 315.0;
    series = series * y + 2.0 / 15.0;
    series = series * y - 1.0 / 3.0;
    const vec4 far = 1 - 2 / (exp2(2.88539008 * clamp(x, -20, 20)) + 1);
    // By its bits, because NaN shall take the series, which keeps it: the clamp may turn it into a number.
    const uvec4 beyond_half = (floatBitsToUint(x) & SIZE_BITS) - HALF_BITS;
    return mix(x + x * (y * series), far, lessThanEqual(beyond_half, uvec4(EXPONENT_BITS - HALF_BITS)));
}
