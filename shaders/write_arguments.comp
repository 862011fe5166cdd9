#version 460
// Writes a part of the argument block (shared/kernels.h) into scratch, from push constants. A dispatch before the others
// does it, because a transfer would make the device change over: of 2,048 keys in each of 8 batches a forward takes 55 us
// on an H200 with vkCmdUpdateBuffer (580.159), and 33 with a dispatch.
//
// One invocation stores all words, by constant indices. There is no tile and no shared memory.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/write_arguments.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = 0) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/write_arguments.def"
} push;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Words { uvec4 x[]; };

void main() {
    [[unroll]] for (uint i = 0; i < ARGUMENT_PART_BYTES / 16; i++)
        Words(push.block).x[i] =
            uvec4(push.words[4 * i], push.words[4 * i + 1], push.words[4 * i + 2], push.words[4 * i + 3]);
}
