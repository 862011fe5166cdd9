// Between the natural logarithms of the interface and base 2, in which kernels compute.
const float LOG2_E = 1.44269504088896340736;
const float LN_2 = 0.69314718055994530942;
const uint MINUS_INFINITY = 0xff800000u;  // the bits of an lse of no key
