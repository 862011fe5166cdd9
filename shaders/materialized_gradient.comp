#version 460
// A step of the baseline's backward: dP becomes the gradient of q.k, in place. One workgroup a row; an invocation
// takes every THREADS-th vec4.
//
//   row = softmax_scale * P o (dP - delta)        delta: backward_delta.comp
//
// If P is 0, as it is for all hidden keys, dP may be anything, and the gradient is 0. The whole row is written, so the
// next steps may read it.
// Shared memory: none. Grid: head, row (y and z).
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/materialized_gradient.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/materialized_gradient.def"
} push;
#include "lib/tiles.glsl"
#include "lib/backward_problem.glsl"
#include "lib/score_matrix.glsl"

vec4 gradient(vec4 weights, vec4 dp, float delta, float scale) {
    return mix(scale * (weights * (dp - delta)), vec4(0), equal(weights, vec4(0)));
}

void main() {
    const uint row = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (row >= query_extent()) return;
    const uvec2 weights = matrix_base(push.weights), gradients = matrix_base(push.score_gradients);
    const Work w = work_of_tile(push.first_x + gl_WorkGroupID.x, row / TILE_Q);
    const ivec2 keys = visible_keys(w, row);
    const uint begin = uint(keys.x) / 4 * 4, end = uint(max(keys.y, 0));
    const RowStart at = statistics_of(w, row);
    const float delta = Vec4sIn(at.base).x[at.at / 4].y, scale = backward().x.scale;
    for (uint key = 4 * thread; key < matrix_row_elements(); key += 4 * THREADS) {
        const uint i = matrix_vec4(row, key);
        vec4 x = vec4(0);
        if (key + 4 > begin && key < end) x = gradient(Vec4sIn(weights).x[i], Vec4sIn(gradients).x[i], delta, scale);
        Vec4sOut(gradients).x[i] = x;
    }
}
