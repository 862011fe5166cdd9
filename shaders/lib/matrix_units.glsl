// What the kernels on matrix units have in common: types, loops, a product. forward_matrix.comp includes it by way of
// lib/matrix.glsl, the backward's kernels by way of lib/backward_matrix.glsl. It assumes the specialization constants
// SUBGROUP_SIZE, ROW_BLOCKS, M, N and K.
uint thread = gl_LocalInvocationIndex;

// lib/constants.glsl says why. lavapipe, to build and run a forward of 130 x 130: D24 1.4 s for 2.8, D128 2.8 for 133.
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
#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#ifdef ROUNDED_ACCUMULATORS  // not every device has them, and a module that names them is not for others
#define ROUNDED coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#endif
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

const uint SUBGROUPS = THREADS / SUBGROUP_SIZE;
uint subgroup = gl_SubgroupID;
uint lane = gl_SubgroupInvocationID;

// acc[r * columns + n] += left(r) . right, over the blocks n that the loop `each_n` goes over; right is at right_at(n)
// of the pool, in rows of right_stride vec4.
#define ADD_MATRIX_PRODUCT(acc, columns, each_n, left, right_at, right_stride, right_order) \
    each_n { \
        RIGHT right; \
        coopMatLoad(right, pool, right_at(n), right_stride, right_order); \
        FOR_EACH(r, ROW_BLOCKS) acc[r * (columns) + n] = coopMatMulAdd(left(r), right, acc[r * (columns) + n]); \
    }
