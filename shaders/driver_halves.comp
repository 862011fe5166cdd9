#version 460
// Tries 16-bit stores side by side: each invocation writes `count` halves, and its neighbours write those beside them.
// With SPLIT the halves of a word are written by two workgroups. Every fifth half is left as it is. With the macro
// PACKED a half is written by two atomic operations on its word, as the kernels do without 16-bit storage.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(constant_id = DRIVER_SPEC_SPLIT) const uint SPLIT = 0;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
#ifdef PACKED
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint x[]; };
#else
layout(buffer_reference, std430, buffer_reference_align = 2) writeonly buffer Halves { uint16_t x[]; };
#endif
layout(push_constant, std430) uniform Push { DriverPush p; };

void put(uint place, uint bits) {
#ifdef PACKED
    const uint shift = place % 2 * 16;
    atomicAnd(Words(p.to).x[place / 2], ~(0xffffu << shift));
    atomicOr(Words(p.to).x[place / 2], bits << shift);
#else
    Halves(p.to).x[place] = uint16_t(bits);
#endif
}

void main() {
    const uint group = SPLIT != 0 ? gl_WorkGroupID.x / 2 : gl_WorkGroupID.x;
    for (uint n = 0; n < p.count; n++) {
        const uint at = (group * p.count + n) * DRIVER_THREADS + gl_LocalInvocationIndex;
        const uint place = SPLIT != 0 ? at * 2 + gl_WorkGroupID.x % 2 : at;
        if (place % 5 != 4) put(place, From(p.from).x[place / 2] >> place % 2 * 16 & 0xffff);
    }
}
