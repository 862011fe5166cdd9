// The products of forward_matrix.comp turned round (macro TURNED): S^T = K . Q^T and O^T = V^T . P^T.
//
// On AMD's matrix units a column of an accumulator lies in one invocation (RDNA4: per half of its rows), and a column
// of a right operand likewise. So S^T becomes the operand P^T in registers. Both left operands, K and V^T, are read
// along rows that are contiguous in shared memory, where V is turned when it is staged. S = Q . K^T has P go through
// shared memory, and reads V by 16-bit loads, because it wants columns of it. Counts: CHANGELOG.md.
//
// ELEMENT_LAYOUT names rows and keys: a query's row is the accumulator's column. P_EXCHANGED: accumulator rows
// alternate between the halves of the subgroup, and both halves have all of an operand (RDNA3). Then 16 keys are staged
// in such an order that the lower half has the first eight, and the halves exchange their part of P.
//
// The planner takes these modules where a probe has found one of these layouts (core::MatrixShape::turned_layout).
// They are those of Mesa's src/amd/vulkan/nir/radv_nir_lower_cooperative_matrix.c. A left operand's row is then the
// invocation's number modulo M, and its elements run along the other index.

const uint STAGED_ELEMENTS = P_EXCHANGED ? K : M * K / SUBGROUP_SIZE;
bool in_lower_half = lane < SUBGROUP_SIZE / 2;

// This invocation's place in a staged operand, of K and of V, in elements of the pool. They are found before the loop:
// RADV leaves them in it otherwise.
const uint PART = P_EXCHANGED ? 0 : STAGED_ELEMENTS / NUMBERS;
uint part = lane / M * PART;
uint k_place = lane % M * K_STRIDE + part, v_place = POOL_V + lane % M * V_STRIDE + part;

#if defined(F16) || defined(F16_OPERANDS)
#define ELEMENTS_2 f16vec2
ELEMENTS_2 elements_of(uint word) { return unpackFloat2x16(word); }
uint word_of(ELEMENTS_2 two) { return packFloat2x16(two); }
#else
#define ELEMENTS_2 bf16vec2
spirv_instruction(id = 124) ELEMENTS_2 elements_of(uint word);  // OpBitcast
spirv_instruction(id = 124) uint word_of(ELEMENTS_2 two);
#endif

// RADV makes no loads of shared memory that are wider than 8 bytes. With these, rows can lie an odd number of 8 bytes
// apart, which no bank conflict slows down; coopMatLoad would want 16.
STAGED_OPERAND staged_operand(uint at) {
    STAGED_OPERAND x;
    FOR_EACH(i, STAGED_ELEMENTS / NUMBERS) {
        const uvec2 four = pool[at + i];
        x[4 * i] = elements_of(four.x).x;
        x[4 * i + 1] = elements_of(four.x).y;
        x[4 * i + 2] = elements_of(four.y).x;
        x[4 * i + 3] = elements_of(four.y).y;
    }
    return x;
}
#define LOAD_STAGED(x, at, stride, order) x = staged_operand(at)
