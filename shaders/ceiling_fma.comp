#version 460
// The float32 FMA rate: CEILING_CHAINS independent vec4 chains in registers, `count` rounds of 4 steps. No memory, no
// shared memory; one float a workgroup is written so that nothing can be dropped.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "shared/ceilings.h"
layout(local_size_x = CEILING_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sink { float x[]; };
layout(push_constant, std430) uniform Push { CeilingPush p; };

void main() {
    const float start = float(gl_LocalInvocationIndex) * 1e-3;
    vec4 x[CEILING_CHAINS];
    [[unroll]] for (uint i = 0; i < CEILING_CHAINS; i++) x[i] = vec4(start + float(i));
    // a < 1 keeps the values bounded; both depend on the push constants, so the compiler knows neither
    const float a = 0.5 + float(p.count & 1u) * 0.25, b = 1.0 - a * 0.5;
    for (uint n = 0; n < p.count; n++)
        [[unroll]] for (uint s = 0; s < 4; s++)
            [[unroll]] for (uint i = 0; i < CEILING_CHAINS; i++) x[i] = fma(x[i], vec4(a), vec4(b));
    vec4 sum = vec4(0);
    [[unroll]] for (uint i = 0; i < CEILING_CHAINS; i++) sum += x[i];
    if (sum.x + sum.y + sum.z + sum.w == 12345.0 || gl_LocalInvocationIndex == 0)
        Sink(p.to).x[gl_WorkGroupID.x] = sum.x + sum.y + sum.z + sum.w;
}
