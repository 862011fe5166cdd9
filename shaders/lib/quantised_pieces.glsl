// Pieces of rows in blocks (lib/quantised.glsl), for forward_rows.comp: a lane has neighbouring elements of a row, at
// most 16, which lie in one block and so have one factor. It loads them as words, and multiplies by their factor what
// it has summed, not each element. Element by element (H200, decoding, D128) q8_0 took 1.6 times as long as float16.
struct Piece {
    uint words[5];  // four and one more, because the elements may begin in the middle of a word
    uint factors, high;
    bool is_odd;  // the first element lies in a word's upper half
};

// The condition uses ?: because glslang does not fold && and || of specialization constants into a constant: it writes
// branches at the first use, and later uses are invalid code.
#define PIECES_FIT(type, dim, vecs) \
    ((type) >= TYPE_Q8_0 ? ((dim) % (4 * LANES) == 0 ? ((vecs) <= 4 ? (vecs) != 3 : false) : false) : false)
// Returns the place in a block of the lane's first element. It is the same in all rows.
#define FIRST_OF_PIECE(vecs) (lane * 4 * (vecs) % 32)

Piece fetch_piece(uint type, StoredRow of, uint vecs) {
    const RowStart row = of.start;
    const uint first = FIRST_OF_PIECE(vecs), at = BLOCK_AT(type, row, lane * 4 * vecs);
    const uint place = NUMBER_AT(type, at, first) + (row.base.x >> 1 & 1);
    const uvec2 base = uvec2(row.base.x & ~3u, row.base.y);
    Piece piece;
    piece.is_odd = place % 2 != 0;
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (i < vecs) piece.words[i] = UintsIn(base).x[place / 2 + i];
    piece.words[4] = UintsIn(base).x[place / 2 + vecs - 1 + place % 2];
    piece.factors = LOAD_FACTORS(type, of, row, at);
    if (HAS_HIGH_BITS(type)) piece.high = LOAD_HIGH(type, at, first);
    return piece;
}

// Returns the numbers of vec4 `v` of a piece, without their factor. A byte b becomes a float as (2^23 + b) - 2^23,
// which needs no conversion of integers: GPUs have fewer units for those. What it gains was not measured by itself.
vec4 numbers_of_piece(uint type, Piece piece, uint v, uint vecs) {
    const uint behind = piece.words[v + 1 < vecs ? v + 1 : 4];
    uint bytes = piece.is_odd ? piece.words[v] >> 16 | behind << 16 : piece.words[v];
    if (HAS_SIGNED_BYTES(type)) bytes ^= 0x80808080u;
    else if (!HAS_BYTES(type)) bytes = bytes >> FIRST_OF_PIECE(vecs) / 16 * 4 & 0x0f0f0f0f;
    if (HAS_HIGH_BITS(type)) bytes |= SPREAD(piece.high >> 4 * v);
    const uvec4 each = uvec4(bytes) >> uvec4(0, 8, 16, 24) & 0xff;
    if (IS_FLOAT8(type)) return floats_of_float8(type, each);
    if (type == TYPE_IQ4_NL)
        return vec4(number_of_table(each.x), number_of_table(each.y), number_of_table(each.z), number_of_table(each.w));
    const float zero = 8388608.0 + ZERO_OF(type);
    return uintBitsToFloat(each | 0x4b000000) - zero;
}
