#version 460
// Tries exp2 and log2 of the dispatch's numbers, which the host holds to the errors that Vulkan allows.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { float x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

void main() {
    const uint at = gl_WorkGroupID.x * DRIVER_THREADS + gl_LocalInvocationIndex;
    const float x = From(p.from).x[at];
    To(p.to).x[at * DRIVER_EXPONENT_WORDS] = exp2(x);
    To(p.to).x[at * DRIVER_EXPONENT_WORDS + 1] = log2(abs(x));
}
