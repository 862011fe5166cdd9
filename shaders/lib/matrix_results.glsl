// The matrix kernel's results. Statistics of rows are stored by the invocations that have them. The output goes
// through the subgroup's share of the pool, in as few equal pieces as fit; an item is 8 elements of a row.
const uint OUT_UNIT = OUT_ROUNDED ? 8 : 4;  // elements of a vec4 of the pool
const uint OUT_FIT = (SHARE / M - 1) * OUT_UNIT / N;
const uint OUT_PIECES = MATRIX_STEPS(OUT_TILES, OUT_FIT), OUT_PIECE = MATRIX_STEPS(OUT_TILES, OUT_PIECES);
const uint OUT_VECS = OUT_PIECE * N / 8, OUT_STRIDE = (OUT_PIECE * N / OUT_UNIT | 1) * UNIT;
const uint OUT_ITEMS = MATRIX_STEPS(M * OUT_VECS, SUBGROUP_SIZE);

void store_floats8(RowStart at, uint d, vec4 low, vec4 high, bool whole) {
    if (whole) {
        store_whole8(at.base, (at.at + d) / ELEMENTS_OF_VEC, low, high);
    } else {
        store_result4(at, d, low);
        store_result4(at, d + 4, high);
    }
}

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

// Divides the sums of a row block by those of the weights; where a row has seen nothing the result is 0. Finite
// results beyond the range of out are held to it, as WITHIN_OUT4 does: infinity and NaN times 2e-38 stay what they
// are, and a finite number times 2e-38 changes nothing in the sum. Parts are brought into the range by the combine.
// Looking for the largest element first takes 0.5 to 1.1 % of the time at N = 512, and no more than noise at 4,096
// (H200, `vkattn bench`, D64 and D128); a clamp of every element takes as much.
void scale_out(uint r, float scale[SLOTS]) {
    float largest = 0;
    FOR_EACH(n, OUT_TILES)
        FOR_EACH(e, ELEMENTS) {
            const uint x = r * OUT_TILES + n;
            const float mean = acc[x][e] * scale[slot(e)];
            acc[x][e] = IS_ZERO(row_sum[r][slot(e)]) ? 0 : mean;
            largest = max(largest, abs(acc[x][e]));
        }
    const bool may_pass = !IS_SPLIT && STORED_OUT_TYPE != TYPE_FLOAT32;
    if (may_pass && subgroupAny(largest > LARGEST_OUT))
        FOR_EACH(n, OUT_TILES)
            FOR_EACH(e, ELEMENTS) {
                const float mean = acc[r * OUT_TILES + n][e];
                acc[r * OUT_TILES + n][e] = fma(mean, 2e-38, clamp(mean, -LARGEST_OUT, LARGEST_OUT));
            }
}

void store_block(TileCursor c, Rows o, uint r, ACCUMULATOR places) {
    const uint at = subgroup * SHARE * UNIT;
    float scale[SLOTS];
    FOR_EACH(x, SLOTS) scale[x] = 1 / row_sum[r][x];
    FOR_EACH(e, ELEMENTS)
        if (!KNOWN || step_column(e) == 0) {
            const uvec2 place = place_of(places, e);
            const uint row_of_tile = subgroup_row + r * M + place.x, row = c.w.first_row + row_of_tile;
            if (ISOLATES_ROWS && is_spoiled(row_of_tile)) scale[slot(e)] = uintBitsToFloat(NAN_BITS);
            if (place.y == 0 && row <= c.w.last_row && c.first_dim == 0)
                store_statistics(c.w, row, row_offset[r][slot(e)], row_sum[r][slot(e)]);
        }
    scale_out(r, scale);
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

void store_rows(TileCursor c) {
    const Rows o = query_tile(push.out_rows, OUT, c.w);
    const ACCUMULATOR places = read_places();
    FOR_EACH(r, ROW_BLOCKS) sum_along_rows(row_sum[r]);
    barrier();  // from the pool's map to equal shares of it
    FOR_EACH(r, ROW_BLOCKS) store_block(c, o, r, places);
}

