// The caller's mask: bool (one byte, nonzero = attend) or float (the storage type, added to the score, -inf hides), read
// through strides in which 0 broadcasts. Needs ARGUMENTS where there is one.
struct MaskRows {
    uvec2 base;    // address of the element of (batch, head, the tile's first query, key 0)
    uvec2 stride;  // elements from query to query
    uvec2 heads;   // elements from head to head
    uint origin;   // the tile's first query
};

const uint MASK_ELEMENT_BYTES = MASK == MASK_BOOL ? 1 : ELEMENT_BYTES;

uvec2 mask_bytes(uvec2 elements) {
    const uint shift = MASK_ELEMENT_BYTES / 2;  // of 1, 2, 4: 0, 1, 2
    return shift == 0 ? elements : uvec2(elements.x << shift, elements.y << shift | elements.x >> (32 - shift));
}

MaskRows mask_rows(Work w) {
    MaskRows m;
    if (MASK == MASK_NONE) return m;
    ArgumentsIn a = arguments();
    m.heads = a.x.mask_stride[1];
    m.stride = a.x.mask_stride[2];
    m.origin = query_of(w.first_row);
    uvec2 at = address_add(mul_wide(w.batch, a.x.mask_stride[0]), mul_wide(w.head, m.heads));
    at = address_add(at, mul_wide(m.origin, m.stride));
    m.base = address_add(a.x.mask, mask_bytes(at));
    return m;
}

RowStart mask_row(MaskRows m, uint row) {
    const uint steps = query_of(row) - m.origin, head = head_of(row);
    if (WIDE_ROWS != 0)
        return RowStart(address_add(m.base, mask_bytes(address_add(mul_wide(steps, m.stride), mul_wide(head, m.heads)))), 0);
    return RowStart(m.base, steps * m.stride.x + head * m.heads.x);
}

// x: what is added to the score; y: not 0 if the key is hidden.
vec2 mask_element(RowStart row, uint key) {
    const uint at = row.at + key;
    if (MASK == MASK_BOOL) {
        const uint byte = at + (row.base.x & 3);
        const uint word = UintsIn(uvec2(row.base.x & ~3u, row.base.y)).x[byte / 4];
        return vec2(0, (word >> (byte % 4 * 8) & 0xff) == 0 ? 1 : 0);
    }
#if defined(F16) || defined(BF16)
    const uint bits = load_bits(row, at);
#ifdef F16
    const bool hides = bits == 0xfc00;
#else
    const bool hides = bits == 0xff80;
#endif
    return vec2(hides ? 0 : float_of(bits), hides ? 1 : 0);
#else
    const uint bits = UintsIn(row.base).x[at];
    const bool hides = bits == 0xff800000u;
    return vec2(hides ? 0 : uintBitsToFloat(bits), hides ? 1 : 0);
#endif
}

uint mask_key_step() { return arguments().x.mask_key_step; }

uint num_key_tiles() { return (p.seqlen_kv + TILE_KV - 1) / TILE_KV; }

// Which class of mask tiles belongs to a query tile and its first tile of keys.
uint class_index(Work w) {
    if (MASK == MASK_NONE) return 0;
    ArgumentsIn a = arguments();
    const uint head = a.x.class_heads == 1 ? 0 : w.head / rows_to_group();
    const uint batch = a.x.class_batches == 1 ? 0 : w.batch;
    return ((batch * a.x.class_heads + head) * num_tiles() + w.first_row / TILE_Q) * num_key_tiles();
}

// The next tile's class may be loaded ahead of the test whether there is one: it must be there.
uint tile_class(uint index, uint first_key) {
    if (MASK == MASK_NONE) return CLASS_MIXED;
    const bool classes = is_present(PRESENT_CLASSES);
    const uint at = classes ? index + min(first_key / TILE_KV, num_key_tiles() - 1) : 0;
    const uint kind = UintsIn(arguments().x.classes).x[at];
    return classes ? kind : CLASS_MIXED;
}

// The first tile from `first` on that the mask does not hide entirely.
uint next_tile(uint classes, uint first, uint end) {
    if (MASK != MASK_NONE)
        while (first < end && tile_class(classes, first) == CLASS_HIDDEN) first += TILE_KV;
    return first;
}
