// The matrix kernel's results. Statistics of rows are stored by the invocations that have them. The output goes
// through the subgroup's share of the pool, in as few equal pieces as fit; an item is 8 elements of a row.
const uint OUT_UNIT = OUT_ROUNDED ? 8 : 4;  // elements of a vec4 of the pool
const uint OUT_FIT = (SHARE / M - 1) * OUT_UNIT / N;
const uint OUT_PIECES = MATRIX_STEPS(OUT_TILES, OUT_FIT), OUT_PIECE = MATRIX_STEPS(OUT_TILES, OUT_PIECES);
const uint OUT_VECS = OUT_PIECE * N / 8, OUT_STRIDE = (OUT_PIECE * N / OUT_UNIT | 1) * UNIT;
const uint OUT_ITEMS = MATRIX_STEPS(M * OUT_VECS, SUBGROUP_SIZE);

#ifdef MIXED
void store_floats8(RowStart at, uint d, vec4 low, vec4 high, bool whole) {
    store_result4(at, d, HAS_EVEN_FIRST(VALUE_TYPE) ? low.xzyw : low);
    store_result4(at, d + 4, HAS_EVEN_FIRST(VALUE_TYPE) ? high.xzyw : high);
}
#else
void store_floats8(RowStart at, uint d, vec4 low, vec4 high, bool whole) {
    if (whole) {
        store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, low, high);
    } else {
        store_result4(at, d, low);
        store_result4(at, d + 4, high);
    }
}
#endif

void store_result8(RowStart at, uint d, uint from) {
    const bool whole = !IS_SPLIT && STORED_OUT_TYPE == QUERY_TYPE && LOAD_BYTES == 16 && d + 8 <= HEAD_DIM_V;
#if defined(F16) || defined(BF16)
    if (OUT_ROUNDED && whole) store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, GET8(from));
    else if (OUT_ROUNDED)
        store_floats8(at, d, floats_of(QUERY_TYPE, GET8(from).xy), floats_of(QUERY_TYPE, GET8(from).zw), false);
    else
#endif
        store_floats8(at, d, uintBitsToFloat(GET8(from)), uintBitsToFloat(GET8(from + UNIT)), whole);
}

void store_piece(TileCursor c, Rows o, uint r, uint first_tile, uint at) {
    FOR_EACH(t, OUT_ITEMS) {
        const uint i = t * SUBGROUP_SIZE + lane, row = c.w.first_row + subgroup_row + r * M + i / OUT_VECS;
        const uint d = first_tile * N + i % OUT_VECS * 8;
        // The last piece may have fewer tiles than the others. Behind them lies nothing of this slice.
        if ((M * OUT_VECS % SUBGROUP_SIZE == 0 || i < M * OUT_VECS) && row <= c.w.last_row && d < OUT_SPAN)
            store_result8(out_row(c.w, o, row), c.first_dim + d,
                          at + i / OUT_VECS * OUT_STRIDE + i % OUT_VECS * (8 / OUT_UNIT * UNIT));
    }
}

// A sum of squares has reached this, as bits, if one of its numbers passes the range: 4.2e9 or, for bfloat16, infinity.
const uint LARGE_SQUARES = STORED_OUT_TYPE == TYPE_FLOAT16 ? 0x4f7a56eau : EXPONENT_BITS;

// Divides the sums of a row block by those of the weights; where a row has seen nothing the result is 0. Returns true
// if a result of the invocation may pass the range of out.
bool scale_out(uint r, float scale[SLOTS]) {
    float squares[ELEMENTS];  // several, because each is a chain of instructions
    FOR_EACH(e, ELEMENTS) squares[e] = 0;
    FOR_EACH(n, OUT_TILES)
        FOR_EACH(e, ELEMENTS) {
            const uint x = r * OUT_TILES + n;
            const float mean = acc[x][e] * scale[slot(e)];
            acc[x][e] = IS_ZERO(row_sum[r][slot(e)]) ? 0 : mean;
            squares[e] = fma(acc[x][e], acc[x][e], squares[e]);
        }
    FOR_EACH(e, ELEMENTS) if (e > 0) squares[0] += squares[e];
    return !IS_SPLIT && STORED_OUT_TYPE != TYPE_FLOAT32 && floatBitsToUint(squares[0]) >= LARGE_SQUARES;
}

// Holds finite results to the range of out, as WITHIN_OUT4 does: infinity and NaN times 2e-38 stay what they are, and a
// finite number times 2e-38 changes nothing in the sum. Parts are brought into the range by the combine.
void hold_to_range(uint r) {
    FOR_EACH(n, OUT_TILES)
        FOR_EACH(e, ELEMENTS) {
            const float mean = acc[r * OUT_TILES + n][e];
            acc[r * OUT_TILES + n][e] = fma(mean, 2e-38, clamp(mean, -LARGEST_OUT, LARGEST_OUT));
        }
}

void store_out(TileCursor c, Rows o, uint r) {
    const uint at = subgroup * SHARE * UNIT;
    FOR_EACH(piece, OUT_PIECES) {
        const uint first = piece * OUT_PIECE;
        FOR_EACH(n, OUT_TILES)
            if (n >= first && n < first + OUT_PIECE) {
                const uint to = at + (n - first) * N / OUT_UNIT * UNIT;
                if (OUT_ROUNDED) put_rounded(acc[r * OUT_TILES + n], to, OUT_STRIDE);
                else coopMatStore(acc[r * OUT_TILES + n], pool, to, OUT_STRIDE, OWN_ORDER);
            }
        subgroupBarrier();
        store_piece(c, o, r, first, at);
        subgroupBarrier();
    }
}

// Returns what scale_out() does.
bool end_block(TileCursor c, uint r, ACCUMULATOR places) {
    float scale[SLOTS];
    FOR_EACH(x, SLOTS) scale[x] = 1 / row_sum[r][x];
    FOR_EACH(e, ELEMENTS)
        if (!KNOWN || step_column(e) == 0) {
            const uvec2 place = place_of(places, e);
            const uint row_of_tile = subgroup_row + r * M + place.x, row = c.w.first_row + row_of_tile;
            if (HAS_SINKS)
                scale[slot(e)] = end_row(c.w, min(row, c.w.last_row), row_offset[r][slot(e)], row_sum[r][slot(e)]);
            if (ISOLATES_ROWS && is_spoiled(row_of_tile)) scale[slot(e)] = uintBitsToFloat(NAN_BITS);
            if (place.y == 0 && row <= c.w.last_row && c.first_dim == 0)
                store_statistics(c.w, row, row_offset[r][slot(e)], row_sum[r][slot(e)]);
        }
    return scale_out(r, scale);
}

void store_rows(TileCursor c) {
    const Rows o = query_tile(push.out_rows, OUT, c.w);
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS) sum_along_rows(row_sum[r]);
    barrier();  // from the pool's map to equal shares of it
#ifdef ROLLED  // llvmpipe takes a subgroup's barrier for the workgroup's, so that all must reach as many
    FOR_EACH(r, ROW_BLOCKS) {
        if (end_block(c, r, places)) hold_to_range(r);
        store_out(c, o, r);
    }
#else
    // All results are stored first and, where one may pass the range, held to it and stored again: no store waits for
    // the test (H200, D64 and D128, N 512: 0.2 to 0.5 % less time than with a test for each row block).
    bool passes = false;
    FOR_EACH(r, ROW_BLOCKS) {
        if (end_block(c, r, places)) passes = true;
        store_out(c, o, r);
    }
    if (subgroupAny(passes))
        FOR_EACH(r, ROW_BLOCKS) {
            hold_to_range(r);
            store_out(c, o, r);
        }
#endif
}

