// Slopes of the distance in tiles that are not finished, in loops with the macro QUICK_TERMS. If all keys of a tile lie
// on one side of its rows, what the term adds is the sum of a number of the key and a number of the row:
//
//   -slope * |p - j| = -slope * |j - a| - slope * |p - a|
//
// where a is the tile's key nearest to the rows. Scores begin as the first one over the scale. It is small near the
// rows, where weights are large, so that q.k loses nothing. The second is taken from the row's offset or lse. The rows
// must stand among their keys: then scores are relative to the key that a row stands at, and row_shift() is 0.
// With a steeper slope, or a negative one, every tile is finished. This is a bound of rounding, not measured: 64 keys
// away from the rows a slope of 8 is rounded by 4e-5.
const float STEEP = 8;
float slope_of_rows;  // natural; of the head that find_slope() was called for
float slope_of_step;  // what scores rise by from key to key, over the scale
bool slope_is_quick = false;

void find_slope(Work w) {
    if (BEGINS_AS_SLOPES) {
        slope_of_rows = slope_of(w, w.first_row);
        slope_of_step = FROM_NATURAL(slope_of_rows) / push.score_scale;
        // By their bits neither NaN nor a negative slope passes. With a scale of 0 the step is infinite or NaN.
        slope_is_quick = floatBitsToUint(slope_of_rows) <= floatBitsToUint(STEEP) &&
                         (floatBitsToUint(slope_of_step) & SIZE_BITS) < floatBitsToUint(1e20);
    }
}

// True if the slope tells the rows of a tile apart by less than 2^8: one tile of keys then sets the offsets of all. It
// was not measured alone.
bool is_gentle() { return slope_is_quick && slope_of_rows * float(TILE_Q) < 5; }

// True if rows from .x to .y all stand among the keys that bounds leave them.
bool stand_among_keys(Work w, uvec2 rows) {
    return position_of(w, rows.x) >= visible_keys(w, rows.x).x && position_of(w, rows.y) < visible_keys(w, rows.y).y;
}

// True if scores of rows from .x to .y and keys from .x to before .y may begin as slopes.
bool slopes_are_quick(Work w, uvec2 rows, uvec2 keys) {
    const bool on_one_side = position_of(w, rows.x) >= int(keys.y) - 1 || position_of(w, rows.y) <= int(keys.x);
    return BEGINS_AS_SLOPES && slope_is_quick && on_one_side && stand_among_keys(w, rows);
}

// Returns the key of such a tile that is nearest to its rows, of which first_row is one.
int nearest_key(Work w, uint first_row, uvec2 keys) {
    return position_of(w, first_row) > int(keys.x) ? int(keys.y) - 1 : int(keys.x);
}

// Returns the rise of scores from key to key of such a tile, over the scale.
float rise_of(int nearest, uvec2 keys) { return nearest == int(keys.x) ? -slope_of_step : slope_of_step; }
