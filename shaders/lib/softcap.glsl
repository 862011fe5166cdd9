// The softcap, a term of the scores (lib/scores.glsl): c * tanh(s / c), where s is the scaled x.
//
// Let t = s / c. From |t| = 1 on the tanh is 1 - 2u / (1 + u) with u = e^-2|t|, which cannot overflow. That loses what
// is small, so a polynomial stands in below: t * (1 + t^2 * p(t^2)), fitted to a relative error of 5.5e-8, and 1.5e-7
// as float32 computes it. Times c this is s * (1 + t^2 * p(t^2)), which needs no t where t is tiny: with a cap of 1e37
// it is flushed to 0, and s has to come out as it is. For large |t| the cap is multiplied, and s, which may have
// overflowed, does not matter. NaN stays NaN whichever way the comparison goes.
const uint SIGN_BIT = 0x80000000u;
float scale_of_tanh = HAS_SOFTCAP ? push.score_scale / push.score_softcap : 0;

// Returns t^2 * p(t^2).
vec4 cap_series(vec4 t) {
    const vec4 square = t * t;
    vec4 series = vec4(0.001058264699);
    series = series * square - 0.006259339521;
    series = series * square + 0.02035975963;
    series = series * square - 0.05349870778;
    series = series * square + 0.1332640888;
    series = series * square - 0.3333298678;
    return square * series;
}

// Returns the capped score of x; `derivative` is that of the capped score by s, 1 - tanh^2.
vec4 capped(vec4 x, out vec4 derivative) {
    precise const vec4 s = x * push.score_scale;
    const vec4 t = x * scale_of_tanh, series = cap_series(t);
    const vec4 power = -2.88539008 * abs(t), u = EXP2_4(power), size = 1 - 2 * (u / (1 + u));
    const vec4 far = uintBitsToFloat(floatBitsToUint(size) | floatBitsToUint(t) & SIGN_BIT);
    const bvec4 is_near = lessThan(abs(t), vec4(1));
    const vec4 tanh_of_t = mix(far, t + t * series, is_near);
    precise const vec4 tanh_squared = tanh_of_t * tanh_of_t;
    derivative = 1 - tanh_squared;
    return mix(push.score_softcap * far, s + s * series, is_near);
}

#ifdef QUICK_CAP
// A quick cap for a loop that has no instruction to spare. Up to |t| = 3/4 the capped score is x * (scale + a
// polynomial of x^2), whose factors are found once. Its relative error is 6.5e-7: at a score of 37 a twentieth of what
// rounding P to 16 bits takes. The loop keeps the largest x^2 and, where that passes the limit, computes the tile once
// more with capped(). On an H200 (D128, N 4,096) this takes 1.16 times as long as no softcap, and 1.34 times with the
// polynomial of capped() and the largest |x| in its place.
float cap_1, cap_2, cap_3, cap_4;
uint largest_square = 0, least_far_square;  // bits of x^2: NaN passes every limit
bool quick_cap_holds;

void find_quick_cap() {
    const float square = scale_of_tanh * scale_of_tanh;
    cap_1 = push.score_scale * square * -0.3332966765;
    cap_2 = push.score_scale * square * square * 0.1326823703;
    cap_3 = push.score_scale * square * square * square * -0.05027795346;
    cap_4 = push.score_scale * square * square * square * square * 0.01310583595;
    least_far_square = floatBitsToUint(0.5625 / square);
    // Within these no factor is subnormal or infinite, and a score is off by 1e-4 at most.
    const vec2 sizes = abs(vec2(scale_of_tanh, push.score_scale));
    quick_cap_holds = all(greaterThan(sizes, vec2(1e-4, 1e-3))) && all(lessThan(sizes, vec2(1e3))) &&
                      push.score_softcap < 256;
}
bool passes_quick_cap() { return HAS_SOFTCAP && quick_cap_holds && largest_square >= least_far_square; }
#define CAP_SCALE(square) \
    fma(fma(fma(fma(cap_4, square, cap_3), square, cap_2), square, cap_1), square, push.score_scale)
#endif
