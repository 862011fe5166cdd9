// The seqlen_q x seqlen_kv matrix of one head, which only the baseline has: float32, rows a multiple of 4 elements.
uint matrix_row_elements() { return (p.seqlen_kv + 3) / 4 * 4; }

uvec2 matrix_address(uvec2 base, uint row, uint key) {
    const uvec2 head = mul_wide(p.seqlen_q, matrix_row_elements() * 4);
    return address_add(address_add(base, mul_wide(gl_WorkGroupID.x, head)),
                       address_add(mul_wide(row, matrix_row_elements() * 4), key * 4));
}
