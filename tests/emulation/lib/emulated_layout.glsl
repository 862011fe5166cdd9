// This file says where the emulated matrix unit keeps its elements. Its shape is a cube: M, N and K are one number. An
// invocation has
// a column of an accumulator and of a right operand, or a row of a left one: that of its number modulo N.
//
//               accumulator                                          operands
//   as on RDNA4 as many rows one after the other as there are        likewise, along K
//               elements, on in the next N invocations
//   as on RDNA3 every other row, from the number of the half on      all of K, in both halves of the subgroup
//   (macro EXCHANGED)
//
// The counts are no specialization constants, because GLSL assigns no arrays of such sizes. They are right for
// 16 x 16 x 16 in 32 invocations, and without EXCHANGED for 8 x 8 x 8 in 8.
#ifdef EXCHANGED
const bool ALTERNATES = true;
const uint OPERAND_ELEMENTS = 16;
#else
const bool ALTERNATES = false;
const uint OPERAND_ELEMENTS = 8;
#endif
const uint ACCUMULATOR_ELEMENTS = 8;

uint own_line() { return gl_SubgroupInvocationID % N; }  // column, or a left operand's row
uint accumulator_row(uint e) {
    const uint part = gl_SubgroupInvocationID / N;
    return ALTERNATES ? 2 * e + part : part * ACCUMULATOR_ELEMENTS + e;
}
uint operand_k(uint e) { return ALTERNATES ? e : gl_SubgroupInvocationID / N * OPERAND_ELEMENTS + e; }
