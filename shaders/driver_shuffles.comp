#version 460
// Tries the operations of subgroups that the kernels use: subgroupShuffleXor of a vec4 and of words that hold two
// float16 each, subgroupBallot, subgroupAny, subgroupBroadcastFirst, and shared memory behind subgroupBarrier. Each
// invocation writes who it is, too, so that the host knows whose numbers it should have.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

shared uint words[DRIVER_THREADS];

void main() {
    const uint thread = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID, at = thread * DRIVER_SHUFFLE_WORDS;
    vec4 own;
    [[unroll]] for (uint c = 0; c < 4; c++) own[c] = uintBitsToFloat(From(p.from).x[thread * DRIVER_SHUFFLE_STEP + c]);
    const uvec2 halves =
        uvec2(From(p.from).x[thread * DRIVER_SHUFFLE_STEP + 4], From(p.from).x[thread * DRIVER_SHUFFLE_STEP + 5]);
    // The host judges it only where no two invocations have the same place.
    const uint place = (gl_SubgroupID * gl_SubgroupSize + lane) % DRIVER_THREADS;
    words[place] = halves.x;
    subgroupBarrier();
    const uint beside = gl_SubgroupSize > 1 ? words[place ^ 1] : 0;
    subgroupBarrier();
    const uint head[DRIVER_SHUFFLE_HEAD] =
        uint[](gl_SubgroupID, lane, gl_SubgroupSize, subgroupBallot((halves.x & 1) != 0).x,
               subgroupAny((halves.y & 31) == 0) ? 1 : 0, subgroupBroadcastFirst(halves.x), beside);
    for (uint i = 0; i < DRIVER_SHUFFLE_HEAD; i++) To(p.to).x[at + i] = head[i];
    for (uint b = 0; b < DRIVER_SHUFFLE_STEPS; b++) {
        const uint mask = 1u << b, to = at + DRIVER_SHUFFLE_HEAD + b * DRIVER_SHUFFLE_STEP;
        if (mask >= gl_SubgroupSize) break;
        const uvec4 numbers = floatBitsToUint(subgroupShuffleXor(own, mask));
        const uvec2 words_of_other = subgroupShuffleXor(halves, mask);
        [[unroll]] for (uint c = 0; c < 4; c++) To(p.to).x[to + c] = numbers[c];
        [[unroll]] for (uint c = 0; c < 2; c++) To(p.to).x[to + 4 + c] = words_of_other[c];
    }
}
