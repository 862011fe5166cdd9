// The seqlen_q x seqlen_kv matrix of one head, which only the baseline has: float32, rows a multiple of 4 elements. The
// planner keeps it below 2^32 vec4.
uint matrix_row_elements() { return (key_extent() + 3) / 4 * 4; }

// The matrix of a head, counted from the first of the piece.
uvec2 matrix_of(uvec2 matrices, uint head) {
    return address_add(matrices, mul_wide(head, mul_wide(query_extent(), matrix_row_elements() * 4)));
}

uvec2 matrix_base(uvec2 matrices) { return matrix_of(matrices, gl_WorkGroupID.x); }

uint matrix_vec4(uint row, uint key) { return row * (matrix_row_elements() / 4) + key / 4; }
