// This file finds rows of key and value, and the scales that multiply them. key_row and value_row give a row of a tile
// or, if it does not exist, the nearest one that does. key_row_of_whole_tile and value_row_of_whole_tile give a row of
// a tile that is known to exist, counted from its first one (lib/rows.glsl). stored_row gives a row of any tensor of a
// backward, gradients too. lib/operands.glsl and lib/matrix_operands.glsl decode the rows' elements.
#ifdef TYPED_ROWS
#define stored_row(t, row) StoredRow(row_start(t, row, BYTES_OF((t).type)), (t).type)
#define key_row stored_row
#define value_row stored_row
#define staged_row(of_key, t, row) stored_row(t, row)
#elif defined(MIXED)
// Returns the bits of a row's scale.
uint scale_of(Rows t, uint kind, uint row) {
    if (kind == SCALES_NONE) return floatBitsToUint(1.0);
    return UintsIn(t.scales).x[kind == SCALES_PER_ROW ? clamp(row, t.begin, t.end - 1) : 0];
}
StoredRow scaled_row(Rows t, uint row, uint element_bytes, uint scales) {
    return StoredRow(row_start(t, row, element_bytes), scale_of(t, scales, row));
}
StoredRow scaled_row_of_whole_tile(Rows t, uint row, uint element_bytes, uint scales) {
    return StoredRow(row_of_whole_tile(t, row, element_bytes), scale_of(t, scales, t.first + row));
}
#define key_row(t, row) scaled_row(t, row, KEY_BYTES, KEY_SCALES)
#define value_row(t, row) scaled_row(t, row, VALUE_BYTES, VALUE_SCALES)
#define key_row_of_whole_tile(t, row) scaled_row_of_whole_tile(t, row, KEY_BYTES, KEY_SCALES)
#define value_row_of_whole_tile(t, row) scaled_row_of_whole_tile(t, row, VALUE_BYTES, VALUE_SCALES)
// Finds a row of query or of key: lib/operands.glsl stages both in one list.
#define staged_row(of_key, t, row) \
    scaled_row(t, row, (of_key) ? KEY_BYTES : QUERY_BYTES, (of_key) ? KEY_SCALES : SCALES_NONE)
#else
#define stored_row(t, row) row_start(t, row, QUERY_BYTES)
#define key_row(t, row) row_start(t, row, KEY_BYTES)
#define value_row(t, row) row_start(t, row, VALUE_BYTES)
#define key_row_of_whole_tile(t, row) row_of_whole_tile(t, row, KEY_BYTES)
#define value_row_of_whole_tile(t, row) row_of_whole_tile(t, row, VALUE_BYTES)
#define staged_row(of_key, t, row) row_start(t, row, QUERY_BYTES)
#endif
