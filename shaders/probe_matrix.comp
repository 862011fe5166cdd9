#version 460
// This kernel finds where a matrix unit keeps its elements: which row and column of an accumulator, and of each
// operand, element e of each invocation of a subgroup is. VK_KHR_cooperative_matrix leaves that to the
// implementation; src/device_tests/probe.cpp reads it.
//
//   for accumulator, left operand, right operand:
//                                   write the rows' numbers, load them as a matrix, likewise the columns'
//                                   results[number of the matrix][invocation][e] = row * 256 + column
//   the first element of each matrix's results: how many there are
//
// Tile ownership: one subgroup, one matrix. Shared memory: a block of numbers, as floats and as 16-bit elements.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/kernels.h"

#include "lib/as_constants.glsl"
#include "interface/probe_matrix.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/probe_matrix.def"
} push;

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results { uint x[]; };

#ifdef F16
#define ELEMENT float16_t
#else
#define ELEMENT bfloat16_t
#endif

shared float floats[M * N];
shared ELEMENT elements[(M + N) * K];  // enough for either operand; see lib/constants.glsl on lengths

uint lane = gl_LocalInvocationIndex;  // not gl_SubgroupInvocationID: quirk_index_takes_time (quirks.hpp)

void write_numbers(bool rows, uint columns) {
    barrier();
    for (uint e = lane; e < M * N; e += gl_SubgroupSize) floats[e] = float(rows ? e / columns : e % columns);
    for (uint e = lane; e < (M + N) * K; e += gl_SubgroupSize)
        elements[e] = ELEMENT(float(rows ? e / columns : e % columns));
    barrier();
}

#define PROBE(number, type, from, columns) { \
    type of_row, of_column; \
    write_numbers(true, columns); \
    coopMatLoad(of_row, from, 0, columns, gl_CooperativeMatrixLayoutRowMajor); \
    write_numbers(false, columns); \
    coopMatLoad(of_column, from, 0, columns, gl_CooperativeMatrixLayoutRowMajor); \
    const uint first = (number) * PROBE_WORDS; \
    if (lane == 0) Results(push.results).x[first] = of_row.length(); \
    for (uint e = 0; e < min(of_row.length(), PROBE_ELEMENTS) && lane < PROBE_INVOCATIONS; e++) \
        Results(push.results).x[first + 1 + lane * PROBE_ELEMENTS + e] = \
            uint(float(of_row[e])) * 256 + uint(float(of_column[e])); \
}
#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

void main() {
    PROBE(0, ACCUMULATOR, floats, N)
    PROBE(1, LEFT, elements, K)
    PROBE(2, RIGHT, elements, N)
}
