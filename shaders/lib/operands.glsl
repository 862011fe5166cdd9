// How each operand is stored: its type, its loads, its stores. All that knows of an operand's type is here and in
// lib/matrix_operands.glsl. There are three operands in the tiles of a kernel:
//   query      query, dquery, dout   the type that the module was compiled for
//   key_value  key, value, dkey, dvalue   likewise
//   out        the constant OUT_TYPE where the module has 16-bit types, else float32
// and the mask (lib/mask.glsl), whose type is MASK_TYPE in the same way. Registers hold elements of query, key and
// value as they are stored (QUERY_STORED4, KEY_VALUE_STORED4: four of them): were they converted at once, an
// invocation would wait for loads that it issues ahead (f16 at D128 on an H200: 32.3 for 39.1 TFLOP/s).
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

// load_NAME4, NAME_floats, store_NAME4 for an operand of a type that the module was compiled for.
#define FLOAT32_OPERAND(name) \
    vec4 load_##name##4(RowStart row, uint d, uint extent, bool inside) { \
        return load4_float32(row, d, extent, inside); \
    } \
    vec4 name##_floats(vec4 x) { return x; } \
    void store_##name##4(RowStart row, uint d, uint extent, vec4 x) { store4_float32(row, d, extent, x); }
#define OPERAND_OF_16_BITS(name, type) \
    uvec2 load_##name##4(RowStart row, uint d, uint extent, bool inside) { \
        return load4_16bit(row, d, extent, inside); \
    } \
    vec4 name##_floats(uvec2 x) { return floats_of(type, x); } \
    void store_##name##4(RowStart row, uint d, uint extent, vec4 x) { store4_16bit(row, d, extent, type, x); }

#if defined(F16) || defined(BF16)
#define QUERY_STORED4 uvec2
#define KEY_VALUE_STORED4 uvec2
OPERAND_OF_16_BITS(query, QUERY_TYPE)
OPERAND_OF_16_BITS(key_value, KEY_VALUE_TYPE)

const uint STORED_OUT_TYPE = OUT_TYPE;
vec4 load_out4(RowStart row, uint d, uint extent, bool inside) {
    if (OUT_TYPE == TYPE_FLOAT32) return load4_float32(row, d, extent, inside);
    return floats_of(OUT_TYPE, load4_16bit(row, d, extent, inside));
}
void store_out4(RowStart row, uint d, uint extent, vec4 x) {
    if (OUT_TYPE == TYPE_FLOAT32) store4_float32(row, d, extent, x);
    else store4_16bit(row, d, extent, OUT_TYPE, x);
}
#else
#define QUERY_STORED4 vec4
#define KEY_VALUE_STORED4 vec4
FLOAT32_OPERAND(query)
FLOAT32_OPERAND(key_value)

const uint STORED_OUT_TYPE = TYPE_FLOAT32;
vec4 load_out4(RowStart row, uint d, uint extent, bool inside) { return load4_float32(row, d, extent, inside); }
void store_out4(RowStart row, uint d, uint extent, vec4 x) { store4_float32(row, d, extent, x); }
#endif
const uint OUT_BYTES = BYTES_OF(STORED_OUT_TYPE);

// Where query and key_value rows are staged in one list, whichever operand an item is of: one load for both while they
// have one type, because a choice between two costs 4 % (lib/constants.glsl).
#define STAGED4 QUERY_STORED4
const uint STAGED_BYTES = QUERY_BYTES;
STAGED4 load_staged4(bool of_key_value, RowStart row, uint d, uint extent, bool inside) {
    return load_query4(row, d, extent, inside);
}
vec4 staged_floats(bool of_key_value, STAGED4 x) { return query_floats(x); }
