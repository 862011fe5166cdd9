#version 460
// The baseline's second step: each row of scores becomes its softmax, in place, and its lse. One workgroup a row; an
// invocation takes every THREADS-th vec4. Keys outside the row's range become 0, so the next step may read them.
//
//   m = max of the visible scores;  l = sum 2^(s - m)       one pass, combined over the workgroup in shared memory
//   row = 2^(s - m) / l, 0 where hidden;  lse = ln 2 * (m + log2 l)
//
// Shared memory: the first THREADS entries of the pool, (m, l) of each invocation. Grid: head, row (y and z).
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/materialized_softmax.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/materialized_softmax.def"
} push;
#include "lib/tiles.glsl"
#include "lib/operand_layout.glsl"
#include "lib/mask.glsl"
#include "lib/softmax.glsl"
#include "lib/score_matrix.glsl"

vec4 visible_scores(uvec2 matrix, uint row, uint key, ivec2 keys) {
    const ivec4 index = int(key) + ivec4(0, 1, 2, 3);
    const bvec4 hidden = bvec4(uvec4(lessThan(index, ivec4(keys.x))) | uvec4(greaterThanEqual(index, ivec4(keys.y))));
    return mix(Vec4sIn(matrix).x[matrix_vec4(row, key)], vec4(HIDDEN), hidden);
}

float max4(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

void main() {
    const uint row = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (row >= query_extent()) return;
    const uvec2 matrix = matrix_base(push.scores);
    const Work w = work_of_tile(push.first_x + gl_WorkGroupID.x, row / TILE_Q);
    const ivec2 keys = visible_keys(w, row);
    const uint begin = uint(keys.x) / 4 * 4, end = uint(max(keys.y, 0));
    float m = NO_MAXIMUM, l = 0;
    for (uint key = begin + 4 * thread; key < end; key += 4 * THREADS) {
        const vec4 s = visible_scores(matrix, row, key, keys);
        const float grown = max(m, max4(s));
        const vec4 difference = s - grown, e = EXP2_4(difference);
        l = l * exp2(m - grown) + (e.x + e.y) + (e.z + e.w);
        m = grown;
    }
    pool[thread] = vec4(m, l, 0, 0);
    barrier();
    for (uint step = 1; step < THREADS; step *= 2) {
        if (thread % (2 * step) == 0 && thread + step < THREADS) {
            const vec2 a = pool[thread].xy, b = pool[thread + step].xy;
            const float both = max(a.x, b.x);
            pool[thread] = vec4(both, a.y * exp2(a.x - both) + b.y * exp2(b.x - both), 0, 0);
        }
        barrier();
    }
    const vec2 total = pool[0].xy;
    const float scale = IS_ZERO(total.y) ? 0 : 1 / total.y;
    for (uint key = 4 * thread; key < matrix_row_elements(); key += 4 * THREADS) {
        const bool seen = key + 4 > begin && key < end;
        const vec4 s = seen ? visible_scores(matrix, row, key, keys) : vec4(HIDDEN), difference = s - total.x;
        vec4 weights = seen ? EXP2_4(difference) * scale : vec4(0);
        weights += mix(vec4(LEAST_WEIGHT), vec4(0), lessThan(s, vec4(NO_MAXIMUM)));  // a weight of 0 means hidden
        Vec4sOut(matrix).x[matrix_vec4(row, key)] = weights;
    }
    if (thread != 0 || push.lse == uvec2(0)) return;
    const RowStart at = dense_row(push.lse, uvec2(0), 1, w, row);
    FloatsOut(at.base).x[at.at] = lse_of(total.x, total.y);
}
