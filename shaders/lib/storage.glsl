// Loads and stores of rows in global memory: float32, or 16-bit elements (macros F16, BF16), which become float32 in
// registers. Where rows begin at multiples of 4 elements (WIDE_LOADS) four go at a time; that needs no 16-bit feature. Else
// single elements do, through 16-bit storage or, with the macro PACKED, through the 32-bit word that an element shares.
#include "address.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer FloatsIn { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4sIn { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer FloatsOut { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Vec4sOut { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer UintsIn { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer UintsOut { uint x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer IntsIn { int x[]; };

// Where a row begins: `at` elements behind an address.
struct RowStart {
    uvec2 base;
    uint at;
};

// Elements d .. d+3 of a row as they are stored, zero from `extent` on. Reads nothing outside 0 .. extent-1, and has no
// branch: what does not exist is read from the last place that does, then dropped. `inside` promises that d+3 < extent.
#define LOAD4(type, load_wide, load_one, four) \
    if (WIDE_LOADS != 0 && inside) return load_wide(row, row.at + d); \
    if (WIDE_LOADS != 0 && extent % 4 == 0) { \
        const type x = load_wide(row, row.at + min(d, extent - 4)); \
        return d < extent ? x : type(0); \
    } \
    const uint last = extent - 1; \
    return four(d < extent ? load_one(row, row.at + min(d, last)) : 0, \
                d + 1 < extent ? load_one(row, row.at + min(d + 1, last)) : 0, \
                d + 2 < extent ? load_one(row, row.at + min(d + 2, last)) : 0, \
                d + 3 < extent ? load_one(row, row.at + min(d + 3, last)) : 0);

#define STORE4(store_wide, store_one) \
    if (WIDE_LOADS != 0 && d + 4 <= extent) { \
        store_wide(row, row.at + d, x); \
        return; \
    } \
    [[unroll]] for (uint i = 0; i < 4; i++) \
        if (d + i < extent) store_one(row, row.at + d + i, x[i]);

vec4 load_wide_float32(RowStart row, uint at) { return Vec4sIn(row.base).x[at / 4]; }
float load_one_float32(RowStart row, uint at) { return FloatsIn(row.base).x[at]; }
void store_wide_float32(RowStart row, uint at, vec4 x) { Vec4sOut(row.base).x[at / 4] = x; }
void store_one_float32(RowStart row, uint at, float x) { FloatsOut(row.base).x[at] = x; }

vec4 load4_float32(RowStart row, uint d, uint extent, bool inside) {
    LOAD4(vec4, load_wide_float32, load_one_float32, vec4)
}
void store4_float32(RowStart row, uint d, uint extent, vec4 x) { STORE4(store_wide_float32, store_one_float32) }

// Of storage, or of the operands of a matrix unit.
#if defined(F16) || defined(F16_OPERANDS)
float float_of(uint bits) { return unpackHalf2x16(bits).x; }
vec2 floats_of(uint word) { return unpackHalf2x16(word); }

// To nearest, ties to even: packHalf2x16 may round as it likes. Without branches, of which compilers make much.
uint bits_of(float x) {
    const uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffff, rebased = magnitude - 0x38000000;
    const uint normal = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
    const uint subnormal = uint(roundEven(min(uintBitsToFloat(magnitude), 1.0) * 16777216.0));  // multiples of 2^-24
    const uint large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;                                // NaN; 65536 and more
    return bits >> 16 & 0x8000 | (magnitude < 0x38800000 ? subnormal : magnitude < 0x47800000 ? normal : large);
}
#elif defined(BF16) || defined(BF16_OPERANDS)
float float_of(uint bits) { return uintBitsToFloat(bits << 16); }
vec2 floats_of(uint word) { return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000)); }

uint bits_of(float x) {
    const uint bits = floatBitsToUint(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;  // NaN stays one
}
#endif

#if defined(F16) || defined(BF16)
const uint ELEMENT_BYTES = 2;
#define STORED4 uvec2  // four elements as they are stored
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Uvec2sIn { uvec2 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer Uvec2sOut { uvec2 x[]; };

uvec2 load_wide(RowStart row, uint at) { return Uvec2sIn(row.base).x[at / 4]; }
uvec2 packed4(uint a, uint b, uint c, uint d) { return uvec2(a | b << 16, c | d << 16); }
vec4 floats_of(uvec2 words) { return vec4(floats_of(words.x), floats_of(words.y)); }

void store_wide(RowStart row, uint at, vec4 x) {
    Uvec2sOut(row.base).x[at / 4] =
        uvec2(bits_of(x.x) | bits_of(x.y) << 16, bits_of(x.z) | bits_of(x.w) << 16);
}

#ifdef PACKED
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Uints { uint x[]; };

// The word of an element, counted from the word in which the row's base lies.
uint half_of(RowStart row, uint at) { return at + (row.base.x >> 1 & 1); }
uvec2 word_base(RowStart row) { return uvec2(row.base.x & ~3u, row.base.y); }

uint load_bits(RowStart row, uint at) {
    const uint h = half_of(row, at);
    return UintsIn(word_base(row)).x[h / 2] >> (h % 2 * 16) & 0xffff;
}

// Another invocation may own the word's other half, so each changes its own half only.
void store_one(RowStart row, uint at, float x) {
    const uint h = half_of(row, at), shift = h % 2 * 16;
    atomicAnd(Uints(word_base(row)).x[h / 2], ~(0xffffu << shift));
    atomicOr(Uints(word_base(row)).x[h / 2], bits_of(x) << shift);
}
#else
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer HalvesIn { uint16_t x[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) writeonly buffer HalvesOut { uint16_t x[]; };

uint load_bits(RowStart row, uint at) { return uint(HalvesIn(row.base).x[at]); }
void store_one(RowStart row, uint at, float x) { HalvesOut(row.base).x[at] = uint16_t(bits_of(x)); }
#endif
float load_one(RowStart row, uint at) { return float_of(load_bits(row, at)); }

uvec2 load4_stored(RowStart row, uint d, uint extent, bool inside) { LOAD4(uvec2, load_wide, load_bits, packed4) }
void store4(RowStart row, uint d, uint extent, vec4 x) { STORE4(store_wide, store_one) }
#else
const uint ELEMENT_BYTES = 4;
#define STORED4 vec4
vec4 floats_of(vec4 x) { return x; }
float load_one(RowStart row, uint at) { return load_one_float32(row, at); }
void store_one(RowStart row, uint at, float x) { store_one_float32(row, at, x); }
vec4 load4_stored(RowStart row, uint d, uint extent, bool inside) { return load4_float32(row, d, extent, inside); }
void store4(RowStart row, uint d, uint extent, vec4 x) { store4_float32(row, d, extent, x); }
#endif

vec4 load4(RowStart row, uint d, uint extent, bool inside) { return floats_of(load4_stored(row, d, extent, inside)); }
