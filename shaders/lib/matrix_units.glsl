// What the kernels on matrix units have in common: types, loops, a product. forward_matrix.comp includes it by way of
// lib/matrix.glsl, the backward's kernels by way of lib/backward_matrix.glsl. It assumes the specialization constants
// SUBGROUP_SIZE, LANE_BY_INDEX, ROW_BLOCKS, M, N and K.
uint thread = gl_LocalInvocationIndex;

// lib/constants.glsl says why loops stay loops on CPUs. To build and run a forward of 130 x 130, lavapipe takes 1.4
// instead of 2.8 s at D24, and 2.8 instead of 133 s at D128.
#ifdef ROLLED
#define FOR_EACH(i, count) [[dont_unroll]] for (uint i = 0; i < (count); i++)
#else
#define FOR_EACH(i, count) [[unroll]] for (uint i = 0; i < (count); i++)
#endif

#if defined(F16) || defined(F16_OPERANDS)
#define ELEMENT float16_t
const uint OPERAND_EXPONENT = 0x7c00u;
#else
#define ELEMENT bfloat16_t
const uint OPERAND_EXPONENT = 0x7f80u;
#endif
#include "lib/matrix_types.glsl"

// A product has an own operand, of rows that a subgroup owns, and one that is loaded from shared memory. OWN_ORDER is
// the order in which a matrix with own rows lies in memory if each row is contiguous there. With TURNED the product is
// that of the transposed matrices: own rows are the columns of operands and accumulators, and M, N and K are one
// number. The pool has UNIT elements for each vec4, each of POOL_FLOATS floats.
#ifdef TURNED
#define OWN_OPERAND RIGHT
#define STAGED_OPERAND LEFT
#define MULTIPLIED(own, staged, sum) coopMatMulAdd(staged, own, sum)
#define OWN_ORDER gl_CooperativeMatrixLayoutColumnMajor
#define UNIT 2
#define POOL_FLOATS 2
#define IN_POOL(vecs) ((vecs) * 2)
#define GET8(at) uvec4(pool[at], pool[(at) + 1])
#define PUT8(at, x) { \
        const uvec4 eight = x; \
        pool[at] = eight.xy; \
        pool[(at) + 1] = eight.zw; \
    }
#else
#define OWN_OPERAND LEFT
#define STAGED_OPERAND RIGHT
#define MULTIPLIED(own, staged, sum) coopMatMulAdd(own, staged, sum)
#define OWN_ORDER gl_CooperativeMatrixLayoutRowMajor
#define UNIT 1
#define POOL_FLOATS 4
#define IN_POOL(vecs) (vecs)
#define GET8(at) pool[at]
#define PUT8(at, x) pool[at] = x;
#define LOAD_STAGED(x, at, stride, order) coopMatLoad(x, pool, at, stride, order)
#endif

const uint NUMBERS = 8 / UNIT;  // of 16 bits in an element of the pool

const uint SUBGROUPS = THREADS / SUBGROUP_SIZE;
uint subgroup = gl_SubgroupID;
// Workgroups have one dimension and their subgroups are full, and then drivers number both alike. quirks.hpp says
// who takes which.
uint lane = LANE_BY_INDEX ? gl_LocalInvocationIndex % SUBGROUP_SIZE : gl_SubgroupInvocationID;

// acc[r * columns + n] += own(r) . staged, over the blocks n that the loop `each_n` goes over; staged is at
// staged_at(n) of the pool, in rows of staged_stride elements of the pool.
#define ADD_MATRIX_PRODUCT(acc, columns, each_n, own, staged_at, staged_stride, staged_order) \
    each_n { \
        STAGED_OPERAND staged; \
        LOAD_STAGED(staged, staged_at(n), staged_stride, staged_order); \
        FOR_EACH(r, ROW_BLOCKS) acc[r * (columns) + n] = MULTIPLIED(own(r), staged, acc[r * (columns) + n]); \
    }
