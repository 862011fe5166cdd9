// This file says which row of a staged tile holds which key. That is the order in which S and P have their columns.
//
// ELEMENT_LAYOUT has four bits for each of bits 0 .. 3 of an accumulator element's row, then of its column. Their value
// tells where that bit comes from: 8 + i is bit i of the element's number, 7 is none, i < 7 is bit i of the
// invocation's number in the subgroup.
#define SOURCE(b) (ELEMENT_LAYOUT >> (4 * (b)) & 15)

#if defined(TURNED)
uint key_at(uint column) { return column; }
// There is a staged row for each key. ELEMENT_LAYOUT already has the order of keys: lib/matrix_turned.glsl.
#define ROW_AT(key, item, vecs) (P_EXCHANGED ? (key) & ~15 | ((key) & 7) << 1 | (key) >> 3 & 1 : (key))
const bool IN_EIGHTS = false;
#elif defined(BIAS)
// Keys are in order with one exception: if an invocation has columns q * 2 + {0, 1, 8, 9} of 16, as on NVIDIA, and rows
// of the mask lie multiples of 16 bytes apart. It then has keys q * 8 to q * 8 + 7 of every 32, whose mask is one load
// (H200, D64: loading words one by one reaches 167 instead of 205 TFLOP/s).
const bool SIXTEEN_APART = TILE_KV % 32 == 0 ? (N == 16 ? MASK_ROW_BYTES == 16 : false) : false;
const bool FOUR_BY_TWO = SOURCE(4) == 8 ? (SOURCE(5) < 7 ? (SOURCE(6) < 7 ? SOURCE(7) > 8 : false) : false) : false;
const bool IN_EIGHTS = SIXTEEN_APART ? FOUR_BY_TWO : false;
const uint MOVED = IN_EIGHTS ? 30 : 0;  // bits of a key that move; a mask instead of a branch, which would cost more
uint key_at(uint column) {
    return column & ~MOVED | ((column >> 3 & 1) << 1 | (column >> 4 & 1) << 2 | (column >> 1 & 3) << 3) & MOVED;
}
uint row_at(uint key) {
    return key & ~MOVED | ((key >> 1 & 1) << 3 | (key >> 2 & 1) << 4 | (key >> 3 & 3) << 1) & MOVED;
}
// The staged row of the key that item `item` of a round moves: where a round is a power of two of keys, the bits of
// the item and of the invocation are moved apart from each other.
#define ROW_AT(key, item, vecs) \
    (ROUND_OF(vecs) == 0 || (ROUND_OF(vecs) & ROUND_OF(vecs) - 1) != 0 \
         ? row_at(key) : row_at(thread / (vecs)) + row_at((item) * ROUND_OF(vecs)))
#define ROUND_OF(vecs) (THREADS % (vecs) == 0 ? THREADS / (vecs) : 0)
#else
uint key_at(uint column) { return column; }
#define ROW_AT(key, item, vecs) (key)
#endif

#ifdef BIAS
// Elements 2 i and 2 i + 1 are neighbours in a row, and aligned as words.
const bool IN_WORDS = SOURCE(4) == 8 ? MASK_ROW_BYTES % 4 == 0 : false;
#endif
