#version 460
// This kernel makes the links of a block map (VkattnProblem::block_map), by which a loop on matrix units goes from one
// tile to the next that is not hidden (LINK_OF in shared/kernels.h). What causal bound, window and lengths hide is not
// looked at.
//
//   behind = (class: hidden, number of tiles)
//   for each chunk of THREADS walked tiles, the last chunk first; each invocation has a tile:
//       class = that of the blocks which the tile touches, if they are all alike, else mixed
//       barrier
//       next = the nearest tile behind this one in the chunk that is not hidden, else `behind`
//       link = (class, class of next, next)
//       behind = the chunk's first tile that is not hidden, if there is one;  barrier
//
// Tile ownership: a workgroup has a tile of held rows: x counts the heads and batches that have links, y the tiles.
// Shared memory: the classes of a chunk, and a bit for each tile of it that is not hidden.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/tile_links.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/tile_links.def"
} push;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer MapIn { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer LinksOut { uint x[]; };

const uint WORDS = MATRIX_STEPS(THREADS, 32);
shared uint kinds[THREADS];
shared uint seen[WORDS];
uint thread = gl_LocalInvocationIndex;

// Returns the class of a block, whose place among all blocks of the map is `at`. No driver loads a block that a loop
// ends at, as term_blocks.glsl has it: the address is another one for each invocation.
uint class_of_block(uint at) {
    const uint byte = at + (push.block_map.x & 3);
    const uint word = MapIn(uvec2(push.block_map.x & ~3u, push.block_map.y)).x[byte / 4];
    const uint number = word >> (byte % 4 * 8) & 0xff;
    return number == 0 ? CLASS_HIDDEN : number == 1 || push.has_mask == 0 ? CLASS_PLAIN : CLASS_MIXED;
}

// Returns the class of a tile that touches the blocks from .x to .y of heads, of held rows and of walked rows.
uint class_of_blocks(uint batch, uvec2 heads, uvec2 held, uvec2 walked) {
    bool shown = false, changed = false;
    for (uint head = heads.x; head <= heads.y && !(shown && changed); head++)
        for (uint h = held.x; h <= held.y && !(shown && changed); h++)
            for (uint w = walked.x; w <= walked.y && !(shown && changed); w++) {
                const uint of_head = (batch * push.map_heads + head) * push.blocks;
                const uint kind = class_of_block(of_head + h * push.held_step + w * push.walked_step);
                shown = shown || kind != CLASS_HIDDEN;
                changed = changed || kind != CLASS_PLAIN;
            }
    return !shown ? CLASS_HIDDEN : changed ? CLASS_MIXED : CLASS_PLAIN;
}

// Returns the first and the last block that a tile's existing rows touch.
uvec2 blocks_of(uint tile, uint rows, uint extent, uint to_group, uint block) {
    return uvec2(tile * rows, min((tile + 1) * rows, extent) - 1) / to_group / block;
}

// Returns the first tile of the chunk behind `tile` that is not hidden, or THREADS if there is none.
uint next_in_chunk(uint tile) {
    uint word = tile / 32, rest = seen[word] & ~(0xffffffffu >> (31 - tile % 32));
    while (rest == 0 && word + 1 < WORDS) rest = seen[++word];
    return rest == 0 ? THREADS : word * 32 + findLSB(rest);
}

void main() {
    const uint head = gl_WorkGroupID.x % push.num_heads, batch = gl_WorkGroupID.x / push.num_heads;
    const uvec2 heads = uvec2(head * push.map_heads / push.num_heads,
                              max(head * push.map_heads, (head + 1) * push.map_heads - 1) / push.num_heads);
    const uvec2 held =
        blocks_of(gl_WorkGroupID.y, push.held_tile, push.held_rows, push.rows_to_group, push.held_block);
    const uint tiles = MATRIX_STEPS(push.walked_rows, push.walked_tile);
    const uint links = (gl_WorkGroupID.x * gl_NumWorkGroups.y + gl_WorkGroupID.y) * tiles;
    uint behind = LINK_OF(0, CLASS_HIDDEN, tiles);
    for (uint chunk = MATRIX_STEPS(tiles, THREADS); chunk-- > 0;) {
        const uint first = chunk * THREADS, tile = first + thread;
        if (thread < WORDS) seen[thread] = 0;
        barrier();
        uint kind = CLASS_HIDDEN;
        if (tile < tiles)
            kind = class_of_blocks(batch, heads, held,
                                   blocks_of(tile, push.walked_tile, push.walked_rows, 1, push.walked_block));
        kinds[thread] = kind;
        if (kind != CLASS_HIDDEN) atomicOr(seen[thread / 32], 1u << thread % 32);
        barrier();
        const uint next = next_in_chunk(thread), begin = kinds[0] != CLASS_HIDDEN ? 0 : next_in_chunk(0);
        const uint on = next < THREADS ? LINK_OF(0, kinds[next], first + next) : behind;
        if (tile < tiles) LinksOut(push.links).x[links + tile] = on | kind;
        if (begin < THREADS) behind = LINK_OF(0, kinds[begin], first + begin);
        barrier();
    }
}
