// Push constants of the ceiling kernels. Included by GLSL and by C++.
#ifndef VKATTN_SHARED_CEILINGS_H
#define VKATTN_SHARED_CEILINGS_H

#ifdef __cplusplus
#include <cstdint>
namespace vkattn::shared {
using CeilingAddress = uint64_t;
#else
#define CeilingAddress uvec2
#define uint32_t uint  // the one name the languages do not share
#endif

struct CeilingPush {
    CeilingAddress from, to;
    uint32_t count;  // fma, matrix: rounds; copy: vec4 an invocation moves
};

#define CEILING_THREADS 256
#define CEILING_CHAINS 8  // accumulators kept busy: vec4 of an invocation, matrices of a subgroup

#define CEILING_STEPS 4  // multiply-adds of a matrix in a round

// Specialization constants of ceiling_matrix: M x K times K x N.
#define CEILING_SPEC_M 0
#define CEILING_SPEC_N 1
#define CEILING_SPEC_K 2

#ifdef __cplusplus
}  // namespace vkattn::shared
#endif
#endif
