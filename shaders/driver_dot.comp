#version 460
// Tries the 16-bit dot products of lib/dot2.glsl: pairs of float16 that are small whole numbers, summed in float32, so
// that every order gives the same sum.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { float x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float OpFDot2MixAcc32VALVE(f16vec2 a, f16vec2 b, float sum);

void main() {
    const uint at = gl_WorkGroupID.x * DRIVER_THREADS + gl_LocalInvocationIndex;
    float sum = 0;
    for (uint i = 0; i < 4; i++)
        sum = OpFDot2MixAcc32VALVE(unpackFloat2x16(From(p.from).x[at * 8 + i * 2]),
                                   unpackFloat2x16(From(p.from).x[at * 8 + i * 2 + 1]), sum);
    To(p.to).x[at] = sum;
}
