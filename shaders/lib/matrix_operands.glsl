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
//
// Modules with the macro MIXED have neither fetch_whole8 nor store_whole8, and key, value and query each have a fetch8
// for the type that the constants name. In other modules these three are one.
#ifndef MIXED
const uint ELEMENTS_OF_VEC = 16 / KEY_VALUE_BYTES, VECS_OF_8 = 8 / ELEMENTS_OF_VEC;
#endif
#ifdef MIXED
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Uvec4sIn { uvec4 x[]; };
struct Any8 {
    uvec4 low, high;  // four elements each, in words as load_any4 has them; of blocks, an Eight
};
Eight eight_of(Any8 x) { return Eight(x.low, x.high.x, x.high.y); }
#define STORED8 Any8
#ifdef F16_OPERANDS
#define OPERAND_TYPE TYPE_FLOAT16
#else
#define OPERAND_TYPE TYPE_BFLOAT16
#endif

Any8 fetch_any8(uint type, StoredRow of, uint d, uint extent, bool inside) {
    if (type >= TYPE_Q8_0) {
        const Eight eight = load_eight(type, of, d, extent, inside);
        return Any8(eight.words, uvec4(eight.place, eight.high, 0, 0));
    }
    const RowStart row = of.start;
    if (type != TYPE_FLOAT32 && LOAD_BYTES == 16 && extent % 8 == 0) {
        uvec4 eight = Uvec4sIn(row.base).x[(row.at + (inside ? d : min(d, extent - 8))) / 8];
        if (!inside && d >= extent) eight = uvec4(0);
        return Any8(uvec4(eight.xy, 0, 0), uvec4(eight.zw, 0, 0));
    }
    return Any8(load_any4(type, of, d, extent, inside), load_any4(type, of, d + 4, extent, inside));
}
#ifdef F16_OPERANDS
// True for blocks that are decoded in the arithmetic of float16. Of four elements the even ones make one word and the
// odd ones another, which takes half of the instructions: bytes 0 and 2 of a word are where two float16 have their
// lower bits. Where keys are staged so, query has the same order, and where values are, the output is put in order.
#define HAS_EVEN_FIRST(type) ((type) >= TYPE_Q8_0 && (type) != TYPE_IQ4_NL && !HAS_SCALE(type))
// A byte b becomes a number as (1024 + b) - 1024, and the product with its factor is rounded once.
uvec2 halves_of_quantised(uint type, uint bytes, uint factors) {
    const uint high_bytes = type == TYPE_Q8_0 ? 0x64806480u : 0x64006400u;
    const uvec2 pairs = (uvec2(bytes, bytes >> 8) & 0x00ff00ff) ^ high_bytes;
    const float zero = 1024 + ZERO_OF(type);
    const f16vec2 both = unpackFloat2x16(factors), factor = f16vec2(both.x), least = f16vec2(both.y);
    uvec2 halves;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const f16vec2 n = unpackFloat2x16(pairs[i]) - f16vec2(zero);
        halves[i] = packFloat2x16(HAS_LEAST(type) ? fma(n, factor, least) : n * factor);
    }
    return halves;
}
uvec2 even_first(uvec2 four) { return uvec2(four.x & 0xffff | four.y << 16, four.x >> 16 | four.y & 0xffff0000); }
#else
#define HAS_EVEN_FIRST(type) false
#define even_first(four) (four)
#endif
uvec4 operands_of_any(uint type, Any8 x) {
    if (type == OPERAND_TYPE) return uvec4(x.low.xy, x.high.xy);
    if (type >= TYPE_Q8_0) {
        const uvec2 bytes = bytes_of_eight(type, eight_of(x));
        const uint factors = x.low.w;
#ifdef F16_OPERANDS
        if (HAS_EVEN_FIRST(type))
            return uvec4(halves_of_quantised(type, bytes.x, factors), halves_of_quantised(type, bytes.y, factors));
#endif
        return operands_of(floats_of_quantised(type, uvec2(bytes.x, factors)),
                           floats_of_quantised(type, uvec2(bytes.y, factors)));
    }
    return operands_of(floats_of_any(type, x.low), floats_of_any(type, x.high));
}
#define fetch_key8(row, d, extent, inside) fetch_any8(KEY_TYPE, row, d, extent, inside)
#define key_operands(x) operands_of_any(KEY_TYPE, x)
#define fetch_value8(row, d, extent, inside) fetch_any8(VALUE_TYPE, row, d, extent, inside)
#define value_operands(x) operands_of_any(VALUE_TYPE, x)
uvec4 load_query8(RowStart row, uint d, uint extent) {
    const uvec4 eight = operands_of_any(QUERY_TYPE, fetch_any8(QUERY_TYPE, UNSCALED(row), d, extent, false));
    return HAS_EVEN_FIRST(KEY_TYPE) ? uvec4(even_first(eight.xy), even_first(eight.zw)) : eight;
}
#elif defined(F16) || defined(BF16)
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

#ifndef MIXED
#define fetch_key8 fetch8
#define key_operands operands_of
#define fetch_value8 fetch8
#define value_operands operands_of
uvec4 load_query8(RowStart row, uint d, uint extent) { return operands_of(fetch8(row, d, extent, false)); }
#endif
