// This file has what scores of a plain tile or block begin as, and what is added to them behind the product:
// lib/quick_slopes.glsl.
#ifdef QUICK_TERMS
float begin_rise;  // from key to key
#ifdef KEY_VALUE   // the keys are held: what scores begin as stays the same, and walked rows lack something
float held_begins[ROW_BLOCKS][SLOTS];
float lacks_rise, lacks_first;  // from row to row; for the invocation's first row of the tile
#else
float begin_first;              // for the invocation's first key of the tile
float row_lacks[ROW_BLOCKS][SLOTS];
#endif

// begin_rows() calls this for each plain tile, and for each block of another. If they are plain, their rows from .x to
// .y lie on one side of their keys, from .x to before .y. walked_tile and own_held are the first rows of the walked
// tile and of those that the subgroup holds.
void begin_tile(Work w, bool plain, uvec2 rows, uvec2 keys, uint walked_tile, uint own_held) {
    if (BEGINS_AS_SLOPES) {
        const int nearest = nearest_key(w, rows.x, keys);
        begin_rise = plain ? rise_of(nearest, keys) : 0;
#ifdef KEY_VALUE
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS)
                held_begins[r][slot(e)] = begin_rise * float(int(own_held + r * M + place_row(e)) - nearest);
        const float slope = FROM_NATURAL(slope_of_rows);
        lacks_rise = nearest == int(keys.x) ? slope : -slope;
        lacks_first = lacks_rise * float(position_of(w, walked_tile + place_column(0)) - nearest);
#else
        begin_first = begin_rise * float(int(walked_tile + place_column(0)) - nearest);
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const int distance = position_of(w, own_held + r * M + place_row(e)) - nearest;
                row_lacks[r][slot(e)] = FROM_NATURAL(slope_of_rows * -float(abs(distance)));
            }
#endif
    }
}

#define WALKED_STEP(block, n, e) float((block) * BLOCK + (n) * N + step_column(e))
#ifdef KEY_VALUE
#define BEGUN(r, block, n, e) held_begins[r][slot(e)]
#else
#define BEGUN(r, block, n, e) fma(begin_rise, WALKED_STEP(block, n, e), begin_first)
#endif
void begin_scores(uint block) {
    FOR_EACH(x, ROW_BLOCKS * BLOCK_TILES) scores[x] = ZEROS;
    if (BEGINS_AS_SLOPES)
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(n, BLOCK_TILES)
                FOR_EACH(e, ELEMENTS) scores[r * BLOCK_TILES + n][e] = BEGUN(r, block, n, e);
}
#ifdef KEY_VALUE
void add_lacks(inout ACCUMULATOR x, uint block, uint n) {
    if (BEGINS_AS_SLOPES) FOR_EACH(e, ELEMENTS) x[e] += fma(lacks_rise, WALKED_STEP(block, n, e), lacks_first);
}
#define LACKS(r, e) 0
#else
#define LACKS(r, e) (BEGINS_AS_SLOPES ? row_lacks[r][slot(e)] : 0)
#endif
#else
void begin_tile(Work w, bool plain, uvec2 rows, uvec2 keys, uint walked_tile, uint own_held) {}
void begin_scores(uint block) { FOR_EACH(x, ROW_BLOCKS * BLOCK_TILES) scores[x] = ZEROS; }
#define LACKS(r, e) 0
#endif
