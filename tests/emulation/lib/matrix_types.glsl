// Stands in for shaders/lib/matrix_types.glsl: matrices of a unit that no device here has, as arrays of an invocation's
// elements, so that the modules of lib/matrix_turned.glsl can be executed. It has what these use, and no more.
#include "lib/emulated_layout.glsl"

#define ACCUMULATOR float[ACCUMULATOR_ELEMENTS]
#define LEFT ELEMENT[OPERAND_ELEMENTS]
#define RIGHT ELEMENT[OPERAND_ELEMENTS]
#define ROUNDED rounded_elements  // only as a conversion

ACCUMULATOR zeros() {
    ACCUMULATOR x;
    for (uint e = 0; e < ACCUMULATOR_ELEMENTS; e++) x[e] = 0;
    return x;
}
#define ZEROS zeros()

ELEMENT[ACCUMULATOR_ELEMENTS] rounded_elements(ACCUMULATOR x) {
    ELEMENT[ACCUMULATOR_ELEMENTS] rounded;
    for (uint e = 0; e < ACCUMULATOR_ELEMENTS; e++) rounded[e] = ELEMENT(x[e]);
    return rounded;
}

// Element x of the invocation `from`. Where both halves of the subgroup are to have the same operand, and have not, it
// is NaN: the hardware promises nothing then.
float shuffled(float x, uint from) {
    const float found = subgroupShuffle(x, from);
    if (!ALTERNATES) return found;
    const uint other = floatBitsToUint(subgroupShuffle(x, from ^ SUBGROUP_SIZE / 2));
    return floatBitsToUint(found) == other ? found : uintBitsToFloat(0x7fc00000);
}

// Products of 16-bit elements are exact in float32, and so the sums are as good as a matrix unit's.
ACCUMULATOR emulated_product(LEFT left, RIGHT right, ACCUMULATOR sum) {
    [[dont_unroll]] for (uint k = 0; k < K; k++) {
        const uint first_holder = ALTERNATES ? 0 : k / OPERAND_ELEMENTS * N;
        const float of_left = float(left[k % OPERAND_ELEMENTS]);
        const float of_right = shuffled(float(right[k % OPERAND_ELEMENTS]), first_holder + own_line());
        [[dont_unroll]] for (uint e = 0; e < ACCUMULATOR_ELEMENTS; e++)
            sum[e] = fma(shuffled(of_left, first_holder + accumulator_row(e)), of_right, sum[e]);
    }
    return sum;
}
#define coopMatMulAdd(left, right, sum) emulated_product(left, right, sum)

// Elements of a uvec2 of memory, and one of them.
uint elements_in(float like) { return 2; }
uint elements_in(ELEMENT like) { return 4; }
void take(out float x, uvec2 from, uint i) { x = uintBitsToFloat(from[i]); }
#if defined(F16) || defined(F16_OPERANDS)
void take(out ELEMENT x, uvec2 from, uint i) { x = unpackFloat2x16(from[i / 2])[i % 2]; }
uint word_of(ELEMENT low, ELEMENT high) { return packFloat2x16(f16vec2(low, high)); }
#else
void take(out ELEMENT x, uvec2 from, uint i) {
    x = ELEMENT(uintBitsToFloat(i % 2 == 0 ? from[i / 2] << 16 : from[i / 2] & 0xffff0000u));
}
uint word_of(ELEMENT low, ELEMENT high) {
    return floatBitsToUint(float(low)) >> 16 | floatBitsToUint(float(high)) & 0xffff0000u;
}
#endif

// The word that begins with element e, which `next` follows. False if another element, or another invocation, writes
// it: two that write halves of one word would race. 16-bit elements are stored by columns only.
bool finds_word(float x, float next, uint e, out uint word) {
    word = floatBitsToUint(x);
    return true;
}
bool finds_word(ELEMENT x, ELEMENT next, uint e, out uint word) {
    const ELEMENT below = ALTERNATES ? ELEMENT(subgroupShuffleXor(float(x), SUBGROUP_SIZE / 2)) : next;
    word = word_of(x, below);
    return ALTERNATES ? gl_SubgroupInvocationID < SUBGROUP_SIZE / 2 : e % 2 == 0;
}

// Sets m_vec, the distance in memory from a matrix's first element, in uvec2, and m_in_vec. In macros, whose arguments
// have names of the kernels.
#define FIND_PLACE(x, row, stride, order) \
    const bool m_by_columns = order == gl_CooperativeMatrixLayoutColumnMajor; \
    const uint m_line = m_by_columns ? own_line() : row, m_along = m_by_columns ? row : own_line(); \
    const uint m_vec = m_line * (stride) + m_along / elements_in(x), m_in_vec = m_along % elements_in(x);

#define coopMatLoad(x, memory, at, stride, order) \
    for (uint m_e = 0; m_e < x.length(); m_e++) { \
        FIND_PLACE(x[0], (x.length() == OPERAND_ELEMENTS ? operand_k(m_e) : accumulator_row(m_e)), stride, order) \
        take(x[m_e], memory[(at) + m_vec], m_in_vec); \
    }

// This one is for accumulators, and for operands that lie as these do.
#define coopMatStore(x, memory, at, stride, order) \
    for (uint m_e = 0; m_e < ACCUMULATOR_ELEMENTS; m_e++) { \
        uint m_word; \
        const bool m_writes = finds_word(x[m_e], x[min(m_e + 1, ACCUMULATOR_ELEMENTS - 1)], m_e, m_word); \
        FIND_PLACE(x[0], accumulator_row(m_e), stride, order) \
        if (m_writes) memory[(at) + m_vec][m_in_vec / (elements_in(x[0]) / 2)] = m_word; \
    }
