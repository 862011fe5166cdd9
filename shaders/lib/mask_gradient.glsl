// This file tells the kernels that find dbias where its elements lie, and what is summed to one of them.
// Element `key` of a row of dbias.
void store_element(RowStart row, uint key, float x) {
    if (key < backward().x.dbias_keys) store_mask_gradient(row, row.at + key, x);
}

// The row `steps` behind first_row, which is the same for all invocations: within a tile offsets fit 32 bits.
RowStart dbias_row(uint mask, uint first_row, uint steps) {
    BackwardIn a = backward();
    uvec2 row = address_add(mul_wide(mask, a.x.dbias_queries), uvec2(first_row, 0));
    if (FAR_ROWS) row = address_add(row, uvec2(steps, 0));
    const uvec2 bytes = mul_wide(MASK_BYTES, mul_wide(a.x.dbias_keys, row));
    return RowStart(address_add(a.x.dbias, bytes), FAR_ROWS ? 0 : steps * a.x.dbias_keys);
}

// Batches and query heads first .. end-1 that share the workgroup's part of the mask.
struct Shared {
    uvec2 batches, heads;
};
Shared shared_by(uint mask) {
    BackwardIn a = backward();
    const uint batch = mask / a.x.dbias_heads, group = a.x.forward.mask_group_size;
    const uint first_head = mask % a.x.dbias_heads * group;
    return Shared(a.x.dbias_batches == 1 ? uvec2(0, a.x.batch) : uvec2(batch, batch + 1),
                  uvec2(first_head, first_head + group));
}
