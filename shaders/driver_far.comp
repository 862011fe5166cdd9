#version 460
// Tries addresses that lie more than 4 GiB apart: workgroup w has the place base + w * count * stride, by the
// arithmetic of the kernels (lib/address.glsl), in two words of 32 bits each. It writes out the address and what lies
// there. Each invocation writes one of the dispatch's numbers into a slot behind that, too, and reads it again. It is
// volatile, so that no compiler leaves the memory out.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "lib/address.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) volatile buffer Place { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

void main() {
    const uint thread = gl_LocalInvocationIndex, to = gl_WorkGroupID.x * (3 * DRIVER_THREADS);
    const uint slot = (1 + p.slot) * DRIVER_THREADS;
    const uvec2 place = address_add(p.base, mul_wide(gl_WorkGroupID.x * p.count, p.stride));
    Place(place).x[slot + thread] = Place(p.from).x[gl_WorkGroupID.x * DRIVER_THREADS + thread];
    Place(p.to).x[to + thread] = thread % 2 == 0 ? place.x : place.y;
    Place(p.to).x[to + DRIVER_THREADS + thread] = Place(place).x[thread];
    Place(p.to).x[to + 2 * DRIVER_THREADS + thread] = Place(place).x[slot + thread];
}
