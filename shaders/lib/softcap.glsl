// The softcap, a term of the scores (lib/scores.glsl): c * tanh(s / c).

// For |x| above 1/2 it is 1 - 2u / (1 + u) with u = e^-2|x|, which cannot overflow. That loses what is small, so the
// Taylor series stands in below 1/2, exact there to 1e-7. Either way NaN stays NaN, whichever the comparison takes.
const uint SIGN_BIT = 0x80000000u;
vec4 tanh4(vec4 x) {
    const vec4 y = x * x;
    vec4 series = vec4(21844.0 / 6081075.0);
    series = series * y - 1382.0 / 155925.0;
    series = series * y + 62.0 / 2835.0;
    series = series * y - 17.0 / 315.0;
    series = series * y + 2.0 / 15.0;
    series = series * y - 1.0 / 3.0;
    const vec4 power = -2.88539008 * abs(x), u = EXP2_4(power), size = 1 - 2 * (u / (1 + u));
    const vec4 far = uintBitsToFloat(floatBitsToUint(size) | floatBitsToUint(x) & SIGN_BIT);
    return mix(far, x + x * (y * series), lessThan(abs(x), vec4(0.5)));
}
