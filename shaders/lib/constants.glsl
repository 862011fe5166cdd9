// Declares what the portable kernels derive from their constants, and how their loops are unrolled.
#include "lib/score_facts.glsl"
uint thread = gl_LocalInvocationIndex;
const uint GROUPS = THREADS / LANES;

// Elements of a row of the output, and of what P is multiplied with: V, unless a kernel says otherwise.
#ifndef OUT_DIM
#define OUT_DIM HEAD_DIM_V
#endif
const uint V_STRIDE = POOL_SLICE_STRIDE(OUT_DIM, LANES, SLICES);  // in vec4, as many for every lane
const uint OUT_VECS = V_STRIDE / LANES;

// Private arrays are registers on a GPU: loops over them must be unrolled. On a CPU they are memory anyway, and a
// pipeline takes as long to build as its code is: modules for CPUs (ROLLED) unroll the inner products only. A macro,
// because hints to unroll cannot depend on a constant. Forward and backward of 97 x 113, `MESA_SHADER_CACHE_DISABLE=1
// tools/on DEVICE -- build/vkattn grad ... --tuning rolled=0`, user time: lavapipe 2.5 s, with rolled=1 1.8;
// SwiftShader, which compiles branches of specialization constants that are never taken, 4.2 and 1.9.
#ifdef ROLLED
#define STAYS_LOOP [[dont_unroll]]
#define FOR_EACH(i, count) [[dont_unroll]] for (uint i = 0; i < (count); i++)
const bool FETCHES_AHEAD = false;
#else
#define STAYS_LOOP
#define FOR_EACH(i, count) [[unroll]] for (uint i = 0; i < (count); i++)
const bool FETCHES_AHEAD = PREFETCH;
#endif

// The length of a shared array holds no `?:` of specialization constants: with one, an Adreno 840 computes wrong
// results (ncnn's pull request 6972). tests/test_spirv.cpp looks for such lengths in all modules.
shared vec4 pool[POOL_VEC4];

uint lane = thread % LANES;
uint group = thread / LANES;

// Two tensors' items stand in one list, so that they spread evenly over the invocations: item first + thread is an
// invocation's own. If every round of the list is of one tensor, `first` tells which, and no invocation chooses between
// addresses: that choice takes 4 % on an H200 (D128: 36.0 instead of 37.6 TFLOP/s). On CPUs rounds are always of one
// tensor, if need be with a gap behind the first one's `count` items: lavapipe at 16 lanes does not survive the choice
// (quirks.hpp).
#ifdef ROLLED
#define PLACE_BEHIND(count) (((count) + THREADS - 1) / THREADS * THREADS)  // of the second tensor
#else
#define PLACE_BEHIND(count) (count)
#endif

bool is_behind(uint place, uint first) { return place % THREADS == 0 ? first >= place : first + thread >= place; }

bool is_listed(uint count, uint place, uint end, uint first) {
    return first + thread < end && (count == place || first + thread < count || first + thread >= place);
}
