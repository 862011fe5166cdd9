// This file finds the tensors of a backward, and what its passes keep in scratch.
#include "lib/argument_block.glsl"
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer BackwardIn { BackwardArguments x; };

BackwardIn backward() { return BackwardIn(push.arguments); }
#if defined(KEY_VALUE) || defined(SPILLED)
#define LINKS_ADDRESS backward().x.key_links
#else
#define LINKS_ADDRESS backward().x.query_links
#endif

// Tensors by the place of their strides in the argument block.
const uint QUERY = 0, KEY = 1, VALUE = 2, OUT = 3;             // in .forward.stride
const uint DOUT = 0, DQUERY = 1, DKEY = 2, DVALUE = 3;         // in .stride

uvec2 stride_of(uint tensor, uint dimension) { return arguments().x.stride[3 * tensor + dimension]; }
uvec2 gradient_stride(uint tensor, uint dimension) { return backward().x.stride[3 * tensor + dimension]; }

// Gives rows the type of their elements where a product may have operands of several types (lib/operands.glsl).
#ifdef TYPED_ROWS
Rows of_type(Rows t, uint type) {
    t.type = type;
    return t;
}
uint type_of(uint tensor) {
    return tensor == QUERY ? QUERY_TYPE : tensor == KEY ? KEY_TYPE : tensor == VALUE ? VALUE_TYPE : OUT_TYPE;
}
uint type_of_gradient(uint tensor) {
    return tensor == DQUERY ? QUERY_TYPE : tensor == DKEY ? KEY_TYPE : tensor == DVALUE ? VALUE_TYPE : OUT_TYPE;
}
#else
#define of_type(t, type) t
#endif

uvec2 head_address(uvec2 base, uvec2 batch_stride, uvec2 head_stride, uint batch, uint head) {
    return address_add(address_add(base, mul_wide(batch, batch_stride)), mul_wide(head, head_stride));
}

// Rows of the query tile, of query or out; of dout or dquery.
Rows query_tile(uvec2 base, uint tensor, Work w) {
    const uvec2 head = head_address(base, stride_of(tensor, 0), stride_of(tensor, 1), w.batch, w.head);
    return of_type(query_rows(w, head, stride_of(tensor, 2), stride_of(tensor, 1)), type_of(tensor));
}
Rows gradient_tile(uvec2 base, uint tensor, Work w) {
    const uvec2 head = head_address(base, gradient_stride(tensor, 0), gradient_stride(tensor, 1), w.batch, w.head);
    return of_type(query_rows(w, head, gradient_stride(tensor, 2), gradient_stride(tensor, 1)),
                   type_of_gradient(tensor));
}

// Rows of the sequence of keys, of key or value; of dkey or dvalue.
Rows key_tensor_rows(uvec2 base, uint tensor, Work w) {
    const uvec2 head = head_address(base, stride_of(tensor, 0), stride_of(tensor, 1), w.batch, w.head_kv);
    return of_type(key_rows(w, head, stride_of(tensor, 2)), type_of(tensor));
}
Rows key_gradient_rows(uvec2 base, uint tensor, Work w) {
    const uvec2 head = head_address(base, gradient_stride(tensor, 0), gradient_stride(tensor, 1), w.batch, w.head_kv);
    return of_type(key_rows(w, head, gradient_stride(tensor, 2)), type_of_gradient(tensor));
}

Rows dout_tile(Work w) { return gradient_tile(backward().x.dout, DOUT, w); }

// The statistics of a query row: its lse, natural or in base 2 as scores are (scores.glsl); delta = rowsum(dout * out)
// - dlse; the factor that brings its sum of P to 1, once backward_query has found it: a float32 lse is too coarse for
// that where scores are large; 1 if the row sees no key, else 0.
const uint STATISTICS_BYTES = 16;
Rows statistics_rows(Work w) {
    const uvec2 before = mul_wide(query_extent(), uvec2(w.batch * num_heads_q() + w.head, 0));
    const uvec2 head = address_add(backward().x.statistics,
                                   mul_wide(STATISTICS_BYTES, address_add(before, uvec2(w.first_query, 0))));
    return rows_of(head, uvec2(STATISTICS_BYTES, 0), uvec2(0), 1, w.num_queries);
}
RowStart statistics_of(Work w, uint row) { return dense_row(backward().x.statistics, uvec2(0), 4, w, row); }

// Beyond this an lse cannot tell scores apart any more, nor how many it stands for: those that are that near to it are
// one score to the forward too, whose scores are float32.
const float COARSE_LSE = 4e6, LSE_STEPS = 4e-7;
