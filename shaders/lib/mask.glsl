// The caller's mask, a term of the scores (lib/scores.glsl): bool (one byte, nonzero = attend) or float (added to the
// score, -inf hides), read through strides in which 0 broadcasts. mask_group_size query heads read the same mask head.
// A problem with a mask has an argument block.
#ifdef HAS_16BIT
const uint STORED_MASK_TYPE = MASK_TYPE;
void store_mask_gradient(RowStart row, uint at, float x) {
    if (MASK_TYPE == TYPE_FLOAT32) store_one_float32(row, at, x);
    else store_one_16bit(row, at, bits_of(MASK_TYPE, x));
}
#else
const uint STORED_MASK_TYPE = TYPE_FLOAT32;
void store_mask_gradient(RowStart row, uint at, float x) { store_one_float32(row, at, x); }
#endif
const uint MASK_BYTES = BYTES_OF(STORED_MASK_TYPE);

struct MaskRows {
    uvec2 base;         // address of the element of (batch, mask head, the tile's first query, key 0)
    uvec2 stride;       // elements from query to query
    uvec2 head_stride;  // elements from mask head to mask head
    uint origin;        // the tile's first query
    uint first_head;    // the tile's first query head, counted from the first one that reads the same mask head
    uint group;         // query heads that read the same mask head
};

uvec2 mask_bytes(uvec2 elements) {
    const uint shift = (MASK_KIND == MASK_BOOL ? 1 : MASK_BYTES) / 2;  // 0, 1, 2 for elements of 1, 2, 4 bytes
    return shift == 0 ? elements : uvec2(elements.x << shift, elements.y << shift | elements.x >> (32 - shift));
}

MaskRows mask_rows(Work w) {
    MaskRows m;
    if (MASK_KIND == MASK_NONE) return m;
    ArgumentsIn a = arguments();
    m.head_stride = a.x.mask_stride[1];
    m.stride = a.x.mask_stride[2];
    m.origin = query_of(w.first_row);
    m.group = a.x.mask_group_size;
    m.first_head = w.head % m.group;
    uvec2 at = address_add(mul_wide(w.batch, a.x.mask_stride[0]), mul_wide(w.head / m.group, m.head_stride));
    at = address_add(at, mul_wide(m.origin, m.stride));
    m.base = address_add(a.x.mask, mask_bytes(at));
    return m;
}

RowStart mask_row(MaskRows m, uint row) {
    const uint steps = query_of(row) - m.origin;
    const uint head = PACKED_HEADS ? (m.first_head + head_of(row)) / m.group : 0;  // counted from the tile's first
    if (FAR_ROWS) {
        const uvec2 elements = address_add(mul_wide(steps, m.stride), mul_wide(head, m.head_stride));
        return RowStart(address_add(m.base, mask_bytes(elements)), 0);
    }
    return RowStart(m.base, steps * m.stride.x + head * m.head_stride.x);
}

// x: what is added to the score; y: not 0 if the key is hidden.
vec2 mask_element(RowStart row, uint key) {
    const uint at = row.at + key;
    if (MASK_KIND == MASK_BOOL) {
        const uint byte = at + (row.base.x & 3);
        const uint word = UintsIn(uvec2(row.base.x & ~3u, row.base.y)).x[byte / 4];
        return vec2(0, (word >> (byte % 4 * 8) & 0xff) == 0 ? 1 : 0);
    }
#ifdef HAS_16BIT
    if (MASK_TYPE != TYPE_FLOAT32) {
        const uint bits = load_one_16bit(row, at);
        const bool hides = bits == (MASK_TYPE == TYPE_FLOAT16 ? 0xfc00 : 0xff80);
        return vec2(hides ? 0 : float_of(MASK_TYPE, bits), hides ? 1 : 0);
    }
#endif
    const uint bits = UintsIn(row.base).x[at];
    const bool hides = bits == 0xff800000u;
    return vec2(hides ? 0 : uintBitsToFloat(bits), hides ? 1 : 0);
}

uint mask_key_step() { return arguments().x.mask_key_step; }

#include "lib/term_blocks.glsl"

// The index of the class of a query tile and its first tile of keys, among ForwardArguments.classes; or of its link.
uint class_index(Work w) {
    if (HAS_BLOCK_MAP ? !HAS_LINKS : MASK_KIND == MASK_NONE) return 0;
    ArgumentsIn a = arguments();
    const uint head = w.head * a.x.class_heads / num_heads_q();  // below 2^32: both are 16 bits long
    const uint batch = a.x.class_batches == 1 ? 0 : w.batch;
    return ((batch * a.x.class_heads + head) * query_tiles() + w.first_row / TILE_Q) * key_tiles();
}

// The class that the mask or the block map gives a tile: a mask makes one mixed only where a block map says so. The
// next tile's class may be loaded ahead of the test whether there is one: it must be there.
uint mask_class(Work w, uint index, uint first_key) {
    if (HAS_BLOCK_MAP)
        return class_of_blocks(w, uvec2(w.first_row, w.last_row), uvec2(first_key, first_key + TILE_KV));
    if (MASK_KIND == MASK_NONE) return CLASS_MIXED;
    const bool classes = is_present(PRESENT_CLASSES);
    const uint at = classes ? index + min(first_key / TILE_KV, key_tiles() - 1) : 0;
    const uint kind = UintsIn(arguments().x.classes).x[at];
    return classes ? kind : CLASS_MIXED;
}

// The first tile from `first` on that is not hidden entirely.
uint next_tile(Work w, uint classes, uint first, uint end) {
    if (SKIPS_TILES)
        while (first < end && mask_class(w, classes, first) == CLASS_HIDDEN) first += TILE_KV;
    return first;
}
