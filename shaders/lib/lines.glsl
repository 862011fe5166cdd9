// This file says what the tiles of lib/tiles.glsl consist of in shared memory, and how they are multiplied. They
// consist of lines: a line is one head dim of Q and K, one key of P and V or, in the sums over query rows of
// backward_key_value.comp, one row of P and dS and of dout and query, in float32. With the macro DOT a line is two of
// these, side by side in 16 bits, and products are dot products of pairs. Then there are half as many lines.
//
// Without dot products, lines of 16 bits that are widened for each float32 product are no gain: docs/tuning.md has the
// clocks and instructions a multiply-add on five GPUs.
#ifdef DOT
#include "lib/dot2.glsl"

#define LINE1 uint  // a place of a line, and four of them
#define LINE4 uvec4
#define line4_at(place) floatBitsToUint(pool[place])
#define stored_line4(x) uintBitsToFloat(x)
#define ADD_LINE(left, right, sum) sum = dot2(left, right, sum)
#define weights_of_line(p, line) pair_of_weights(p[2 * (line)], p[2 * (line) + 1])
// Four keys of a line of query rows: of(r) are those of row r, and `row` is the line's first.
#define weights_of_rows(of, row) \
    uvec4(pair_of_weights(of(row).x, of((row) + 1).x), pair_of_weights(of(row).y, of((row) + 1).y), \
          pair_of_weights(of(row).z, of((row) + 1).z), pair_of_weights(of(row).w, of((row) + 1).w))

// A line of V is a pair of keys. A key is dropped from it where its weight is 0 in all rows, or in the row at hand.
#define NOTHING_DROPPED uint kept = 0xffffffff;
#define DROP_FROM(right) right &= kept;
#define DROP_WHERE_ALL_ARE_HIDDEN \
    uint weights = 0; \
    [[unroll]] for (uint x = 0; x < ROWS / 4; x++) weights |= left[x].x | left[x].y | left[x].z | left[x].w; \
    kept = halves_of(weights);
#define ADD_SEEN_LINE(left, right, sum) sum = dot2(left, right & halves_of(left), sum)

// Four head dims of a line of V, as stored: those of the first key, then those of the second. Query and dout have
// query rows for keys.
#define V_ITEM uvec4
#define V_ITEM_OF(first_key, load) uvec4(load(first_key), load(first_key + 1))
#define v_line4(item) stored_line4(pairs_of_rows(item.xy, item.zw))
#define ZERO_ROWS_OF(item, first, is_zero) \
    if (is_zero(first)) item.xy = uvec2(0); \
    if (is_zero(first + 1)) item.zw = uvec2(0);
#else
#define LINE1 float
#define LINE4 vec4
#define line4_at(place) pool[place]
#define stored_line4(x) (x)
#define ADD_LINE(left, right, sum) sum = fma(vec4(left), right, sum)
#define weights_of_line(p, line) p[line]
#define weights_of_rows(of, row) of(row)

#define NOTHING_DROPPED bool drop = false;
#define DROP_FROM(right) if (drop) right = vec4(0);
#define DROP_WHERE_ALL_ARE_HIDDEN \
    drop = true; \
    [[unroll]] for (uint x = 0; x < ROWS / 4; x++) drop = drop && left[x] == vec4(0);
#define ADD_SEEN_LINE(left, right, sum) if (floatBitsToUint(left) != 0) sum = fma(vec4(left), right, sum)

#define V_ITEM KEY_VALUE_STORED4
#define V_ITEM_OF(key, load) load(key)
#define v_line4(item) value_floats(item)
#define ZERO_ROWS_OF(item, first, is_zero) \
    if (is_zero(first)) item = KEY_VALUE_STORED4(0);
#endif
