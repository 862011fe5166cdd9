#version 460
// Tries shared arrays whose lengths are expressions of specialization constants, ?: among them. All arrays are filled
// with the dispatch's numbers; behind a barrier other invocations write them out. If an array is too short, or lies
// where another one does, a number is missing.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/driver_checks.h"
layout(local_size_x = DRIVER_THREADS) in;
layout(constant_id = DRIVER_SPEC_ROWS) const uint ROWS = 1;
layout(constant_id = DRIVER_SPEC_COLUMNS) const uint COLUMNS = 1;
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To { uint x[]; };
layout(push_constant, std430) uniform Push { DriverPush p; };

const uint VECS = ROWS * (COLUMNS + 1), WORDS = (ROWS > COLUMNS ? ROWS : COLUMNS) * 8, PAIRS = COLUMNS * 2 + ROWS - 1;
const uint FIRST_WORD = VECS * 4, FIRST_PAIR = FIRST_WORD + WORDS;
shared uvec4 vecs[VECS];
shared uint words[WORDS];
shared uvec2 pairs[PAIRS];

uint given(uint i) { return From(p.from).x[i]; }
void put(uint i, uint x) { To(p.to).x[i] = x; }

void main() {
    const uint thread = gl_LocalInvocationIndex, other = DRIVER_THREADS - 1 - thread;
    for (uint i = thread; i < VECS; i += DRIVER_THREADS)
        vecs[i] = uvec4(given(i * 4), given(i * 4 + 1), given(i * 4 + 2), given(i * 4 + 3));
    for (uint i = thread; i < WORDS; i += DRIVER_THREADS) words[i] = given(FIRST_WORD + i);
    for (uint i = thread; i < PAIRS; i += DRIVER_THREADS)
        pairs[i] = uvec2(given(FIRST_PAIR + i * 2), given(FIRST_PAIR + i * 2 + 1));
    barrier();
    for (uint i = other; i < VECS; i += DRIVER_THREADS)
        [[unroll]] for (uint c = 0; c < 4; c++) put(i * 4 + c, vecs[i][c]);
    for (uint i = other; i < WORDS; i += DRIVER_THREADS) put(FIRST_WORD + i, words[i]);
    for (uint i = other; i < PAIRS; i += DRIVER_THREADS)
        [[unroll]] for (uint c = 0; c < 2; c++) put(FIRST_PAIR + i * 2 + c, pairs[i][c]);
}
