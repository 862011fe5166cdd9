#version 460
// Classifies the tiles of a mask, so that forward and backward skip those that hide everything and do not read those
// that hide nothing (CLASS_* in shared/kernels.h). What causal bound, window and lengths hide is not looked at.
//
//   for each row of the query tile, each key of the tile of keys:  seen |= visible;  changed |= hidden or bias != 0
//   class = seen ? changed ? MIXED : VISIBLE : HIDDEN
//
// Tile ownership: a workgroup has one tile, of the shape that the forward kernel has: x counts the mask's own heads and
// batches, y query tiles, z tiles of keys. Shared memory: one word.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/mask_classes.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/mask_classes.def"
} push;
#include "lib/operands.glsl"
#include "lib/rows.glsl"
#include "lib/argument_block.glsl"
#include "lib/mask.glsl"

shared uint found;
uint thread = gl_LocalInvocationIndex;
const uint SEEN = 1, CHANGED = 2;

void main() {
    ArgumentsIn a = arguments();
    const uint heads = a.x.class_heads;
    Work w;
    w.batch = gl_WorkGroupID.x / heads;
    w.head = gl_WorkGroupID.x % heads * (num_heads_q() / heads);
    w.first_row = gl_WorkGroupID.y * TILE_Q;
    w.last_row = min(w.first_row + TILE_Q, query_extent() * rows_to_group()) - 1;
    const uint first_key = gl_WorkGroupID.z * TILE_KV;
    const uint num_keys = min(first_key + TILE_KV, a.x.key_limit);
    const MaskRows mask = mask_rows(w);

    if (thread == 0) found = 0;
    barrier();
    uint mine = 0;
    for (uint e = thread; e < TILE_Q * TILE_KV && mine != (SEEN | CHANGED); e += THREADS) {
        const uint row = w.first_row + e / TILE_KV, key = first_key + e % TILE_KV;
        if (row > w.last_row || key >= num_keys) continue;
        const vec2 element = mask_element(mask_row(mask, row), key * mask_key_step());
        mine |= element.y == 0 ? SEEN : CHANGED;
        if (element.x != 0) mine |= CHANGED;
    }
    if (mine != 0) atomicOr(found, mine);
    barrier();
    const uint kind = (found & SEEN) == 0 ? CLASS_HIDDEN : (found & CHANGED) != 0 ? CLASS_MIXED : CLASS_PLAIN;
    if (thread == 0) UintsOut(push.classes).x[class_index(w) + gl_WorkGroupID.z] = kind;
}
