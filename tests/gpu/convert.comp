#version 460
// Between float32 and 16 bits, a pair an invocation: words of float16 or bfloat16 need no 16-bit storage.
#extension GL_EXT_buffer_reference : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { vec2 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint x[]; };
layout(push_constant, std430) uniform Push {
    Pairs floats;
    Words words;
    uint pairs;
    uint bfloat16;
    uint widen;  // from words to floats
};

uint rounded(float x) {  // to nearest, ties to even; x is finite
    const uint bits = floatBitsToUint(x);
    return bits + 0x7fff + (bits >> 16 & 1) >> 16;
}

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= pairs) return;
    if (widen != 0) {
        const uint word = words.x[i];
        floats.x[i] = bfloat16 != 0 ? vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000))
                                    : unpackHalf2x16(word);
    } else {
        const vec2 x = floats.x[i];
        words.x[i] = bfloat16 != 0 ? rounded(x.x) | rounded(x.y) << 16 : packHalf2x16(x);
    }
}
