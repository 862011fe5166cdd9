#version 460
// Reading bandwidth: each workgroup sums a contiguous range of `count` * CEILING_THREADS vec4, four loads in flight.
// The numbers are positive, which the compiler cannot know, so that no sum is written.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "shared/ceilings.h"
layout(local_size_x = CEILING_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer From { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer To { vec4 x[]; };
layout(push_constant, std430) uniform Push { CeilingPush p; };

void main() {
    const uint first = gl_WorkGroupID.x * p.count * CEILING_THREADS + gl_LocalInvocationIndex;
    vec4 sums[4] = vec4[](vec4(0), vec4(0), vec4(0), vec4(0));
    for (uint n = 0; n < p.count; n += 4)
        [[unroll]] for (uint i = 0; i < 4; i++) sums[i] += From(p.from).x[first + (n + i) * CEILING_THREADS];
    const vec4 sum = sums[0] + sums[1] + sums[2] + sums[3];
    if (sum.x + sum.y + sum.z + sum.w < 0) To(p.to).x[first] = sum;
}
