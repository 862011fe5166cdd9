#version 460
// The rate of the matrix units: a subgroup has CEILING_CHAINS independent accumulators in registers, the products of
// ROWS x COLUMNS operands, and `count` rounds of CEILING_STEPS multiply-adds to each. No memory, no shared memory; one
// float a workgroup is written so that nothing can be dropped.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/ceilings.h"
layout(local_size_x = CEILING_THREADS) in;
layout(constant_id = CEILING_SPEC_M) const uint M = 16;
layout(constant_id = CEILING_SPEC_N) const uint N = 16;
layout(constant_id = CEILING_SPEC_K) const uint K = 16;
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sink { float x[]; };
layout(push_constant, std430) uniform Push { CeilingPush p; };

#define FOR_EACH(i, count) [[unroll]] for (uint i = 0; i < (count); i++)
const uint ROWS = 4, COLUMNS = CEILING_CHAINS / ROWS;

// Numbers around 0 that look random: equal ones would cost a GPU less power than those of a real product do, and raise
// its clock. They depend on the push constants, so the compiler does not know them.
float16_t operand(uint number) {
    const uint mixed = (gl_LocalInvocationIndex * 131 + number * 7919 + p.count + 1) * 2654435761u;
    return float16_t(float(mixed >> 16) / 65536.0 - 0.5);
}

void main() {
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a[CEILING_STEPS * ROWS];
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[COLUMNS];
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[CEILING_CHAINS];
    FOR_EACH(r, CEILING_STEPS * ROWS) FOR_EACH(e, a[r].length()) a[r][e] = operand(r * 64 + e);
    FOR_EACH(c, COLUMNS) FOR_EACH(e, b[c].length()) b[c][e] = operand((CEILING_STEPS * ROWS + c) * 64 + e);
    FOR_EACH(i, CEILING_CHAINS) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    for (uint n = 0; n < p.count; n++) {
        FOR_EACH(s, CEILING_STEPS)
            FOR_EACH(i, CEILING_CHAINS) acc[i] = coopMatMulAdd(a[s * ROWS + i % ROWS], b[i / ROWS], acc[i]);
        FOR_EACH(c, COLUMNS) b[c] = -b[c];  // lest products are moved out of the loop: lavapipe's multiply, then add
    }
    float sum = 0;
    FOR_EACH(i, CEILING_CHAINS) FOR_EACH(e, acc[i].length()) sum += acc[i][e];
    if (sum == 12345.0 || gl_LocalInvocationIndex == 0) Sink(p.to).x[gl_WorkGroupID.x] = sum;
}
