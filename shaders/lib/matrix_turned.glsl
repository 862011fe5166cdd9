// The products of the kernels on matrix units turned round (macro TURNED): S^T = K . Q^T and O^T = V^T . P^T in the
// forward, and the backward's in the same way (lib/backward_matrix_turned.glsl).
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

// This invocation's place in a staged operand whose rows lie `stride` elements of the pool apart, in such elements. The
// kernels find it before the loop: RADV leaves it in it otherwise.
const uint PART = P_EXCHANGED ? 0 : STAGED_ELEMENTS / NUMBERS;
uint place_of_staged(uint stride) { return lane % M * stride + lane / M * PART; }

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

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Uvec4In { uvec4 x; };
uvec4 fetch_at(uvec2 base, uint uniform_offset, uint offset) {
    return Uvec4In(packUint2x32(base) + uint64_t(uniform_offset) + uint64_t(offset)).x;
}

// Element `e` of two words. Written so, RADV takes one instruction; with shifts it takes two.
uint both(uint a, uint b, uint e) { return word_of(ELEMENTS_2(elements_of(a)[e], elements_of(b)[e])); }

// Puts a patch of `count` rows, 2 or 4, of eight neighbouring elements, to eight rows of the pool from `at` on, which
// lie `stride` elements of the pool apart. Of two, half_of says which half of such an element is theirs.
void put_patch(uint at, uint stride, uint count, uint half_of, uvec4 rows[4]) {
    FOR_EACH(d, 8) {
        const uint word = both(rows[0][d / 2], rows[1][d / 2], d % 2);
        if (count == 2)
            pool[at + d * stride][half_of] = word;
        else
            pool[at + d * stride] = uvec2(word, both(rows[2][d / 2], rows[3][d / 2], d % 2));
    }
}
