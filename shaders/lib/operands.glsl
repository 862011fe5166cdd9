// How each operand is stored: its type, its loads, its stores. All that knows of an operand's type is here, in
// lib/matrix_operands.glsl and, of a backward's tensors, in lib/backward_problem.glsl. There are three operands in the
// tiles of a kernel:
//   query      query, dquery         the type that the module was compiled for
//   key_value  key, value, dkey, dvalue   likewise
//   out        out                   the constant OUT_TYPE where the module has 16-bit types, else float32
// dout has the type of out, which is query's in modules for one type.
// In modules with the macro MIXED specialization constants say how query, key and value are stored. The mask's type is
// MASK_TYPE (lib/mask.glsl), in the same way. Registers hold elements of query, key and value as they are stored
// (QUERY_STORED4, KEY_VALUE_STORED4: four of them): were they converted at once, an invocation would wait for loads
// that it issues ahead (f16 at D128 on an H200: 32.3 instead of 39.1 TFLOP/s).
//
// The backward's kernels multiply operands of other types in each product. Their MIXED modules have TYPED_ROWS: Rows
// know the type of their elements, which are converted as they are loaded. Such a backward takes 1.3 times as long as
// float32's (H200, D128, N 2,048: 8.72 instead of 6.74 ms).
#include "lib/storage.glsl"

#ifdef MIXED
#define QUERY_TYPE STORED_QUERY_TYPE
#define KEY_TYPE STORED_KEY_TYPE
#define VALUE_TYPE STORED_VALUE_TYPE
#elif defined(F16)
#define QUERY_TYPE TYPE_FLOAT16
#elif defined(BF16)
#define QUERY_TYPE TYPE_BFLOAT16
#else
#define QUERY_TYPE TYPE_FLOAT32
#endif
#ifndef MIXED
#define KEY_VALUE_TYPE QUERY_TYPE
#define KEY_TYPE QUERY_TYPE
#define VALUE_TYPE QUERY_TYPE
#endif

// The bytes of the unit of RowStart::at: an element, or for blocks the 16-bit numbers that they consist of.
#define BYTES_OF(type) ((type) == TYPE_FLOAT32 ? 4 : 2)
const uint QUERY_BYTES = BYTES_OF(QUERY_TYPE), KEY_BYTES = BYTES_OF(KEY_TYPE), VALUE_BYTES = BYTES_OF(VALUE_TYPE);

// load_NAME4, NAME_floats and store_NAME4 of each operand. Where the type is the module's they are macros, so that
// calls are not nested too deep (kernels.def).
#ifdef TYPED_ROWS
struct StoredRow {
    RowStart start;
    uint type;
};
// Both halves are one load to compilers. A function in between would nest calls too deep (kernels.def).
#define FOUR_AS_FLOATS(row, at) \
    vec4(floats_of(of.type, load_four_16bit(row, at).x), floats_of(of.type, load_four_16bit(row, at).y))
#define ONE_AS_FLOAT(row, at) float_of(of.type, load_one_16bit(row, at))
vec4 load_stored4(StoredRow of, uint d, uint extent, bool inside) {
    const RowStart row = of.start;
    if (of.type == TYPE_FLOAT32) {
        LOAD4(vec4, 4, load_four_float32, load_one_float32, vec4)
    }
    LOAD4(vec4, 2, FOUR_AS_FLOATS, ONE_AS_FLOAT, vec4)
}
void store_stored4(StoredRow of, uint d, uint extent, vec4 x) {
    const RowStart row = of.start;
    if (of.type == TYPE_FLOAT32) {
        STORE4(4, store_four_float32(row, row.at + d, x), store_one_float32(row, row.at + d + i, x[i]))
    } else {
        STORE4(2, store_four_16bit(row, row.at + d, bits_of(of.type, x)),
               store_one_16bit(row, row.at + d + i, bits_of(of.type, x[i])))
    }
}
#define QUERY_STORED4 vec4
#define KEY_VALUE_STORED4 vec4
#define load_value4 load_stored4
#define value_floats(x) (x)
#elif defined(MIXED)
// A row, and the bits of the float32 that its elements are multiplied by: 1 where there are no scales.
struct StoredRow {
    RowStart start;
    uint scale;
};
#define UNSCALED(row) StoredRow(row, floatBitsToUint(1.0))
#include "lib/quantised.glsl"
#define BITS_OF_FOUR(row, at) floatBitsToUint(load_four_float32(row, at))
#define BITS_OF_ONE(row, at) floatBitsToUint(load_one_float32(row, at))
#define FOUR_16BIT(row, at) uvec4(load_four_16bit(row, at), 0, 0)
#define PACKED4(a, b, c, d) uvec4(packed4(a, b, c, d), 0, 0)
uvec4 load_any4(uint type, StoredRow of, uint d, uint extent, bool inside) {
    if (type >= TYPE_Q8_0) return uvec4(load4_quantised(type, of, d, extent), 0, 0);
    const RowStart row = of.start;
    if (type == TYPE_FLOAT32) {
        LOAD4(uvec4, 4, BITS_OF_FOUR, BITS_OF_ONE, uvec4)
    }
    LOAD4(uvec4, 2, FOUR_16BIT, load_one_16bit, PACKED4)
}
vec4 floats_of_any(uint type, uvec4 stored) {
    if (type == TYPE_FLOAT32) return uintBitsToFloat(stored);
    if (type >= TYPE_Q8_0) return floats_of_quantised(type, stored.xy);
    return floats_of(type, stored.xy);
}
#define QUERY_STORED4 uvec4
#define load_query4(row, d, extent, inside) load_any4(QUERY_TYPE, UNSCALED(row), d, extent, inside)
#define query_floats(x) floats_of_any(QUERY_TYPE, x)
#define KEY_VALUE_STORED4 uvec4
#define load_key4(row, d, extent, inside) load_any4(KEY_TYPE, row, d, extent, inside)
#define key_floats(x) floats_of_any(KEY_TYPE, x)
#define load_value4(row, d, extent, inside) load_any4(VALUE_TYPE, row, d, extent, inside)
#define value_floats(x) floats_of_any(VALUE_TYPE, x)
// BYTES_OF_A_KEY counts a key and its value.
#define BYTES_OF_32(type) ((type) >= TYPE_Q8_0 ? 2 * HALVES_OF_BLOCK(type) : 32 * BYTES_OF(type))
#define BYTES_OF_A_KEY ((HEAD_DIM_QK * BYTES_OF_32(KEY_TYPE) + HEAD_DIM_V * BYTES_OF_32(VALUE_TYPE)) / 32.0)
#else
#define StoredRow RowStart
const uint KEY_VALUE_BYTES = KEY_BYTES;
#define BYTES_OF_A_KEY ((HEAD_DIM_QK + HEAD_DIM_V) * KEY_VALUE_BYTES)
#if QUERY_TYPE == TYPE_FLOAT32
#define QUERY_STORED4 vec4
#define load_query4 load4_float32
#define query_floats(x) (x)
#define store_query4 store4_float32
#else
#define QUERY_STORED4 uvec2
#define load_query4 load4_16bit
#define query_floats(x) floats_of(QUERY_TYPE, x)
#define store_query4(row, d, extent, x) store4_16bit(row, d, extent, QUERY_TYPE, x)
#endif

#if KEY_VALUE_TYPE == TYPE_FLOAT32
#define KEY_VALUE_STORED4 vec4
#define load_key_value4 load4_float32
#define key_value_floats(x) (x)
#define store_key_value4 store4_float32
#else
#define KEY_VALUE_STORED4 uvec2
#define load_key_value4 load4_16bit
#define key_value_floats(x) floats_of(KEY_VALUE_TYPE, x)
#define store_key_value4(row, d, extent, x) store4_16bit(row, d, extent, KEY_VALUE_TYPE, x)
#endif
#define store_stored4 store_query4
#define load_key4 load_key_value4
#define key_floats key_value_floats
#define load_value4 load_key_value4
#define value_floats key_value_floats
#endif

#ifdef HAS_16BIT
const uint STORED_OUT_TYPE = OUT_TYPE;
vec4 load_out4(RowStart row, uint d, uint extent, bool inside) {
    if (OUT_TYPE == TYPE_FLOAT32) return load4_float32(row, d, extent, inside);
    return floats_of(OUT_TYPE, load4_16bit(row, d, extent, inside));
}
// A row of out is a mean of values, so that it is finite where these are. Weights are rounded, and need not sum to 1 to
// the last bit: a finite result that passes the largest number of out's type is rounded to that, not to infinity. What
// is not finite stays what it is.
const float LARGEST_OUT = OUT_TYPE == TYPE_FLOAT16 ? 65504.0 : 3.38953139e38;
#define WITHIN_OUT4(x) \
    mix(clamp(x, -LARGEST_OUT, LARGEST_OUT), x, greaterThanEqual(floatBitsToUint(x) & 0x7fffffff, uvec4(0x7f800000)))
void store_out4(RowStart row, uint d, uint extent, vec4 x) {
    if (OUT_TYPE == TYPE_FLOAT32) store4_float32(row, d, extent, x);
    else store4_16bit(row, d, extent, OUT_TYPE, WITHIN_OUT4(x));
}
#else
const uint STORED_OUT_TYPE = TYPE_FLOAT32;
const float LARGEST_OUT = 3.4e38;  // no out of 32 bits is held to it
#define load_out4 load4_float32
#define store_out4 store4_float32
#endif
const uint OUT_BYTES = BYTES_OF(STORED_OUT_TYPE);

// Loads from rows of query and key that are staged in one list, whichever operand an item is of: from row `row` of the
// Rows t. Where both have one type there is one load for both, because a choice between two costs 4 %
// (lib/constants.glsl), and of_key is not looked at.
#define STAGED4 QUERY_STORED4
#ifdef TYPED_ROWS
#define load_found4(of_key, at, d, extent, inside) load_stored4(at, d, extent, inside)
#define staged_floats(of_key, x) (x)
#elif defined(MIXED)
#define load_found4(of_key, at, d, extent, inside) load_any4((of_key) ? KEY_TYPE : QUERY_TYPE, at, d, extent, inside)
#define staged_floats(of_key, x) floats_of_any((of_key) ? KEY_TYPE : QUERY_TYPE, x)
#else
#define load_found4(of_key, at, d, extent, inside) load_query4(at, d, extent, inside)
#define staged_floats(of_key, x) query_floats(x)
#endif
#define load_staged4(of_key, t, row, d, extent, inside) \
    load_found4(of_key, staged_row(of_key, t, row), d, extent, inside)
