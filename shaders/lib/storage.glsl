// Elements in global memory: float32 and 16-bit types (TYPE_*), which become float32 in registers. Where rows are
// aligned for it (LOAD_BYTES) four elements are moved at a time; that needs no 16-bit feature. Single 16-bit elements
// are moved through 16-bit storage or, with the macro PACKED, through the 32-bit word that an element shares with
// another. Modules for float32 storage (without the macro HAS_16BIT) have no 16-bit memory accesses.
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

// Loads elements d .. d+3 of a row as they are stored, zero from `extent` on. It reads nothing outside 0 .. extent-1,
// and has no branch: for what does not exist, the last element that does is read and dropped. `inside` promises that
// d+3 < extent.
#define LOAD4(type, bytes, load_four, load_one, make_four) \
    if (LOAD_BYTES >= 4 * bytes && inside) return load_four(row, row.at + d); \
    if (LOAD_BYTES >= 4 * bytes && extent % 4 == 0) { \
        const type x = load_four(row, row.at + min(d, extent - 4)); \
        return d < extent ? x : type(0); \
    } \
    const uint last = extent - 1; \
    return make_four(d < extent ? load_one(row, row.at + min(d, last)) : 0, \
                     d + 1 < extent ? load_one(row, row.at + min(d + 1, last)) : 0, \
                     d + 2 < extent ? load_one(row, row.at + min(d + 2, last)) : 0, \
                     d + 3 < extent ? load_one(row, row.at + min(d + 3, last)) : 0);

#define STORE4(bytes, store_four, store_one) \
    if (LOAD_BYTES >= 4 * bytes && d + 4 <= extent) { \
        store_four; \
        return; \
    } \
    [[unroll]] for (uint i = 0; i < 4; i++) \
        if (d + i < extent) store_one;

vec4 load_four_float32(RowStart row, uint at) { return Vec4sIn(row.base).x[at / 4]; }
float load_one_float32(RowStart row, uint at) { return FloatsIn(row.base).x[at]; }
void store_four_float32(RowStart row, uint at, vec4 x) { Vec4sOut(row.base).x[at / 4] = x; }
void store_one_float32(RowStart row, uint at, float x) { FloatsOut(row.base).x[at] = x; }

vec4 load4_float32(RowStart row, uint d, uint extent, bool inside) {
    LOAD4(vec4, 4, load_four_float32, load_one_float32, vec4)
}
void store4_float32(RowStart row, uint d, uint extent, vec4 x) {
    STORE4(4, store_four_float32(row, row.at + d, x), store_one_float32(row, row.at + d + i, x[i]))
}

// The type of a 16-bit number is a constant wherever these are called, but for rows that know theirs (TYPED_ROWS).
float float_of(uint type, uint bits) {
    return type == TYPE_FLOAT16 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}
vec2 floats_of(uint type, uint word) {
    return type == TYPE_FLOAT16 ? unpackHalf2x16(word)
                                : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000));
}
vec4 floats_of(uint type, uvec2 words) { return vec4(floats_of(type, words.x), floats_of(type, words.y)); }

// Rounds to nearest, ties to even: packHalf2x16 may round as it likes. There are no branches, of which compilers make
// much.
uint float16_bits(float x) {
    const uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffff, rebased = magnitude - 0x38000000;
    const uint normal = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
    // Subnormal float16 are multiples of 2^-24, and so are float32 between 1/2 and 1. Adding 1/2 therefore rounds to
    // them. roundEven() is not used, because lavapipe at 512 bits (Mesa 26.1) rounds its ties away from zero.
    precise const float sum = uintBitsToFloat(magnitude) + 0.5;
    const uint subnormal = floatBitsToUint(sum) - floatBitsToUint(0.5);
    const uint large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;                                // NaN; 65536 and more
    return bits >> 16 & 0x8000 | (magnitude < 0x38800000 ? subnormal : magnitude < 0x47800000 ? normal : large);
}
uint bfloat16_bits(float x) {
    const uint bits = floatBitsToUint(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;  // NaN stays one
}
#define PACK_BITS(bits, x) uvec2(bits(x.x) | bits(x.y) << 16, bits(x.z) | bits(x.w) << 16)
uvec2 float16_bits(vec4 x) { return PACK_BITS(float16_bits, x); }
uvec2 bfloat16_bits(vec4 x) { return PACK_BITS(bfloat16_bits, x); }
#define bits_of(type, x) ((type) == TYPE_FLOAT16 ? float16_bits(x) : bfloat16_bits(x))

#ifdef HAS_16BIT
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Uvec2sIn { uvec2 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer Uvec2sOut { uvec2 x[]; };

uvec2 load_four_16bit(RowStart row, uint at) { return Uvec2sIn(row.base).x[at / 4]; }
void store_four_16bit(RowStart row, uint at, uvec2 bits) { Uvec2sOut(row.base).x[at / 4] = bits; }

#ifdef PACKED
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Uints { uint x[]; };

// Elements between the beginning of the word in which the row's base lies and element `at`.
#define place_in_words(row, at) ((at) + (row.base.x >> 1 & 1))
#define word_base(row) uvec2(row.base.x & ~3u, row.base.y)

uint load_one_16bit(RowStart row, uint at) {
    const uint place = place_in_words(row, at);
    return UintsIn(word_base(row)).x[place / 2] >> (place % 2 * 16) & 0xffff;
}

// Another invocation may own the word's other element, so each changes its own bits only.
void store_one_16bit(RowStart row, uint at, uint bits) {
    const uint place = place_in_words(row, at), shift = place % 2 * 16;
    atomicAnd(Uints(word_base(row)).x[place / 2], ~(0xffffu << shift));
    atomicOr(Uints(word_base(row)).x[place / 2], bits << shift);
}
#else
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer HalvesIn { uint16_t x[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) writeonly buffer HalvesOut { uint16_t x[]; };

uint load_one_16bit(RowStart row, uint at) { return uint(HalvesIn(row.base).x[at]); }
void store_one_16bit(RowStart row, uint at, uint bits) { HalvesOut(row.base).x[at] = uint16_t(bits); }
#endif

uvec2 packed4(uint a, uint b, uint c, uint d) { return uvec2(a | b << 16, c | d << 16); }
uvec2 load4_16bit(RowStart row, uint d, uint extent, bool inside) {
    LOAD4(uvec2, 2, load_four_16bit, load_one_16bit, packed4)
}
void store4_16bit(RowStart row, uint d, uint extent, uint type, vec4 x) {
    STORE4(2, store_four_16bit(row, row.at + d, bits_of(type, x)),
           store_one_16bit(row, row.at + d + i, bits_of(type, x[i])))
}
#endif
