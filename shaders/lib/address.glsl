// 64-bit device addresses in uvec2, and loads and stores through them.
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer FloatIn { float x; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Float4In { vec4 x; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer FloatOut { float x; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Float4Out { vec4 x; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer WideStridesIn { WideStrides x; };

uvec2 address_add(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 address_add(uvec2 a, uint bytes) { return address_add(a, uvec2(bytes, 0)); }

// index * stride in full 64 bits: 1,000,000 keys of a (batch, seq, head, dim) tensor pass 4 GiB.
uvec2 mul_wide(uint index, uint stride) {
    uint high, low;
    umulExtended(index, stride, high, low);
    return uvec2(low, high);
}

uvec2 mul_wide(uint index, uvec2 stride) {
    uvec2 product = mul_wide(index, stride.x);
    return uvec2(product.x, product.y + index * stride.y);
}

// Elements d .. d+3 of the row at `row`, zero from `extent` on. Reads nothing outside 0 .. extent-1, and has no branch:
// what does not exist is read from the last place that does, then dropped. `inside` promises that d+3 < extent.
vec4 load4(uvec2 row, uint d, uint extent, bool inside) {
    if (WIDE_LOADS != 0 && inside) return Float4In(address_add(row, d * 4)).x;
    if (WIDE_LOADS != 0 && extent % 4 == 0) {
        const vec4 x = Float4In(address_add(row, min(d, extent - 4) * 4)).x;
        return d < extent ? x : vec4(0);
    }
    vec4 x;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const float y = FloatIn(address_add(row, min(d + i, extent - 1) * 4)).x;
        x[i] = d + i < extent ? y : 0.0;
    }
    return x;
}

void store4(uvec2 row, uint d, uint extent, vec4 x) {
    if (WIDE_LOADS != 0 && d + 4 <= extent) {
        Float4Out(address_add(row, d * 4)).x = x;
        return;
    }
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (d + i < extent) FloatOut(address_add(row, (d + i) * 4)).x = x[i];
}
