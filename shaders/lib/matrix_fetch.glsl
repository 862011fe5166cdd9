// All invocations of a kernel on matrix units move STAGED_ROWS rows of a tensor from global memory to the pool. They go
// by way of registers, so that the loads are under way while something is computed. Item t of an invocation is vec4
// number thread + t * THREADS of the rows, which have `vecs` vec4 each. lib/matrix_staging.glsl and
// lib/backward_matrix_staging.glsl name the tensors.

// If a round is a whole number of rows, the column is the same in each round: one division serves all.
#define ROW_OF(item, vecs) \
    (THREADS % (vecs) == 0 ? thread / (vecs) + (item) * (THREADS / (vecs)) : (thread + (item) * THREADS) / (vecs))
#define COLUMN_OF(item, vecs) (THREADS % (vecs) == 0 ? thread % (vecs) : (thread + (item) * THREADS) % (vecs))

#define FETCH(fetched, items, vecs, first_dim, row_start_of, extent, whole) \
    FETCH_BY(fetch8, fetched, items, vecs, first_dim, row_start_of, extent, whole)
// `load8` is fetch8 of an operand.
#define FETCH_BY(load8, fetched, items, vecs, first_dim, row_start_of, extent, whole) \
    FOR_EACH(t, items) { \
        const uint row = ROW_OF(t, vecs), d = (first_dim) + COLUMN_OF(t, vecs) * 8; \
        if (STAGED_ROWS * (vecs) % THREADS == 0 || row < STAGED_ROWS) \
            fetched[t] = load8(row_start_of, d, extent, whole); \
    }
// FETCH for a tile whose rows all exist and lie within 32-bit offsets: no row is clamped. With the widest loads an
// index counts vec4, and one index serves all rounds. FETCH_BEHIND does so for the tile `behind` rows behind this one.
#define FETCH_INNER(fetched, tile, items, vecs, first_dim, extent, whole) \
    FETCH_INNER_ROWS(fetched, tile, thread / (vecs), tile, items, vecs, first_dim, extent, whole)
#define FETCH_BEHIND(fetched, tile, behind, items, vecs, first_dim, extent, whole) \
    FETCH_INNER_ROWS(fetched, tile, ((behind) + thread / (vecs)), next_whole_tile(tile, behind), items, vecs, \
                     first_dim, extent, whole)
// `first_row` is the invocation's first row of `tile`, and `moved` is the tile that is fetched.
#define FETCH_INNER_ROWS(fetched, tile, first_row, moved, items, vecs, first_dim, extent, whole) \
    if (LOAD_BYTES == 16 && whole && THREADS % (vecs) == 0) { \
        const uint step = tile.stride.x / 16; \
        const uint at = first_row * step + ((first_dim) / 8 + thread % (vecs)) * VECS_OF_8; \
        FOR_EACH(t, items) \
            if (STAGED_ROWS * (vecs) % THREADS == 0 || thread / (vecs) + t * (THREADS / (vecs)) < STAGED_ROWS) \
                fetched[t] = fetch_whole8(tile.base, at + t * (THREADS / (vecs) * step)); \
    } else { \
        FETCH(fetched, items, vecs, first_dim, row_of_whole_tile(moved, row, KEY_VALUE_BYTES), extent, whole) \
    }
#define STORE(at, stride, items, vecs, value) \
    FOR_EACH(t, items) { \
        const uint row = ROW_OF(t, vecs); \
        if (STAGED_ROWS * (vecs) % THREADS == 0 || row < STAGED_ROWS) \
            PUT8((at) + ROW_AT(row, t, vecs) * (stride) + COLUMN_OF(t, vecs) * UNIT, value) \
    }
