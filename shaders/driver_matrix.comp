#version 460
// Tries matrices that go from one subgroup to another through shared memory.
//
//   left, right = the dispatch's numbers, staged by all invocations
//   each subgroup s:  moved[s] = left[s], loaded and stored as a matrix
//   barrier
//   each subgroup s:  sums[s] = moved[s + 1] . right[s] + moved[s + 2] . right[s]    (subgroups count in a circle)
//   barrier
//   results = sums, written by other invocations
//
// Shared memory: `left`, `right` and `moved` hold a matrix of float16 for each subgroup, `sums` one of float32, all in
// elements of 16 bytes, as in the kernels.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/matrix_extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x_id = DRIVER_SPEC_THREADS) in;
layout(constant_id = DRIVER_SPEC_THREADS) const uint THREADS = 128;
layout(constant_id = DRIVER_SPEC_SUBGROUP_SIZE) const uint SUBGROUP_SIZE = 32;
layout(constant_id = DRIVER_SPEC_M) const uint M = 16;
layout(constant_id = DRIVER_SPEC_N) const uint N = 16;
layout(constant_id = DRIVER_SPEC_K) const uint K = 16;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer From { uvec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer To { uvec4 x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

const uint SUBGROUPS = THREADS / SUBGROUP_SIZE;
const uint LEFT_VECS = M * K / 8, RIGHT_VECS = K * N / 8, SUM_VECS = M * N / 4;
shared uvec4 left[SUBGROUPS * LEFT_VECS];
shared uvec4 right[SUBGROUPS * RIGHT_VECS];
shared uvec4 moved[SUBGROUPS * LEFT_VECS];
shared uvec4 sums[SUBGROUPS * SUM_VECS];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define BY_ROWS gl_CooperativeMatrixLayoutRowMajor

void main() {
    const uint thread = gl_LocalInvocationIndex, s = gl_SubgroupID;
    for (uint i = thread; i < SUBGROUPS * LEFT_VECS; i += THREADS) left[i] = From(p.from).x[i];
    for (uint i = thread; i < SUBGROUPS * RIGHT_VECS; i += THREADS)
        right[i] = From(p.from).x[SUBGROUPS * LEFT_VECS + i];
    barrier();
    LEFT own;
    coopMatLoad(own, left, s * LEFT_VECS, K / 8, BY_ROWS);
    coopMatStore(own, moved, s * LEFT_VECS, K / 8, BY_ROWS);
    barrier();
    RIGHT factor;
    coopMatLoad(factor, right, s * RIGHT_VECS, N / 8, BY_ROWS);
    SUM sum = SUM(0.0);
    for (uint step = 1; step <= 2; step++) {
        LEFT other;
        coopMatLoad(other, moved, (s + step) % SUBGROUPS * LEFT_VECS, K / 8, BY_ROWS);
        sum = coopMatMulAdd(other, factor, sum);
    }
    coopMatStore(sum, sums, s * SUM_VECS, N / 4, BY_ROWS);
    barrier();
    for (uint i = THREADS - 1 - thread; i < SUBGROUPS * SUM_VECS; i += THREADS) To(p.to).x[i] = sums[i];
}
