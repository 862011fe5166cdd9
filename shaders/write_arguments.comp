#version 460
// This kernel writes a part of the argument block (shared/kernels.h) into scratch, from push constants. A dispatch
// before the others does it, because a transfer between dispatches is slow. On an H200 (580.159) a forward over 2,048
// keys with kv lengths, 8 batches, 32 and 8 heads, D128, took 55 us with vkCmdUpdateBuffer, and takes 32 with this
// dispatch (`vkattn bench --kv-lengths 2048`).
//
// One invocation stores all words, by constant indices. There is no tile and no shared memory.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/write_arguments.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/write_arguments.def"
} push;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Words { uvec4 x[]; };

void main() {
    [[unroll]] for (uint i = 0; i < ARGUMENT_PART_BYTES / 16; i++)
        Words(push.block).x[i] =
            uvec4(push.words[4 * i], push.words[4 * i + 1], push.words[4 * i + 2], push.words[4 * i + 3]);
}
