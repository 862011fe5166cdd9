// Rows of tensors in global memory.
// Rows of one (batch, head) of a tensor, of which a tile begins at `first`. Rows outside begin .. end-1 are never read:
// the nearest row inside stands in for them. It is finite, its scores are hidden and its P is 0, so whatever lies
// outside, NaN too, changes no bit. Never empty where something is staged.
// Of packed rows, `group` heads take turns: row i * group + g is row i of head g.
struct Rows {
    uvec2 head;    // address of row 0
    uvec2 stride;  // bytes
    uvec2 heads;   // bytes from head to head of a group
    uint group;    // 1: not packed
    uint begin, end;
    uint first;
    uint origin;   // the first row of the tile that exists (packed: of its first head),
    uvec2 base;    // and its address
};

// The same rows, with the tile at `first`.
Rows tile_at(Rows t, uint first) {
    t.first = first;
    t.origin = clamp(first, t.begin, t.end - 1);
    if (PACK != 0) t.origin /= t.group;
    t.base = address_add(t.head, mul_wide(t.origin, t.stride));
    return t;
}

// A row of the tile or, where it does not exist, the nearest one that does. Offsets within a tile fit 32 bits unless
// the planner says WIDE_ROWS.
RowStart row_start(Rows t, uint row) {
    uint steps = clamp(row, t.begin, t.end - 1), head = 0;
    if (PACK != 0 && t.group > 1) {
        head = steps % t.group;
        steps /= t.group;
    }
    steps -= t.origin;
    if (WIDE_ROWS != 0) {
        uvec2 offset = mul_wide(steps, t.stride);
        if (PACK != 0) offset = address_add(offset, mul_wide(head, t.heads));
        return RowStart(address_add(t.base, offset), 0);
    }
    uint at = steps * (t.stride.x / ELEMENT_BYTES);
    if (PACK != 0) at += head * (t.heads.x / ELEMENT_BYTES);
    return RowStart(t.base, at);
}
