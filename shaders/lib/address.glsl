// 64-bit device addresses in uvec2.
//
// An address is the same for a whole workgroup wherever that is possible, and what differs between invocations is a
// 32-bit index behind it: cheaper than 64-bit arithmetic per row, and lavapipe cannot build an address that differs
// between invocations at vector width 512 (see quirks in src/plan).

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
    uint high, low;
    umulExtended(index, stride.x, high, low);
    return uvec2(low, high + index * stride.y);
}
