#version 460
// Tries barriers in a loop whose length the compiler does not know, with numbers that go to and fro between two halves
// of a shared array, as the kernels' tiles do: one barrier a round.
//
//   `count` times:  next[i] = 5 * this[i + 1] + this[3 * i + round];  barrier;  this and next change places
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

shared uint numbers[2 * DRIVER_THREADS];

void main() {
    const uint thread = gl_LocalInvocationIndex, at = gl_WorkGroupID.x * DRIVER_THREADS + thread;
    numbers[thread] = From(p.from).x[at];
    barrier();
    uint half_at = 0;
    for (uint round = 0; round < p.count; round++) {
        const uint near = numbers[half_at + (thread + 1) % DRIVER_THREADS];
        const uint far = numbers[half_at + (thread * 3 + round) % DRIVER_THREADS];
        half_at = DRIVER_THREADS - half_at;
        numbers[half_at + thread] = near * 5 + far;
        barrier();
    }
    To(p.to).x[at] = numbers[half_at + thread];
}
