// 64-bit device addresses in uvec2, and loads and stores through them.
//
// An address is the same for a whole workgroup wherever that is possible, and what differs between invocations is a
// 32-bit index behind it: cheaper than 64-bit arithmetic per row, and lavapipe cannot build an address that differs
// between invocations at vector width 512 (see quirks in src/plan).
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer FloatsIn { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4sIn { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer FloatsOut { float x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Vec4sOut { vec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer WideStridesIn { WideStrides x; };

uvec2 address_add(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

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

// Where a row begins: `at` elements behind an address.
struct RowStart {
    uvec2 base;
    uint at;
};

// Elements d .. d+3 of a row, zero from `extent` on. Reads nothing outside 0 .. extent-1, and has no branch: what does
// not exist is read from the last place that does, then dropped. `inside` promises that d+3 < extent.
vec4 load4(RowStart row, uint d, uint extent, bool inside) {
    if (WIDE_LOADS != 0 && inside) return Vec4sIn(row.base).x[(row.at + d) / 4];
    if (WIDE_LOADS != 0 && extent % 4 == 0) {
        const vec4 x = Vec4sIn(row.base).x[(row.at + min(d, extent - 4)) / 4];
        return d < extent ? x : vec4(0);
    }
    vec4 x;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const float y = FloatsIn(row.base).x[row.at + min(d + i, extent - 1)];
        x[i] = d + i < extent ? y : 0.0;
    }
    return x;
}

void store4(RowStart row, uint d, uint extent, vec4 x) {
    if (WIDE_LOADS != 0 && d + 4 <= extent) {
        Vec4sOut(row.base).x[(row.at + d) / 4] = x;
        return;
    }
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (d + i < extent) FloatsOut(row.base).x[row.at + d + i] = x[i];
}
