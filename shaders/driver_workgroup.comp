#version 460
// Tries workgroups whose one or two dimensions are specialization constants: each place is one invocation's, and a
// barrier holds back all of them. The numbers of subgroups must fit together where there is one dimension. The
// library's kernels have no other, but near-square workgroups were said to fail on a driver.
//
//   visits[place] += 1;  values[place] = the dispatch's number
//   `count` times:  values[place] = 3 * values[a place further on] + place, between barriers
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x_id = DRIVER_SPEC_WIDTH, local_size_y_id = DRIVER_SPEC_HEIGHT) in;
layout(constant_id = DRIVER_SPEC_WIDTH) const uint WIDTH = 8;
layout(constant_id = DRIVER_SPEC_HEIGHT) const uint HEIGHT = 8;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

const uint PLACES = WIDTH * HEIGHT;
shared uint visits[PLACES];
shared uint values[PLACES];

void main() {
    const uint place = gl_LocalInvocationID.y * WIDTH + gl_LocalInvocationID.x;
    visits[place] = 0;
    values[place] = From(p.from).x[place];
    barrier();
    atomicAdd(visits[place], 1);
    for (uint round = 0; round < p.count; round++) {
        const uint value = values[(place + WIDTH + round) % PLACES];
        barrier();
        values[place] = value * 3 + place;
        barrier();
    }
    const uint all[DRIVER_WORKGROUP_WORDS] =
        uint[](visits[place], gl_LocalInvocationIndex, values[place], gl_SubgroupID, gl_SubgroupInvocationID,
               gl_SubgroupSize, gl_NumSubgroups);
    for (uint i = 0; i < DRIVER_WORKGROUP_WORDS; i++) To(p.to).x[place * DRIVER_WORKGROUP_WORDS + i] = all[i];
}
