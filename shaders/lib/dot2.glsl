// 16-bit dot products, one instruction where VK_VALVE_shader_mixed_float_dot_product is: modules with the macro DOT.
// lib/lines.glsl and forward_rows.comp include it. Products are exact and sums are float32, but the extension leaves
// the order of the additions, their rounding and the treatment of subnormal numbers to the device. A pair is two
// numbers of 16 bits in one word, the first in the lower half.
#ifdef BF16
#define PAIR bf16vec2
spirv_instruction(id = 124) PAIR pair_of_word(uint word);  // OpBitcast
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6914], id = 6916)
#else
#define PAIR f16vec2
#define pair_of_word unpackFloat2x16
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
#endif
float OpFDot2MixAcc32VALVE(PAIR a, PAIR b, float sum);

// sum + a.x * b.x + a.y * b.y
float dot2(uint a, uint b, float sum) { return OpFDot2MixAcc32VALVE(pair_of_word(a), pair_of_word(b), sum); }

// One pair with each of four.
vec4 dot2(uint a, uvec4 b, vec4 sum) {
    return vec4(dot2(a, b.x, sum.x), dot2(a, b.y, sum.y), dot2(a, b.z, sum.z), dot2(a, b.w, sum.w));
}

// Rounds to the type of the products' operands.
#ifdef BF16
#define rounded_pair(x, y) (bfloat16_bits(x) | bfloat16_bits(y) << 16)
#else
#define rounded_pair(x, y) packFloat2x16(f16vec2(x, y))
#endif

// Rounds two weights or score gradients. Where one of 0 means hidden (ZERO_IS_HIDDEN of lib/scores.glsl), a visible one
// that vanishes becomes -0, whatever its sign was, which is told from 0 by its bits: then what is not finite in the row
// that it is multiplied with does not vanish.
uint pair_of_weights(float x, float y) {
    uint pair = rounded_pair(x, y);
    if (HIDES_KEYS || ISOLATES_ROWS) {
        if ((pair & 0xffff) == 0 && floatBitsToUint(x) != 0) pair |= 0x8000;
        if ((pair & 0xffff0000) == 0 && floatBitsToUint(y) != 0) pair |= 0x80000000;
    }
    return pair;
}

// The bits of those halves of a pair that are not 0.
uint halves_of(uint pair) { return ((pair & 0xffff) != 0 ? 0xffff : 0) | (pair >> 16 != 0 ? 0xffff0000 : 0); }

// Rows a and b of four elements, as four pairs of one element of each. They move as float16, for which compilers have
// one instruction a pair.
uvec4 pairs_of_rows(uvec2 a, uvec2 b) {
    const f16vec2 a01 = unpackFloat2x16(a.x), a23 = unpackFloat2x16(a.y);
    const f16vec2 b01 = unpackFloat2x16(b.x), b23 = unpackFloat2x16(b.y);
    return uvec4(packFloat2x16(f16vec2(a01.x, b01.x)), packFloat2x16(f16vec2(a01.y, b01.y)),
                 packFloat2x16(f16vec2(a23.x, b23.x)), packFloat2x16(f16vec2(a23.y, b23.y)));
}
