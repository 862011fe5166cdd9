// The seqlen_q x seqlen_kv matrix of one head, which only the baseline has: float32, rows a multiple of 4 elements. The
// planner keeps it below 2^31 elements.
uint matrix_row_elements() { return (p.seqlen_kv + 3) / 4 * 4; }

uvec2 matrix_base(uvec2 matrices) {
    const uvec2 head = mul_wide(p.seqlen_q, matrix_row_elements() * 4);
    return address_add(matrices, mul_wide(gl_WorkGroupID.x, head));
}

uint matrix_vec4(uint row, uint key) { return row * (matrix_row_elements() / 4) + key / 4; }
