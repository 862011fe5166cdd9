// This file has what scores of the matrix kernel begin as, and what is added to them behind the product:
// lib/quick_slopes.glsl.
#ifdef QUICK_TERMS
float begin_rise, begin_first;       // from key to key; for the invocation's first key of the tile
float row_lacks[ROW_BLOCKS][SLOTS];  // what the tile's scores lack, in their base

// The loop calls this for each tile. With `quick` its scores begin as slopes.
void begin_tile(Work w, uint first_key, bool quick) {
    if (BEGINS_AS_SLOPES) {
        const uvec2 keys = keys_from(first_key);
        const int nearest = nearest_key(w, min(w.first_row + subgroup_row, w.last_row), keys);
        begin_rise = quick ? rise_of(nearest, keys) : 0;
        begin_first = begin_rise * float(int(first_key + place_column(0)) - nearest);
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(e, ELEMENTS) {
                const int distance = position_of(w, w.first_row + subgroup_row + r * M + place_row(e)) - nearest;
                row_lacks[r][slot(e)] = quick ? FROM_NATURAL(slope_of_rows * -float(abs(distance))) : 0;
            }
    }
}

void begin_scores() {
    begin_as_bias();
    if (BEGINS_AS_SLOPES)
        FOR_EACH(n, KEY_TILES)
            FOR_EACH(e, ELEMENTS) {
                const float begun = fma(begin_rise, float(n * N + step_column(e)), begin_first);
                FOR_EACH(r, ROW_BLOCKS) scores[r * KEY_TILES + n][e] = begun;
            }
}

// This is taken from the tile's scores as they are.
float tile_offset[ROW_BLOCKS][SLOTS];
void find_tile_offsets() {
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(s, SLOTS) tile_offset[r][s] = row_offset[r][s] - (BEGINS_AS_SLOPES ? row_lacks[r][s] : 0);
}
// Finishes a tile as finished() does, with fewer instructions: the slope is quick, the subgroup's rows stand among
// their keys, and there are no other terms. A score that is not finite shows in the sums, as in tiles that begin as
// slopes.
void finish_near(Work w, uint first_key) {
    const float slope = FROM_NATURAL(slope_of_rows);
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(e, ELEMENTS) {
            const uint row = min(w.first_row + subgroup_row + r * M + place_row(e), w.last_row);
            const int column = int(place_column(e));
            const ivec2 seen = visible_keys(w, row) - int(first_key) - column;
            const float position = float(position_of(w, row) - int(first_key) - column);
            FOR_EACH(n, KEY_TILES) {
                precise const float score = scores[r * KEY_TILES + n][e] * push.score_scale;
                precise const float sloped = score - slope * abs(position - float(n * N));
                const bool weighs = floatBitsToUint(sloped) != MINUS_INFINITY;
                const bool hidden = int(n * N) < seen.x || int(n * N) >= seen.y || !weighs;
                const float visible = sloped < -HIGHEST_SCORE ? -HIGHEST_SCORE : sloped;  // NaN stays
                scores[r * KEY_TILES + n][e] = hidden ? HIDDEN : visible;
            }
        }
}
void add_lacks(uint r, inout float most[SLOTS]) {
    if (BEGINS_AS_SLOPES) FOR_EACH(s, SLOTS) most[s] += row_lacks[r][s];
}
#else
void begin_tile(Work w, uint first_key, bool quick) {}
#define begin_scores begin_as_bias
#define tile_offset row_offset
void find_tile_offsets() {}
void add_lacks(uint r, float most[SLOTS]) {}
#endif
