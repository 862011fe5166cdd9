// Keys and values in ggml's block types, as its files have them: blocks of 32 elements along head_dim, with a factor of
// float16 and for some types a smallest value, which has float16 too. Of a block that begins at half 0:
//
//   q8_0    factor, 32 signed bytes                  x = factor * n
//   q4_0    factor, 16 bytes of two numbers          x = factor * (n - 8)
//   q4_1    factor, least, 16 bytes of two           x = factor * n + least
//   q5_0    factor, 32 high bits, 16 bytes of two    x = factor * (n - 16)
//   q5_1    factor, least, 32 high bits, 16 of two   x = factor * n + least
//   iq4_nl  factor, 16 bytes of two                  x = factor * (number n of a table)
//
// A byte of two has element j of the block in its lower half and element j + 16 in its upper one. High bit j is bit 4
// of element j.
//
// Bytes with scales beside the tensor are handled as blocks of 32 bytes, whose factor is the row's scale, a float32:
//
//   int8    32 signed bytes                          x = scale * n
//   e4m3    32 bytes, 1 + 4 + 3 bits                 x = scale * (sign, exponent of bias 7, fraction; no infinity)
//   e5m2    32 bytes, 1 + 5 + 2 bits                 x = scale * (sign, exponent of bias 15, fraction)
//
// The last two are the OCP's 8-bit floating point specification, revision 1.0.
//
// In registers, four neighbouring elements are two words: a byte of each, then factor and least, or the scale.
#define HAS_SCALE(type) ((type) >= TYPE_INT8)
#define IS_FLOAT8(type) ((type) >= TYPE_E4M3)
#define HAS_SIGNED_BYTES(type) ((type) == TYPE_Q8_0 || (type) == TYPE_INT8)
#define HAS_BYTES(type) ((type) == TYPE_Q8_0 || HAS_SCALE(type))  // one a number
#define HALVES_OF_BLOCK(type) \
    (HAS_SCALE(type) ? 16 : (type) == TYPE_Q8_0 ? 17 : (type) == TYPE_Q4_1 ? 10 : (type) == TYPE_Q5_0 ? 11 \
                          : (type) == TYPE_Q5_1 ? 12 : 9)
#define HAS_LEAST(type) ((type) == TYPE_Q4_1 || (type) == TYPE_Q5_1)
#define HAS_HIGH_BITS(type) ((type) == TYPE_Q5_0 || (type) == TYPE_Q5_1)

#define LOAD_WORD(row, at) (load_one_16bit(row, at) | load_one_16bit(row, (at) + 1) << 16)

// Offsets in halves: BLOCK_AT is where the block of element d of a row begins. Within a block, FACTOR_HALVES is where
// the high bits begin and NUMBERS_AT where the numbers do. NUMBER_AT is where number n of the block at `at` lies.
#define BLOCK_AT(type, row, d) ((row).at + (d) / 32 * HALVES_OF_BLOCK(type))
#define FACTOR_HALVES(type) (HAS_SCALE(type) ? 0 : HAS_LEAST(type) ? 2 : 1)
#define NUMBERS_AT(type) (FACTOR_HALVES(type) + (HAS_HIGH_BITS(type) ? 2 : 0))
#define NUMBER_AT(type, at, n) ((at) + NUMBERS_AT(type) + (HAS_BYTES(type) ? n : n % 16) / 2)
// Loads the high bits from number n of the block at `at` on.
#define LOAD_HIGH(type, at, n) (load_one_16bit(row, at + FACTOR_HALVES(type) + n / 16) >> n % 16)
// A number that is stored without a sign has this value too much.
#define ZERO_OF(type) (HAS_SIGNED_BYTES(type) ? 128 : type == TYPE_Q4_0 ? 8 : type == TYPE_Q5_0 ? 16 : 0)
// `of` is the StoredRow, and `row` its RowStart.
#define LOAD_FACTORS(type, of, row, at) \
    (HAS_SCALE(type) ? of.scale : HAS_LEAST(type) ? LOAD_WORD(row, at) : load_one_16bit(row, at))
// Returns the factor and the least value of what LOAD_FACTORS has loaded.
#define FACTORS_OF(type, bits) (HAS_SCALE(type) ? vec2(uintBitsToFloat(bits), 0) : unpackHalf2x16(bits))
// Moves the lowest four of `bits`, the high bits of four elements, to bit 4 of four bytes. The product has copies of
// them 7 bits apart, each shifted so that another of the four stands at bit 4 of a byte.
#define SPREAD(bits) (((bits) & 15) * 0x02040810u & 0x10101010u)

// Loads elements d .. d+3 of a row, zero from `extent` on, which is a multiple of 32.
uvec2 load4_quantised(uint type, StoredRow of, uint d, uint extent) {
    const RowStart row = of.start;
    const uint from = min(d, extent - 4), n = from % 32, at = BLOCK_AT(type, row, from);
    uint bytes = LOAD_WORD(row, NUMBER_AT(type, at, n));
    if (!HAS_BYTES(type)) bytes = bytes >> n / 16 * 4 & 0x0f0f0f0f;
    if (HAS_HIGH_BITS(type)) {
        const uint bits = LOAD_HIGH(type, at, n);
        bytes |= SPREAD(bits);
    }
    return d < extent ? uvec2(bytes, LOAD_FACTORS(type, of, row, at)) : uvec2(0);
}

// These buffers begin one to three words early, so that neighbouring words have the same index. For each other index
// compilers compute another 64-bit address.
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Uints1In { uint before[1], x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Uints2In { uint before[2], x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Uints3In { uint before[3], x[]; };

// Eight neighbouring elements as they are loaded, so that no load is waited for. The first word may be half another
// block's; `place` tells where in the words the elements are.
struct Eight {
    uvec4 words;  // .z: the last two bytes of the elements; .w: factor and least
    uint place;   // bit 0: they begin with the first word's upper half; bit 1: they are upper halves of bytes
    uint high;    // high bits
};
// Loads elements d .. d+7, zero from `extent` on. `inside` promises that d+7 < extent.
Eight load_eight(uint type, StoredRow of, uint d, uint extent, bool inside) {
    const RowStart row = of.start;
    const uint from = inside ? d : min(d, extent - 8), n = from % 32, at = BLOCK_AT(type, row, from);
    const uint number = NUMBER_AT(type, at, n), place = number + (row.base.x >> 1 & 1);
    const uvec2 base = uvec2(row.base.x & ~3u, row.base.y);
    Eight x;
    x.words.x = UintsIn(base).x[place / 2];
    x.words.y = Uints1In(base).x[place / 2];
    x.words.z = load_one_16bit(row, number + 3);
    x.words.w = LOAD_FACTORS(type, of, row, at);
    if (!inside && d >= extent) x.words = uvec4(0);
    x.place = place % 2 | (HAS_BYTES(type) ? 0 : n / 16 << 1);
    x.high = HAS_HIGH_BITS(type) ? LOAD_HIGH(type, at, n) : 0;
    return x;
}
// Returns a byte for each element. Words are joined without a branch: neighbouring invocations would take both ways.
uvec2 bytes_of_eight(uint type, Eight x) {
    uvec2 bytes = mix(x.words.xy, x.words.xy >> 16 | x.words.yz << 16, bvec2((x.place & 1) != 0));
    if (!HAS_BYTES(type)) bytes = bytes >> (x.place & 2) * 2 & 0x0f0f0f0f;
    if (HAS_HIGH_BITS(type)) bytes |= uvec2(SPREAD(x.high), SPREAD(x.high >> 4));
    return bytes;
}

// iq4_nl's table, four numbers a word: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
int number_of_table(uint n) {
    const uint low = n < 4 ? 0xbfad9881u : 0xf6eaddcfu, high = n < 12 ? 0x26190d01u : 0x71594535u;
    return int((n < 8 ? low : high) << (24 - n % 4 * 8)) >> 24;
}

// Decodes four float8. A normal number becomes a float32 if a constant is added to its exponent. A subnormal one is
// decoded as the least normal number with its fraction, and that number is subtracted, which is exact. So no float32 is
// subnormal: GPUs may take these for 0.
vec4 floats_of_float8(uint type, uvec4 bytes) {
    const uint fraction_bits = type == TYPE_E4M3 ? 3 : 2, rebias = type == TYPE_E4M3 ? 120 : 112;
    const uvec4 magnitude = bytes & 0x7f;
    const bvec4 subnormal = lessThan(magnitude, uvec4(1u << fraction_bits));
    const uvec4 bits = (magnitude << 23 - fraction_bits) + mix(uvec4(rebias << 23), uvec4(rebias + 1 << 23), subnormal);
    vec4 x = uintBitsToFloat(bits) - mix(vec4(0), vec4(uintBitsToFloat(rebias + 1 << 23)), subnormal);
    if (type == TYPE_E4M3) x = mix(x, vec4(uintBitsToFloat(0x7fc00000)), equal(magnitude, uvec4(0x7f)));
    // Numbers with an exponent of 31 are infinity and NaN.
    else x = mix(x, uintBitsToFloat(bits + (112u << 23)), greaterThanEqual(magnitude, uvec4(0x7c)));
    return uintBitsToFloat(floatBitsToUint(x) | (bytes & 0x80) << 24);
}

vec4 floats_of_quantised(uint type, uvec2 stored) {
    const uvec4 bytes = uvec4(stored.x) >> uvec4(0, 8, 16, 24) & 0xff;
    if (IS_FLOAT8(type)) return uintBitsToFloat(stored.y) * floats_of_float8(type, bytes);
    ivec4 n = ivec4(bytes);
    if (HAS_SIGNED_BYTES(type)) n = n << 24 >> 24;
    if (type == TYPE_Q4_0) n -= 8;
    if (type == TYPE_Q5_0) n -= 16;
    if (type == TYPE_IQ4_NL)
        n = ivec4(number_of_table(bytes.x), number_of_table(bytes.y), number_of_table(bytes.z),
                  number_of_table(bytes.w));
    const vec2 factors = FACTORS_OF(type, stored.y);
    return HAS_LEAST(type) ? factors.x * vec4(n) + factors.y : factors.x * vec4(n);
}
