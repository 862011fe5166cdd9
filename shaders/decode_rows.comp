#version 460
// Decodes keys or values that are stored as blocks or single bytes (lib/quantised.glsl) to a dense tensor of 16 bits,
// before a forward on matrix units, whose workgroups would each decode all keys for their own query rows.
//
//   for each of the workgroup's rows:  decoded = round(x)      with x by the row's type, as in lib/quantised.glsl
//
// Tile ownership: x of the grid counts heads of all batches, y tiles of DECODED_ROWS rows. An invocation decodes eight
// neighbouring elements at a time. Shared memory: none.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/decode_rows.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/decode_rows.def"
} push;
const bool PACKED_HEADS = false;
#include "lib/operands.glsl"
#include "lib/rows.glsl"
#include "lib/key_source.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Uvec4sOut { uvec4 x[]; };

void main() {
    const uint head = push.first_x + gl_WorkGroupID.x, first = (push.first_y + gl_WorkGroupID.y) * DECODED_ROWS;
    const uint batch = head / push.num_heads, head_of_batch = head % push.num_heads;
    // Nobody reads rows behind the batch's length.
    uint end = push.num_rows;
    if (HAS_LENGTHS) end = uint(clamp(IntsIn(push.kv_lengths).x[batch], 0, int(push.num_rows)));
    if (first >= end) return;
    const uvec2 begin = address_add(address_add(push.rows, mul_wide(batch, push.batch_stride)),
                                    mul_wide(head_of_batch, push.head_stride));
    Rows rows = tile_at(rows_of(begin, push.row_stride, uvec2(0), 1, push.num_rows), first);
    rows.scales = push.scales;
    const uvec2 rows_before = mul_wide(push.num_rows, uvec2(head, 0));
    if (KEY_SCALES == SCALES_PER_HEAD) rows.scales = address_add(push.scales, uvec2(4 * head_of_batch, 0));
    if (KEY_SCALES == SCALES_PER_ROW) rows.scales = address_add(push.scales, mul_wide(4, rows_before));
    const uvec2 decoded =
        address_add(push.decoded, mul_wide(2 * HEAD_DIM, address_add(rows_before, uvec2(first, 0))));
    const uint count = min(DECODED_ROWS, end - first);
    for (uint e = gl_LocalInvocationIndex; e < count * (HEAD_DIM / 8); e += THREADS) {
        const StoredRow row = key_row(rows, first + e / (HEAD_DIM / 8));
        const Eight eight = load_eight(KEY_TYPE, row, e % (HEAD_DIM / 8) * 8, HEAD_DIM, true);
        const uvec2 bytes = bytes_of_eight(KEY_TYPE, eight);
        const vec4 low = floats_of_quantised(KEY_TYPE, uvec2(bytes.x, eight.words.w)),
                   high = floats_of_quantised(KEY_TYPE, uvec2(bytes.y, eight.words.w));
        Uvec4sOut(decoded).x[e] = uvec4(bits_of(OUT_TYPE, low), bits_of(OUT_TYPE, high));
    }
}
