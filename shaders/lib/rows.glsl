// Rows of tensors in global memory: where staging loops get their addresses, all of them from row_start and, where a
// whole tile is known to exist, from row_of_whole_tile.
//
// Rows of one (batch, head) of a tensor, of which a tile begins at `first`. Rows outside begin .. end-1 are never read:
// the nearest row inside is read in their place. It is finite, its scores are hidden and its P is 0, so whatever lies
// outside, NaN too, changes no bit. If anything is staged there is at least one row. With packed heads, the `group`
// heads of a group alternate: row i * group + g is row i of head g.
struct Rows {
    uvec2 head;         // address of row 0
    uvec2 stride;       // bytes from row to row
    uvec2 head_stride;  // bytes from head to head of a group
    uint group;         // 1 where heads are not packed
    uint begin, end;
    uint first;
    uint origin;        // the first row of the tile that exists (with packed heads, of its first head),
    uvec2 base;         // and its address
#ifdef TYPED_ROWS
    uint type;          // of its elements
#elif defined(MIXED)
    uvec2 scales;       // the address of the scale of row 0, or of the one that all rows share
#endif
};

Rows rows_of(uvec2 head, uvec2 stride, uvec2 head_stride, uint group, uint end) {
    Rows t;
    t.head = head;
    t.stride = stride;
    t.head_stride = head_stride;
    t.group = group;
    t.begin = 0;
    t.end = end;
    return t;
}

// Places the tile of these rows at `first`.
Rows tile_at(Rows t, uint first) {
    t.first = first;
    t.origin = clamp(first, t.begin, t.end - 1);
    if (PACKED_HEADS) t.origin /= t.group;
    t.base = address_add(t.head, mul_wide(t.origin, t.stride));
    return t;
}

// A row of the tile or, where it does not exist, the nearest one that does. Offsets within a tile fit 32 bits unless
// the planner says FAR_ROWS. `element_bytes` is a constant of the operand or, with TYPED_ROWS, follows from the type of
// the rows.
RowStart row_start(Rows t, uint row, uint element_bytes) {
    uint steps = clamp(row, t.begin, t.end - 1), head = 0;
    if (PACKED_HEADS && t.group > 1) {
        head = steps % t.group;
        steps /= t.group;
    }
    steps -= t.origin;
    if (FAR_ROWS) {
        uvec2 offset = mul_wide(steps, t.stride);
        if (PACKED_HEADS) offset = address_add(offset, mul_wide(head, t.head_stride));
        return RowStart(address_add(t.base, offset), 0);
    }
    uint at = steps * (t.stride.x / element_bytes);
    if (PACKED_HEADS) at += head * (t.head_stride.x / element_bytes);
    return RowStart(t.base, at);
}

// tile_at for a tile whose first row may not exist, though some row does; heads are not packed.
Rows walked_tile_at(Rows t, uint first) {
    t.first = t.origin = first;
    t.base = address_add(t.head, mul_wide(first, t.stride));
    return t;
}
// The tile that follows one of `rows` rows, where both exist in part or as a whole; heads are not packed.
Rows next_whole_tile(Rows t, uint rows) {
    t.first += rows;
    t.origin = t.first;
    t.base = address_add(t.base, mul_wide(rows, t.stride));
    return t;
}
// A row of such a tile, counted from its first; heads are not packed, and rows not far.
RowStart row_of_whole_tile(Rows t, uint row, uint element_bytes) {
    return RowStart(t.base, row * (t.stride.x / element_bytes));
}
