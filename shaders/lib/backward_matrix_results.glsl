// The results of the backward on matrix units: sums of gradients to the caller's tensors or, where a loop is cut, to
// scratch, from which the next dispatch takes them.
const uint OUT_UNIT = OUT_ROUNDED ? 8 : 4;  // elements of a vec4 of the pool
const uint PIECE_FIT = (SHARE / M - 1) * OUT_UNIT / N;
#define PIECE_OF(tiles) MATRIX_STEPS(tiles, MATRIX_STEPS(tiles, PIECE_FIT))

void store_from_pool(RowStart to, uint d, uint extent, uint from, bool zero) {
    const bool whole = LOAD_BYTES == 16 && d + 8 <= extent;
#if defined(F16) || defined(BF16)
    if (OUT_ROUNDED) {
        const uvec4 eight = zero ? uvec4(0) : GET8(from);
        if (whole) {
            store_whole8(to.base, (to.at + d) / ELEMENTS_OF_VEC, eight);
        } else {
            store_query4(to, d, extent, floats_of(QUERY_TYPE, eight.xy));
            store_query4(to, d + 4, extent, floats_of(QUERY_TYPE, eight.zw));
        }
        return;
    }
#endif
    const vec4 low = zero ? vec4(0) : uintBitsToFloat(GET8(from));
    const vec4 high = zero ? vec4(0) : uintBitsToFloat(GET8(from + UNIT));
    if (whole) {
        store_whole8(to.base, (to.at + d) / ELEMENTS_OF_VEC, low, high);
    } else {
        store_query4(to, d, extent, low);
        store_query4(to, d + 4, extent, high);
    }
}

// A kernel may have another expression for the invocation's number in the subgroup.
#ifndef LANE_OF_STORES
#define LANE_OF_STORES lane
#endif

// Stores block r of `sum`, `tiles` matrices wide, to rows of `t` from t.first on, which exist up to `last`, through the
// subgroup's share of the pool in as few equal pieces as fit. `is_zero` is an expression of `row`.
#define STORE_SUM(sum, tiles, r, t, last, extent, is_zero) { \
    const uint most = PIECE_OF(tiles), vecs = most * N / 8, stride = IN_POOL(most * N / OUT_UNIT | 1), at = share; \
    FOR_EACH(piece, MATRIX_STEPS(tiles, most)) { \
        FOR_EACH(n, tiles) \
            if (n >= piece * most && n < (piece + 1) * most) { \
                const uint to = at + IN_POOL((n - piece * most) * N / OUT_UNIT); \
                if (OUT_ROUNDED) put_rounded(sum[(r) * (tiles) + n], to, stride); \
                else coopMatStore(sum[(r) * (tiles) + n], pool, to, stride, OWN_ORDER); \
            } \
        subgroupBarrier(); \
        FOR_EACH(item, MATRIX_STEPS(M * vecs, SUBGROUP_SIZE)) { \
            const uint i = item * SUBGROUP_SIZE + LANE_OF_STORES; \
            const uint row = t.first + subgroup_row + (r) * M + i / vecs, d = piece * most * N + i % vecs * 8; \
            const uint dim = slice() * (tiles) * N + d; \
            if (i < M * vecs && row <= (last) && d < (tiles) * N && dim < (extent)) \
                store_from_pool(row_start(t, row, QUERY_BYTES), dim, extent, \
                                at + i / vecs * stride + IN_POOL(i % vecs * (8 / OUT_UNIT)), is_zero); \
        } \
        subgroupBarrier(); \
    } \
}

// Returns the address at which this invocation keeps its `count` numbers between dispatches, in workgroup `tile` of a
// head's `tiles`.
uvec2 kept_base(uint head, uint tile, uint tiles, uint count) {
    const uvec2 workgroup = address_add(mul_wide(head, tiles), uvec2(tile, 0));
    const uvec2 with_slice = address_add(mul_wide(SLICES, workgroup), uvec2(slice(), 0));
    return address_add(backward().x.accumulators, mul_wide(count * THREADS * 4, with_slice));
}
#define KEPT_AT(i) ((i) * THREADS + thread)
#define LOAD_KEPT(sums, first, count) \
    FOR_EACH(n, count) FOR_EACH(e, ELEMENTS) sums[n][e] = FloatsIn(kept).x[KEPT_AT((first) + n * ELEMENTS + e)];
#define STORE_KEPT(sums, first, count) \
    FOR_EACH(n, count) FOR_EACH(e, ELEMENTS) FloatsOut(kept).x[KEPT_AT((first) + n * ELEMENTS + e)] = sums[n][e];
