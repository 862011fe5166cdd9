// How each operand is stored: its type, its loads, its stores. All that knows of an operand's type is here and in
// lib/matrix_operands.glsl. There are three operands in the tiles of a kernel:
//   query      query, dquery, dout   the type that the module was compiled for
//   key_value  key, value, dkey, dvalue   likewise
//   out        the constant OUT_TYPE where the module has 16-bit types, else float32
// and the mask (lib/mask.glsl), whose type is MASK_TYPE in the same way. Registers hold elements of query, key and
// value as they are stored (QUERY_STORED4, KEY_VALUE_STORED4: four of them): were they converted at once, an
// invocation would wait for loads that it issues ahead (f16 at D128 on an H200: 32.3 instead of 39.1 TFLOP/s).
#include "lib/storage.glsl"

#ifdef F16
#define QUERY_TYPE TYPE_FLOAT16
#elif defined(BF16)
#define QUERY_TYPE TYPE_BFLOAT16
#else
#define QUERY_TYPE TYPE_FLOAT32
#endif
#define KEY_VALUE_TYPE QUERY_TYPE

#define BYTES_OF(type) ((type) == TYPE_FLOAT32 ? 4 : 2)
const uint QUERY_BYTES = BYTES_OF(QUERY_TYPE), KEY_VALUE_BYTES = BYTES_OF(KEY_VALUE_TYPE);

// load_NAME4, NAME_floats and store_NAME4 of each operand. Where the type is the module's they are macros, so that
// calls are not nested too deep (kernels.def).
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

// Loads from rows of query and key_value that are staged in one list, whichever operand an item is of: from row `row`
// of the Rows t. While both have one type there is one load for both, because a choice between two costs 4 %
// (lib/constants.glsl), and of_key_value is not looked at.
#define STAGED4 QUERY_STORED4
#define load_staged4(of_key_value, t, row, d, extent, inside) \
    load_query4(row_start(t, row, QUERY_BYTES), d, extent, inside)
#define staged_floats(of_key_value, x) query_floats(x)
