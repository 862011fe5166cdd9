#version 460
// Tries subnormal numbers as far as results depend on them: float16 ones count when they are loaded and stored, float32
// ones may become 0 and nothing else. Of each word:
//
//   0, 1  its halves as float16, unpacked: exact
//   2     float16_bits() of lib/storage.glsl for a magnitude below 2^-14, on which 16-bit results rely: exact
//   3     a subnormal float32 times 2^100: exact or 0
//   4     a product that is subnormal: exact or 0
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

void main() {
    const uint at = gl_WorkGroupID.x * DRIVER_THREADS + gl_LocalInvocationIndex, word = From(p.from).x[at];
    const uint to = at * DRIVER_DENORMAL_WORDS;
    const uvec2 halves = floatBitsToUint(unpackHalf2x16(word));
    // A magnitude from 2^-27 to 2^-14.
    const float small = uintBitsToFloat((100 + word % 13) << 23 | (word >> 9));
    precise const float rounded = small + 0.5;
    precise const float raised = uintBitsToFloat(word & 0x807fffff) * uintBitsToFloat(227u << 23);
    // 8 bits times 2^-135: a multiple of the smallest subnormal, 2^-149, below the smallest normal number, 2^-126.
    precise const float lowered = uintBitsToFloat(67u << 23) * float(word & 255) * uintBitsToFloat(52u << 23);
    const uint all[DRIVER_DENORMAL_WORDS] =
        uint[](halves.x, halves.y, floatBitsToUint(rounded) - floatBitsToUint(0.5), floatBitsToUint(raised),
               floatBitsToUint(lowered));
    for (uint i = 0; i < DRIVER_DENORMAL_WORDS; i++) To(p.to).x[to + i] = all[i];
}
