// Eight elements at a time, from global memory to the operands of a matrix unit: a vec4 of 16-bit numbers. Query, key
// and value are stored as that, or as float32 (macros F16_OPERANDS, BF16_OPERANDS), which is rounded on its way to
// shared memory, not when it is fetched, so that no fetch is waited for.
#if defined(F16) || defined(F16_OPERANDS)  // the hardware rounds to nearest, even; no kernel needs that in every bit
uvec2 operands_of(vec4 x) { return uvec2(packFloat2x16(f16vec2(x.xy)), packFloat2x16(f16vec2(x.zw))); }
#else
uvec2 operands_of(vec4 x) { return bits_of(TYPE_BFLOAT16, x); }
#endif
uvec4 operands_of(vec4 low, vec4 high) { return uvec4(operands_of(low), operands_of(high)); }

// fetch_whole8, store_whole8: `vec` counts vec4 of memory, of which eight elements take VECS_OF_8.
// fetch8: elements d .. d+7 of a row, zero from `extent` on, which d may exceed. `inside` promises that d+7 < extent.
const uint ELEMENTS_OF_VEC = 16 / KEY_VALUE_BYTES, VECS_OF_8 = 8 / ELEMENTS_OF_VEC;
#if defined(F16) || defined(BF16)
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Uvec4sIn { uvec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Uvec4sOut { uvec4 x[]; };

#define STORED8 uvec4
uvec4 operands_of(uvec4 stored) { return stored; }
uvec4 fetch_whole8(uvec2 base, uint vec) { return Uvec4sIn(base).x[vec]; }
void store_whole8(uvec2 base, uint vec, uvec4 stored) { Uvec4sOut(base).x[vec] = stored; }
void store_whole8(uvec2 base, uint vec, vec4 low, vec4 high) { store_whole8(base, vec, operands_of(low, high)); }

uvec4 fetch8(RowStart row, uint d, uint extent, bool inside) {
    if (LOAD_BYTES == 16 && inside) return fetch_whole8(row.base, (row.at + d) / ELEMENTS_OF_VEC);
    if (LOAD_BYTES == 16 && extent % 8 == 0) {
        const uvec4 x = fetch_whole8(row.base, (row.at + min(d, extent - 8)) / ELEMENTS_OF_VEC);
        return d < extent ? x : uvec4(0);
    }
    return uvec4(load_key_value4(row, d, extent, inside), load_key_value4(row, d + 4, extent, inside));
}
#else
struct Floats8 {
    vec4 low, high;
};
#define STORED8 Floats8
uvec4 operands_of(Floats8 x) { return operands_of(x.low, x.high); }
Floats8 fetch_whole8(uvec2 base, uint vec) { return Floats8(Vec4sIn(base).x[vec], Vec4sIn(base).x[vec + 1]); }
void store_whole8(uvec2 base, uint vec, vec4 low, vec4 high) {
    Vec4sOut(base).x[vec] = low;
    Vec4sOut(base).x[vec + 1] = high;
}

Floats8 fetch8(RowStart row, uint d, uint extent, bool inside) {
    return Floats8(load_key_value4(row, d, extent, inside), load_key_value4(row, d + 4, extent, inside));
}
#endif

// Loads from a query row, whose storage type is that of keys in all modules.
uvec4 load_query8(RowStart row, uint d, uint extent) { return operands_of(fetch8(row, d, extent, false)); }
