// Pieces of rows in blocks (lib/quantised.glsl), for forward_rows.comp: a lane has neighbouring elements of a row, at
// most 16, which lie in one block and so have one factor. It loads them as words, and multiplies by their factor what
// it has summed, not each element. Element by element (H200, decoding, D128) q8_0 took 1.6 times as long as float16.
//
// Numbers of 4 or 5 bits with a sign are moved to the upper bits of a byte. There their sign is the byte's, so that one
// step converts them, to numbers 16 or 8 times as large.
struct Piece {
    uint words[4];
    uint last;  // the last two bytes of the elements
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
    const uint number = NUMBER_AT(type, at, first), place = number + (row.base.x >> 1 & 1);
    const uvec2 base = uvec2(row.base.x & ~3u, row.base.y);
    Piece piece;
    piece.is_odd = place % 2 != 0;
    piece.words[0] = UintsIn(base).x[place / 2];
    if (vecs > 1) piece.words[1] = Uints1In(base).x[place / 2];
    if (vecs > 2) piece.words[2] = Uints2In(base).x[place / 2];
    if (vecs > 3) piece.words[3] = Uints3In(base).x[place / 2];
    piece.last = load_one_16bit(row, number + 2 * vecs - 1);
    piece.factors = LOAD_FACTORS(type, of, row, at);
    if (HAS_HIGH_BITS(type)) piece.high = LOAD_HIGH(type, at, first);
    return piece;
}

// The numbers that numbers_of_piece returns are so many times too large.
#define SIZE_OF_NUMBERS(type) ((type) == TYPE_Q4_0 ? 16 : (type) == TYPE_Q5_0 ? 8 : 1)

// Returns the numbers of vec4 `v` of a piece, without their factor. Two words are joined without a branch, because
// neighbouring lanes would take both of its ways.
vec4 numbers_of_piece(uint type, Piece piece, uint v, uint vecs) {
    const uint behind = v + 1 < vecs ? piece.words[v + 1] : piece.last;
    uint bytes = mix(piece.words[v], piece.words[v] >> 16 | behind << 16, piece.is_odd);
    const uint shift = FIRST_OF_PIECE(vecs) / 16 * 4;
    if (type == TYPE_Q4_0) bytes = (bytes << 4 - shift & 0xf0f0f0f0) ^ 0x80808080u;
    else if (type == TYPE_Q5_0)
        bytes = (bytes >> shift << 3 & 0x78787878 | SPREAD(piece.high >> 4 * v) << 3) ^ 0x80808080u;
    else if (!HAS_BYTES(type)) bytes = bytes >> shift & 0x0f0f0f0f;
    if (type == TYPE_Q5_1) bytes |= SPREAD(piece.high >> 4 * v);
    if (HAS_SIGNED_BYTES(type) || SIZE_OF_NUMBERS(type) != 1)
        return vec4(ivec4(bytes << 24, bytes << 16, bytes << 8, bytes) >> 24);
    const uvec4 each = uvec4(bytes) >> uvec4(0, 8, 16, 24) & 0xff;
    if (IS_FLOAT8(type)) return floats_of_float8(type, each);
    if (type == TYPE_IQ4_NL)
        return vec4(number_of_table(each.x), number_of_table(each.y), number_of_table(each.z), number_of_table(each.w));
    return vec4(each);
}
// Returns the factor of the numbers that numbers_of_piece returns, and the least value.
vec2 factors_of_piece(uint type, Piece piece) {
    return FACTORS_OF(type, piece.factors) * vec2(1.0 / SIZE_OF_NUMBERS(type), 1);
}
