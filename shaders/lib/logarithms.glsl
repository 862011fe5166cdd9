// Between the natural logarithms of the interface and base 2, in which kernels compute.
const float LOG2_E = 1.44269504088896340736;
const float LN_2 = 0.69314718055994530942;
const uint MINUS_INFINITY = 0xff800000u;  // the bits of an lse of no key

// What is not finite is told by its bits, because a driver may assume that a comparison meets no NaN. Macros, so that
// calls are not nested too deep (kernels.def).
const uint EXPONENT_BITS = 0x7f800000u;
const uint NAN_BITS = 0x7fc00000u;
#define IS_FINITE(x) ((floatBitsToUint(x) & EXPONENT_BITS) != EXPONENT_BITS)
// True for the sum of the weights of a row that sees no key; NaN is a sum like any other.
#define IS_ZERO(row_sum) (floatBitsToUint(row_sum) == 0)
