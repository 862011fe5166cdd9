// This file has all that depends on where an accumulator keeps its elements: numbers that belong to rows, their maximum
// along a row, the place of an element, the move of P. Each is there in up to three ways: by a known layout, by
// VK_NV_cooperative_matrix2 (macro COOPMAT2), through shared memory.
//
// ELEMENT_LAYOUT (lib/matrix_keys.glsl) is the layout that the probe found, 0 if it found none.
const bool KNOWN = ELEMENT_LAYOUT != 0;

// These are written out because NVIDIA's compiler does not unroll loops over the bits, and what such loops index goes
// to memory (D64: 38 TFLOP/s).
#define OF_ELEMENT(b) (SOURCE(b) >> 3)
#define BIT(b, e) (SOURCE(b) == 7 ? 0 : (SOURCE(b) >= 8 ? (e) >> (SOURCE(b) & 7) : lane >> SOURCE(b)) & 1)
uint place_row(uint e) { return BIT(0, e) | BIT(1, e) << 1 | BIT(2, e) << 2 | BIT(3, e) << 3; }
uint place_column(uint e) { return BIT(4, e) | BIT(5, e) << 1 | BIT(6, e) << 2 | BIT(7, e) << 3; }
// The element's share of its column: place_column(e) - place_column(0).
#define STEP_BIT(b, e) (OF_ELEMENT(b) * ((e) >> (SOURCE(b) & 7) & 1))
uint step_column(uint e) { return STEP_BIT(4, e) | STEP_BIT(5, e) << 1 | STEP_BIT(6, e) << 2 | STEP_BIT(7, e) << 3; }

// An invocation keeps SLOTS numbers of rows for a block. With a known layout there is one for each of its rows, and
// element e belongs to number slot(e); otherwise there is one for each element.
const uint ELEMENTS = M * N / SUBGROUP_SIZE;
const uint BITS_1 = OF_ELEMENT(0), BITS_2 = BITS_1 + OF_ELEMENT(1), BITS_3 = BITS_2 + OF_ELEMENT(2);
const uint SLOTS = KNOWN ? 1 << (BITS_3 + OF_ELEMENT(3)) : ELEMENTS;
#define SLOT_BIT(b, at, e) (OF_ELEMENT(b) * ((e) >> (SOURCE(b) & 7) & 1) << (at))
uint slot(uint e) {
    return KNOWN ? SLOT_BIT(0, 0, e) | SLOT_BIT(1, BITS_1, e) | SLOT_BIT(2, BITS_2, e) | SLOT_BIT(3, BITS_3, e) : e;
}

// A block of floats in the subgroup's scratch.
void put_floats(ACCUMULATOR x, uint at) {
    coopMatStore(x, pool, at, FLOAT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
}
float float_at(uint at, uint row, uint column) {
    return uintBitsToFloat(pool[at + row * FLOAT_STRIDE + column / 4][column % 4]);
}

ACCUMULATOR with_elements(float numbers[SLOTS]) {
    ACCUMULATOR x;
    FOR_EACH(e, ELEMENTS) x[e] = numbers[slot(e)];
    return x;
}

float larger(const in float a, const in float b) { return max(a, b); }
float added(const in float a, const in float b) { return a + b; }

// Combines a number over the invocations that differ in bit b of a place.
#define ACROSS(b, op) \
    if (SOURCE(b) < 7) FOR_EACH(s, SLOTS) numbers[s] = op(numbers[s], subgroupShuffleXor(numbers[s], 1u << SOURCE(b)));

#ifdef TURNED  // the layout is known
#define REDUCE(x, op)
#elif defined(COOPMAT2)
#define REDUCE(x, op) coopMatReduceNV(x, x, gl_CooperativeMatrixReduceRowNV, op);
#else
#define REDUCE(x, op) \
    put_floats(x, scratch); \
    subgroupBarrier(); \
    for (uint row = lane; row < M; row += SUBGROUP_SIZE) { \
        float all = float_at(scratch, row, 0); \
        for (uint n = 1; n < N; n++) all = op(all, float_at(scratch, row, n)); \
        for (uint n = 0; n < N / 4; n++) pool[scratch + row * FLOAT_STRIDE + n] = uvec4(floatBitsToUint(all)); \
    } \
    subgroupBarrier(); \
    coopMatLoad(x, pool, scratch, FLOAT_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    subgroupBarrier();
#endif

// Replaces each number by `op` over all numbers along its row.
#define ALONG_ROWS(name, op) \
    void name(inout float numbers[SLOTS]) { \
        if (KNOWN) { \
            ACROSS(4, op) \
            ACROSS(5, op) \
            ACROSS(6, op) \
            ACROSS(7, op) \
        } else { \
            ACCUMULATOR x = with_elements(numbers); \
            REDUCE(x, op) \
            FOR_EACH(e, ELEMENTS) numbers[e] = x[e]; \
        } \
    }
ALONG_ROWS(max_along_rows, larger)
ALONG_ROWS(sum_along_rows, added)

// Finds the place of each element if the layout is not known. Loads with a stride of 0 repeat the numbers 0, 1, 2 ...
// down each column and along each row; a place is row * 256 + column.
void write_places() {
#ifndef TURNED
    if (KNOWN) return;
    for (uint e = thread; e < MATRIX_PLACES(M, N); e += THREADS)
        pool[POOL_PLACE + e] = floatBitsToUint(vec4(4 * e) + vec4(0, 1, 2, 3));
#endif
}
ACCUMULATOR read_places() {
    ACCUMULATOR places, columns;
    if (!KNOWN) {
        coopMatLoad(places, pool, POOL_PLACE, 0, gl_CooperativeMatrixLayoutColumnMajor);
        coopMatLoad(columns, pool, POOL_PLACE, 0, gl_CooperativeMatrixLayoutRowMajor);
        FOR_EACH(e, ELEMENTS) places[e] = places[e] * 256 + columns[e];
    }
    return places;
}
uvec2 place_of(ACCUMULATOR places, uint e) {
    if (KNOWN) return uvec2(place_row(e), place_column(e));
    const uint place = uint(places[e]);
    return uvec2(place / 256, place % 256);
}

// Two probabilities as operands.
#if defined(F16) || defined(F16_OPERANDS)
#define PAIR f16vec2
PAIR pair_of(float a, float b) { return PAIR(a, b); }
PAIR rounded_pair(float a, float b) { return pair_of(a, b); }
uint word_of_pair(PAIR pair) { return packFloat2x16(pair); }
vec2 floats_of_word(uint word) { return vec2(unpackFloat2x16(word)); }
#else
// These numbers are positive and finite, so two additions round a pair. NVIDIA 580 takes five instructions more to
// convert one to bfloat16 (H200, D128: -13 %).
#define PAIR bf16vec2
spirv_instruction(id = 124) PAIR pair_of_word(uint word);  // OpBitcast
spirv_instruction(id = 124) uint word_of_pair(PAIR pair);
vec2 floats_of_word(uint word) { return uintBitsToFloat(uvec2(word << 16, word & 0xffff0000)); }
PAIR pair_of(float a, float b) {
    return pair_of_word(floatBitsToUint(a) + 0x8000 >> 16 | floatBitsToUint(b) + 0x8000 & 0xffff0000);
}
// Rounds numbers of any sign, and NaN, to nearest, ties to even, whatever the driver's conversions do.
PAIR rounded_pair(float a, float b) { return pair_of_word(bfloat16_bits(a) | bfloat16_bits(b) << 16); }
#endif

// Converts numbers of any sign, and quiet NaN, to nearest; for bfloat16, ties go away from zero. NVIDIA 580 truncates
// to bfloat16 whatever the module asks for: with an execution mode or a decoration RoundingModeRTE, in vectors, and in
// conversions of whole matrices. Half of the last place is added to the bits instead. For a positive NaN, as NVIDIA
// makes it (0x7fffffff), the sum becomes negative, and the maximum keeps the NaN. H200, 580.159, backward of B*N = 16k,
// N 4,096: 5.56 ms at D64 and 4.65 ms at D128; rounded by two fma of 65536 x and 65535 x, 5.99 and 4.92.
#if defined(F16) || defined(F16_OPERANDS)
PAIR converted_pair(float a, float b) { return PAIR(vec2(a, b)); }
#else
PAIR converted_pair(float a, float b) {
    const ivec2 x = ivec2(floatBitsToInt(a), floatBitsToInt(b));
    uvec2 rounded = uvec2(max(x + 0x8000, x));
#ifdef BF16_OPERANDS  // a float32 mask may have any NaN: the sum of a negative one may become positive
    rounded = max(rounded, uvec2(x));
#endif
    return pair_of_word(bitfieldInsert(rounded.y, rounded.x >> 16, 0, 16));
}
#endif

// put_p converts P of one block of rows and one tile of keys, and moves it to p_own. P is positive unless a kernel
// defines P_PAIR.
#ifndef P_PAIR
#define P_PAIR pair_of
#endif
#ifdef TURNED  // in registers
void put_p(uint r, uint n, ACCUMULATOR p) {
    FOR_EACH(i, ELEMENTS / 2) {
        const PAIR own = P_PAIR(p[2 * i], p[2 * i + 1]);
        PAIR low = own;
#ifdef F16
        if (P_EXCHANGED) {
            const uint word = packFloat2x16(own), other = subgroupShuffleXor(word, SUBGROUP_SIZE / 2);
            const PAIR high = unpackFloat2x16(in_lower_half ? other : word);
            low = unpackFloat2x16(in_lower_half ? word : other);
            p_own[r * KEY_STEPS + n][ELEMENTS + 2 * i] = high.x;
            p_own[r * KEY_STEPS + n][ELEMENTS + 2 * i + 1] = high.y;
        }
#endif
        p_own[r * KEY_STEPS + n][2 * i] = low.x;
        p_own[r * KEY_STEPS + n][2 * i + 1] = low.y;
    }
}
void get_p(uint r) {}
#else
void put_p(uint r, uint n, ACCUMULATOR p) {
#ifndef BIAS
    if (P_MOVE == MOVE_FRAGMENT)
#endif
    {
        FOR_EACH(i, ELEMENTS / 2) {
            const PAIR pair = P_PAIR(p[2 * i], p[2 * i + 1]);
            p_own[r * KEY_STEPS + n][2 * i] = pair.x;
            p_own[r * KEY_STEPS + n][2 * i + 1] = pair.y;
        }
    }
#ifndef BIAS
    else if (P_MOVE == MOVE_CONVERT) {
#ifdef COOPMAT2
        p_own[r * KEY_STEPS + n] = LEFT(p);
#endif
    } else if (P_MOVE == MOVE_SHARED) {
#ifdef ROUNDED_ACCUMULATORS
        coopMatStore(ROUNDED(p), pool, scratch + SCRATCH_P + n * N / 8, P_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
#endif
    } else {
        put_floats(p, scratch);
        subgroupBarrier();
        for (uint e = lane; e < M * N / 8; e += SUBGROUP_SIZE) {
            const uint row = e / (N / 8), column = e % (N / 8);
            const uint from = scratch + row * FLOAT_STRIDE + 2 * column;
            const uvec4 low = pool[from], high = pool[from + 1];
            pool[scratch + SCRATCH_P + row * P_STRIDE + n * N / 8 + column] =
                operands_of(uintBitsToFloat(low), uintBitsToFloat(high));
        }
        subgroupBarrier();
    }
#endif
}

// Called when all of a block of rows has been put.
void get_p(uint r) {
    if (P_MOVE < MOVE_SHARED) return;
    subgroupBarrier();
    FOR_EACH(k, KEY_STEPS)
        coopMatLoad(p_own[r * KEY_STEPS + k], pool, scratch + SCRATCH_P + k * K / 8, P_STRIDE,
                    gl_CooperativeMatrixLayoutRowMajor);
    subgroupBarrier();
}
#endif

// True if the output goes to the pool in its storage type, because the way that P takes gives 16-bit numbers. That
// takes half the shared memory and less than half the instructions (H200, D128: by way of floats they are 7,200 of a
// workgroup's 65,700 cycles at N = 512).
#if defined(F16) || defined(BF16)
const bool OUT_ROUNDED = !IS_SPLIT && OUT_TYPE == QUERY_TYPE && P_MOVE != MOVE_SHARED_FLOAT;
#else
const bool OUT_ROUNDED = false;
#endif
#ifdef TURNED
void put_rounded(ACCUMULATOR x, uint at, uint stride) {
#ifdef ROUNDED_ACCUMULATORS
    coopMatStore(ROUNDED(x), pool, at, stride, OWN_ORDER);
#else
    OWN_OPERAND own;
    FOR_EACH(i, ELEMENTS / 2) {
        const PAIR pair = rounded_pair(x[2 * i], x[2 * i + 1]);
        own[2 * i] = pair.x;
        own[2 * i + 1] = pair.y;
    }
    coopMatStore(own, pool, at, stride, OWN_ORDER);
#endif
}
#else
void put_rounded(ACCUMULATOR x, uint at, uint stride) {
#ifndef BIAS
    if (P_MOVE == MOVE_FRAGMENT)
#endif
    {
        LEFT left;
        FOR_EACH(i, ELEMENTS / 2) {
            const PAIR pair = rounded_pair(x[2 * i], x[2 * i + 1]);
            left[2 * i] = pair.x;
            left[2 * i + 1] = pair.y;
        }
        coopMatStore(left, pool, at, stride, gl_CooperativeMatrixLayoutRowMajor);
    }
#ifndef BIAS
    else if (P_MOVE == MOVE_CONVERT) {
#ifdef COOPMAT2
        coopMatStore(LEFT(x), pool, at, stride, gl_CooperativeMatrixLayoutRowMajor);
#endif
    } else if (P_MOVE == MOVE_SHARED) {
#ifdef ROUNDED_ACCUMULATORS
        coopMatStore(ROUNDED(x), pool, at, stride, gl_CooperativeMatrixLayoutRowMajor);
#endif
    }
#endif
}
#endif
