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

// Joins the sink of the row's head with the keys' weights, whose sum is .y relative to the maximum .x.
vec2 with_sink(Work w, uint row, vec2 max_sum) {
    const float sink = sink_of(w, row);
    if (floatBitsToUint(sink) == MINUS_INFINITY) return max_sum;
    const bool sees_none = IS_ZERO(max_sum.y);
    const float last = relative_sink(sink, sees_none ? 0 : row_shift(w, row)), most = max(max_sum.x, last);
    precise const vec2 exponents = EXPONENT(vec2(max_sum.x, last), most);
    const float of_keys = sees_none ? 0 : max_sum.y * EXP2(exponents.x);
    return vec2(most, IS_FINITE(sink) ? of_keys + EXP2(exponents.y) : uintBitsToFloat(NAN_BITS));
}

// Ends a row: returns what its sums over weights have to be multiplied by. A sink that is not finite makes row_sum NaN,
// so that a row without keys is not taken for an empty one.
float end_row(Work w, uint row, float row_max, inout float row_sum) {
    if (!HAS_SINKS || IS_SPLIT) return 1 / row_sum;
    const vec2 all = with_sink(w, row, vec2(row_max, row_sum));
    if (!IS_FINITE(all.y)) row_sum = all.y;
    return EXP2(EXPONENT(row_max, all.x)) / all.y;
}

// Stores the lse or, of a split, what it comes from: of scores near the lowest, their number would vanish in the sum.
// Kernels call it behind end_row().
void store_statistics(Work w, uint row, float row_max, float row_sum) {
    if (IS_SPLIT) {
        const RowStart at = dense_row(push.lse, heads_of_splits_before(w), PART_FLOATS(SHIFTS_ROWS), w, row);
        FloatsOut(at.base).x[at.at] = row_max;
        FloatsOut(at.base).x[at.at + 1] = row_sum;
        if (SHIFTS_ROWS) FloatsOut(at.base).x[at.at + 2] = row_shift(w, row);
    } else if (push.lse != uvec2(0)) {
        const RowStart at = dense_row(push.lse, uvec2(0), 1, w, row);
        const bool sees_none = IS_ZERO(row_sum);
        vec2 all = vec2(row_max, row_sum);
        if (HAS_SINKS) all = with_sink(w, row, all);
        float lse = lse_of(all.x, all.y);
        if (SHIFTS_ROWS && !sees_none) lse += row_shift(w, row);
        // The lse is near a sink that is the largest score, and keeps its digits without the shift.
        if (HAS_SINKS && IS_FINITE(all.y) && all.x > row_max)
            lse = clamp(sink_of(w, row), -HIGHEST_BIAS, HIGHEST_BIAS) + LN_2 * log2(all.y);
        if (HAS_SINKS && sees_none) lse = sink_of(w, row);
        FloatsOut(at.base).x[at.at] = lse;
    }
}
