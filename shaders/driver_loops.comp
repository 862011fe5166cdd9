#version 460
// Tries loops in loops whose lengths the compiler does not know, and which are long together: an invocation has some
// 200,000 iterations. The first `count` numbers are the lengths of the inner loops, those behind them begin the sums.
//
//   `count` times:  `length of the round` times:  x = x * 1664525 + 1013904223;   x += round
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_LOOP_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

void main() {
    const uint thread = gl_LocalInvocationIndex;
    uint x = From(p.from).x[p.count + thread];
    for (uint round = 0; round < p.count; round++) {
        const uint length = From(p.from).x[round];
        for (uint i = 0; i < length; i++) x = x * DRIVER_LOOP_FACTOR + DRIVER_LOOP_SUMMAND;
        x += round;
    }
    To(p.to).x[thread] = x;
}
