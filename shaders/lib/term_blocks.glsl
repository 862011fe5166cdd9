// Block maps, as a term of lib/scores.glsl: the caller says of each block of query rows and keys whether it is hidden,
// visible, or as the mask says (VkattnProblem::block_map). Blocks count from query 0 and key 0, whatever the tiles are.

#define map_heads() (arguments().x.maps & 0xffff)

// The class of a block, CLASS_*. What a mask would say is CLASS_MIXED. A driver may load the block that a loop ends at:
// it must be there.
uint class_of_block(Work w, uint map_head, uint query_block, uint key_block) {
    ArgumentsIn a = arguments();
    const uint batch = a.x.maps >> 16 == 0 ? 0 : w.batch, head = min(map_head, map_heads() - 1);
    const uint down = MATRIX_STEPS(query_extent(), a.x.block_rows), across = MATRIX_STEPS(key_extent(), a.x.block_keys);
    const uint row = (batch * map_heads() + head) * down + min(query_block, down - 1);
    const uint byte = row * across + min(key_block, across - 1) + (a.x.block_map.x & 3);
    const uint word = UintsIn(uvec2(a.x.block_map.x & ~3u, a.x.block_map.y)).x[byte / 4];
    const uint number = word >> (byte % 4 * 8) & 0xff;
    return number == 0 ? CLASS_HIDDEN : number == 1 || MASK_KIND == MASK_NONE ? CLASS_PLAIN : CLASS_MIXED;
}
// Below 2^32: both are 16 bits long.
#define MAP_HEAD(head) ((head) * map_heads() / num_heads_q())
#define KEY_BLOCK(key) ((key) / arguments().x.block_keys)

// The class of a row's block, which a key lies in.
#define CLASS_OF_SCORE(w, row, key) class_of_block(w, MAP_HEAD((w).head + head_of(row)), \
                                                   query_of(row) / arguments().x.block_rows, KEY_BLOCK(key))

// The class of a tile of rows from .x to .y and keys from .x to before .y: mixed if its blocks are not all alike.
uint class_of_blocks(Work w, uvec2 rows, uvec2 keys) {
    const uvec2 heads = uvec2(MAP_HEAD(w.head), MAP_HEAD(w.head + rows_to_group() - 1));
    const uvec2 queries = uvec2(query_of(rows.x), query_of(rows.y)) / arguments().x.block_rows;
    const uvec2 blocks = uvec2(KEY_BLOCK(keys.x), KEY_BLOCK(keys.y - 1));
    bool seen = false, changed = false;
    for (uint head = heads.x; head <= heads.y && !(seen && changed); head++)
        for (uint query = queries.x; query <= queries.y && !(seen && changed); query++)
            for (uint block = blocks.x; block <= blocks.y && !(seen && changed); block++) {
                const uint kind = class_of_block(w, head, query, block);
                seen = seen || kind != CLASS_HIDDEN;
                changed = changed || kind != CLASS_PLAIN;
            }
    return !seen ? CLASS_HIDDEN : changed ? CLASS_MIXED : CLASS_PLAIN;
}

// The gradient of a mask's element, from that of a score: 0 where the block does not ask the mask.
vec4 gradient_where_asked(Work w, uint row, uint key, vec4 gradient) {
    if (!HAS_BLOCK_MAP) return gradient;
    vec4 kept;
    [[unroll]] for (uint i = 0; i < 4; i++)
        kept[i] = CLASS_OF_SCORE(w, min(row, w.last_row), key + i) == CLASS_MIXED ? gradient[i] : 0;
    return kept;
}

// Statements of finished(): `asks_mask` is true if the mask has a say in the score.
#define TERM_BLOCKS \
    bool asks_mask = terms.mask_is_mixed; \
    if (HAS_BLOCK_MAP && HIDES_KEYS && terms.mask_is_mixed && !hidden) { \
        const uint kind = CLASS_OF_SCORE(terms.w, row, uint(key)); \
        hidden = kind == CLASS_HIDDEN; \
        asks_mask = kind == CLASS_MIXED; \
    }
