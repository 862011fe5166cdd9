// Where the tensors of a backward lie, and what its kernels keep in scratch.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer BackwardIn { BackwardArguments x; };

BackwardIn backward() { return BackwardIn(uvec2(p.query_batch, p.query_head)); }

// Which SLICES-th of its gradients' head dims a workgroup sums: more than one where a device has too few registers for all
// of them. What a slice recomputes is the same for all of them.
uint slice() { return SLICES > 1 ? p.splits + gl_WorkGroupID.z : 0; }

const uint DOUT = 0, DQUERY = 1, DKEY = 2, DVALUE = 3;

Rows gradient_rows(uvec2 base, uint tensor, uint batch, uint head, uint end) {
    BackwardIn a = backward();
    const uint at = 3 * tensor;
    return rows_with(base, a.x.stride[at], a.x.stride[at + 1], a.x.stride[at + 2], batch, head, end);
}

Rows dout_tile(Work w) {
    return tile_at(gradient_rows(backward().x.dout, DOUT, w.batch, w.head, p.seqlen_q), w.first_row);
}

// Of a query row, in backward().statistics: its lse in base 2; delta = rowsum(dout * out) - dlse; the factor that brings
// its sum of P to 1, once backward_query has found it: a float32 lse is too coarse for that where scores are large.
RowStart statistics_of(Work w, uint row) { return dense_row(backward().x.statistics, 4, w, row); }

// With SAVED, a workgroup's loop is spread over several dispatches, between which its accumulators lie in memory: rows of
// `vecs` vec4, dense over all heads of all batches, `rows` to a head.
bool span_is(uint bit) { return SAVED == 0 || (p.out_seq & bit) != 0; }

uvec2 saved_base(uint head, uint rows, uint first_row, uint vecs) {
    const uvec2 index = address_add(mul_wide(rows, uvec2(head, 0)), uvec2(first_row, 0));
    return address_add(backward().x.saved, mul_wide(16 * vecs, index));
}
