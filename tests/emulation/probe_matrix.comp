#version 460
// This module writes what shaders/probe_matrix.comp would find on the emulated matrix unit (lib/emulated_layout.glsl).
// It tells nothing of shapes that are not emulated.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"

#include "lib/as_constants.glsl"
#include "interface/probe_matrix.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/probe_matrix.def"
} push;
#include "lib/emulated_layout.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results { uint x[]; };

#define PROBE(number, elements, row, column) { \
    const uint first = (number) * PROBE_WORDS; \
    if (lane == 0) Results(push.results).x[first] = elements; \
    for (uint e = 0; e < elements; e++) \
        Results(push.results).x[first + 1 + lane * PROBE_ELEMENTS + e] = (row) * 256 + (column); \
}

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const bool is_cube = M == N && N == K, is_whole = M * N / SUBGROUP_SIZE == ACCUMULATOR_ELEMENTS;
    const bool holds_all = OPERAND_ELEMENTS * SUBGROUP_SIZE == (ALTERNATES ? 2 : 1) * N * K;
    if (is_cube && is_whole && holds_all) {
        PROBE(0, ACCUMULATOR_ELEMENTS, accumulator_row(e), own_line())
        PROBE(1, OPERAND_ELEMENTS, own_line(), operand_k(e))
        PROBE(2, OPERAND_ELEMENTS, operand_k(e), own_line())
    } else if (lane == 0) {
        for (uint number = 0; number < 3; number++) Results(push.results).x[number * PROBE_WORDS] = 0;
    }
}
