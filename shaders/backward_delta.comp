#version 460
// Finds the numbers of each query row that the backward's other kernels need (Dao et al., arXiv:2205.14135, appendix
// B.4).
//
//   statistics = (lse, rowsum(dout * out) - dlse, 1, 0)     (0, 0, 1, 1) for a row without visible keys
//
// where the lse is natural or in base 2, as scores are (lib/scores.glsl).
//
// Tile ownership: LANES invocations share a row. Each loads every LANES-th vec4 of it, and the first adds them all up
// in the order in which dP is summed, so that dP - delta is exactly 0 in a row that sees one key. Shared memory: two
// vec4 an invocation. Grid: heads of all batches, THREADS / LANES rows.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_delta.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_delta.def"
} push;
#include "lib/operands.glsl"
#include "lib/rows.glsl"

const uint GROUPS = THREADS / LANES;
const uint TILE_Q = GROUPS, TILE_KV = 1;  // the query rows of a workgroup; it looks at no keys
uint thread = gl_LocalInvocationIndex;
uint lane = thread % LANES;
uint group = thread / LANES;

#include "lib/backward_problem.glsl"
#include "lib/mask.glsl"
#include "lib/scores.glsl"

// Rounds dout as the products do: dP and delta must use the same rounded dout, or a row's dS does not sum to 0, and the
// rest is multiplied by the keys.
vec4 as_operand(vec4 dout) {
    return DOUT_TYPE == TYPE_FLOAT32 ? dout : floats_of(DOUT_TYPE, bits_of(DOUT_TYPE, dout));
}

// True if the row sees no key. With a sink its lse does not tell that: the sink may be all that is left of the sum.
bool sees_none(Work w, uint row, uint lse) {
    if (lse == MINUS_INFINITY) return true;
    if (!HAS_SINKS || lse != floatBitsToUint(sink_of(w, row))) return false;
    const ivec2 keys = visible_keys(w, row);
    if (!HIDES_KEYS) return keys.x >= keys.y;
    const Terms terms = terms_of(w, true);
    bool none = true;
    for (int key = keys.x; key < keys.y && none; key++) none = finished(0, terms, row, keys, key) == HIDDEN;
    return none;
}

shared vec4 out_vecs[THREADS], dout_vecs[THREADS];

void main() {
    BackwardIn a = backward();
    const Work w = work_of_tile(push.first_x + gl_WorkGroupID.x, push.first_y + gl_WorkGroupID.y);
    const uint wanted = w.first_row + group, row = min(wanted, w.last_row);
    const Rows o = query_tile(push.out_rows, OUT, w);
    const Rows dout = dout_tile(w);
    const RowStart at_o = row_start(o, row, OUT_BYTES), at_dout = row_start(dout, row, OUT_BYTES);
    float delta = 0;
    for (uint first = 0; first < HEAD_DIM_V; first += 4 * LANES) {
        const uint d = first + 4 * lane;
        barrier();
        out_vecs[thread] = load_out4(at_o, d, HEAD_DIM_V, false);
        dout_vecs[thread] = as_operand(load_out4(at_dout, d, HEAD_DIM_V, false));
        barrier();
        for (uint l = 0; l < LANES && lane == 0; l++)
            [[unroll]] for (uint i = 0; i < 4; i++)
                delta = fma(dout_vecs[thread + l][i], out_vecs[thread + l][i], delta);
    }
    if (lane != 0 || wanted > w.last_row) return;
    const RowStart at_lse = dense_row(a.x.lse, uvec2(0), 1, w, row);
    const uint lse = UintsIn(at_lse.base).x[at_lse.at];
    if (HAS_DLSE) {
        const RowStart at_dlse = dense_row(a.x.dlse, uvec2(0), 1, w, row);
        delta -= FloatsIn(at_dlse.base).x[at_dlse.at];
    }
    const RowStart to = statistics_of(w, row);
    const bool empty = sees_none(w, row, lse);
    // The lse is clamped to the range of what masks add: a row of nothing but the lowest numbers must stay within it.
    const float natural = SHIFTS_ROWS ? uintBitsToFloat(lse) - row_shift(w, row) : uintBitsToFloat(lse);
    const float held = FROM_NATURAL(clamp(natural, -HIGHEST_BIAS, HIGHEST_BIAS));
    const bool finite = IS_FINITE(uintBitsToFloat(lse));
    const float row_lse = finite ? held : uintBitsToFloat(NAN_BITS);
    // Any other NaN of the caller's may not survive the rounding to bfloat16 (lib/matrix_layout.glsl).
    if (!finite || IS_NAN(delta)) delta = uintBitsToFloat(NAN_BITS);
    Vec4sOut(to.base).x[to.at / 4] = empty ? vec4(0, 0, 1, 1) : vec4(row_lse, delta, 1, 0);
}
