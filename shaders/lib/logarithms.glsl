// Between the natural logarithms of the interface and base 2, in which kernels compute exponentials.
const float LOG2_E = 1.44269504088896340736;
const float LN_2 = 0.69314718055994530942;
const uint MINUS_INFINITY = 0xff800000u;  // the bits of an lse of no key

// NaN and infinity are recognised by their bits, because a driver may assume that a comparison meets no NaN. These are
// macros, so that calls are not nested too deep (kernels.def).
const uint EXPONENT_BITS = 0x7f800000u;
const uint NAN_BITS = 0x7fc00000u;
const uint SIZE_BITS = 0x7fffffffu;  // all but the sign
#define IS_FINITE(x) ((floatBitsToUint(x) & EXPONENT_BITS) != EXPONENT_BITS)
// True for a weight that is hidden, and for the sum of a row that sees no key. NaN is a number like any other here.
#define IS_ZERO(x) (floatBitsToUint(x) == 0)
// exp2 of a number or a vec4; NaN where it is NaN.
#define IS_NAN(x) ((floatBitsToUint(x) & SIZE_BITS) > EXPONENT_BITS)
#define ARE_NAN4(x) greaterThan(floatBitsToUint(x) & SIZE_BITS, uvec4(EXPONENT_BITS))
#define EXP2(x) (EXP2_LOSES_NAN && IS_NAN(x) ? (x) : exp2(x))
#define EXP2_4(x) (EXP2_LOSES_NAN ? mix(exp2(x), x, ARE_NAN4(x)) : exp2(x))
