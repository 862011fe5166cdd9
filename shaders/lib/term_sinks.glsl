// Attention sinks: a final score of each query head, which joins the sum of a row's weights and has no value (Xiao et
// al., arXiv:2309.17453; gpt-oss learns them). A row ends with it. Whoever stores the row's lse counts it: a forward
// kernel for rows whose keys are not split, combine.comp otherwise.
//
// A sink of minus infinity is none; one that is NaN or plus infinity makes the rows of its head NaN.
float sink_of(Work w, uint row) {
    // A driver may load the sink of the head that a loop over heads ends at: it must be there.
    return FloatsIn(arguments().x.sinks).x[min(w.head + head_of(row), num_heads_q() - 1)];
}

// A sink as scores of the row are: in their base, and relative to the row's shift. It is rounded before anything is
// subtracted from it, as the lse is. NVIDIA's compiler would fuse both, and the weight of a sink of 6e37 would be
// infinite where it is 1 (H200).
float relative_sink(float sink, float shift) {
    precise const float relative = clamp(sink - shift, -HIGHEST_BIAS, HIGHEST_BIAS);
    precise const float last = FROM_NATURAL(relative);
    return last;
}

// The sink's weight in a row that sees some key, whose lse is as the backward's statistics have it.
float sink_weight(Work w, uint row, float row_lse) {
    if (!HAS_SINKS) return 0;
    const float sink = sink_of(w, row);
    precise const float exponent = EXPONENT(relative_sink(sink, row_shift(w, row)), row_lse);
    const float weight = EXP2(exponent);
    return floatBitsToUint(sink) == MINUS_INFINITY ? 0 : weight;
}
