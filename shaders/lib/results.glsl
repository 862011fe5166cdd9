// Stores a forward kernel's results: out and lse, or those of one split, which combine.comp merges. The forward
// kernels call it once for each row at their end. It assumes push constants as in interface/forward_push.def.

// A split's results are float32 without strides: (split, batch, num_heads_q, seqlen_q) of elements.
uvec2 heads_of_splits_before(Work w) { return IS_SPLIT ? mul_wide(w.split, heads_of_all_batches()) : uvec2(0); }

RowStart out_row(Work w, Rows out_rows, uint row) {
    return IS_SPLIT ? dense_row(push.out_rows, heads_of_splits_before(w), HEAD_DIM_V, w, row)
                    : row_start(out_rows, row, OUT_BYTES);
}

// Rows of a part are aligned for four elements if they are whole vec4, whatever the caller's rows are aligned to.
void store_result4(RowStart at, uint d, vec4 x) {
    if (!IS_SPLIT) {
        store_out4(at, d, HEAD_DIM_V, x);
    } else if (HEAD_DIM_V % 4 == 0) {
        if (d < HEAD_DIM_V) store_four_float32(at, at.at + d, x);
    } else {
        [[unroll]] for (uint i = 0; i < 4; i++)
            if (d + i < HEAD_DIM_V) store_one_float32(at, at.at + d + i, x[i]);
    }
}

// Stores the lse or, of a split, what it comes from: of scores near the lowest, their number would vanish in the sum.
void store_statistics(Work w, uint row, float row_max, float row_sum) {
    if (IS_SPLIT) {
        const RowStart at = dense_row(push.lse, heads_of_splits_before(w), PART_FLOATS(SHIFTS_ROWS), w, row);
        FloatsOut(at.base).x[at.at] = row_max;
        FloatsOut(at.base).x[at.at + 1] = row_sum;
        if (SHIFTS_ROWS) FloatsOut(at.base).x[at.at + 2] = row_shift(w, row);
    } else if (push.lse != uvec2(0)) {
        const RowStart at = dense_row(push.lse, uvec2(0), 1, w, row);
        const float lse = lse_of(row_max, row_sum);
        const bool sees_none = floatBitsToUint(lse) == MINUS_INFINITY;
        FloatsOut(at.base).x[at.at] = SHIFTS_ROWS && !sees_none ? lse + row_shift(w, row) : lse;
    }
}
