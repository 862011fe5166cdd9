#version 460
// The gradient of attention sinks: for each query head
//
//   dsink = -sum over rows that see a key of  e^(sink - lse) * delta,   delta = rowsum(dout * out) - dlse
//
// because a sink is a score whose value is 0: dS = P o (dP - delta) with dP = 0. The last factors of statistics
// correct the weights of rows whose lse is too coarse (lib/backward_problem.glsl).
//
// Tile ownership: a workgroup has a head, of all batches; an invocation every THREADS-th row of each batch. The first
// one adds up what they have, in their order. Shared memory: a float an invocation. Grid: query heads.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_sinks.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_sinks.def"
} push;
#include "lib/operands.glsl"
#include "lib/rows.glsl"

const uint TILE_Q = THREADS, TILE_KV = 1;  // it looks at no keys
#include "lib/backward_problem.glsl"
#include "lib/mask.glsl"
#include "lib/scores.glsl"

shared float sums[THREADS];

// Returns what a row adds to dsink.
float gradient_of_row(Work w, uint row) {
    const RowStart at = statistics_of(w, row);
    const vec4 statistics = Vec4sIn(at.base).x[at.at / 4];
    return statistics.w != 0 ? 0 : -statistics.y * statistics.z * sink_weight(w, row, statistics.x);
}

void main() {
    const uint thread = gl_LocalInvocationIndex, head = push.first_x + gl_WorkGroupID.x;
    Work w;
    w.split = 0;
    w.head = head;
    w.head_kv = head / group_size();
    float sum = 0;
    const uint batches = backward().x.batch;
    for (uint b = 0; b < batches; b++) {
        w.batch = min(b, batches - 1);  // lavapipe loads ahead of the test
        find_sequences(w);
        for (uint first = 0; first < w.num_queries; first += THREADS) {
            set_query_tile(w, head, first);
            const float of_row = gradient_of_row(w, min(first + thread, w.last_row));
            if (first + thread <= w.last_row) sum += of_row;
        }
    }
    sums[thread] = sum;
    barrier();
    if (thread != 0) return;
    for (uint t = 1; t < THREADS; t++) sum += sums[t];
    // No gradient depends on a sink that is none.
    const bool none = batches != 0 && floatBitsToUint(sink_of(w, 0)) == MINUS_INFINITY;
    FloatsOut(backward().x.dsinks).x[head] = none ? 0 : sum;
}
