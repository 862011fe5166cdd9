// This file has float masks of 16-bit elements in the plain tiles of the backward on matrix units
// (lib/backward_matrix_walk.glsl). Masks in other tiles and of other kinds are read element by element (find_finished).
//
// A mask becomes a left operand, whose elements lie where those of an accumulator do (MOVE_FRAGMENT), so each
// invocation has the mask of its own scores. A subgroup stages the mask of its own scores: the next tile's is on its
// way while this tile is multiplied, and is stored at its end. There is no barrier within a tile, because with one no
// product would overlap the exponentials of the block before it.
//
// Turned products stage no masks. Each invocation loads the mask of its own scores of a block before the block is
// multiplied: its eight elements of an accumulator are neighbouring walked rows, which are eight keys in 16 bytes in
// backward_matrix_query.
const bool PLAIN_SCORES = !FINISHES_ALL_TILES && (!HIDES_KEYS || MASK_IS_PLAIN || HAS_BLOCK_MAP);

// True if the kernel loads no vec4 of the mask, or if all that it loads are aligned. Otherwise the mask's elements are
// loaded one by one, and give the same bits.
#if defined(TURNED) && defined(KEY_VALUE)
bool mask_is_aligned() { return true; }
#else
bool mask_is_aligned() { return !MASK_IS_PLAIN || arguments().x.mask.x % 16 == 0; }
#endif
#ifdef TURNED
#define MASKS_MAY_BE_PLAIN mask_is_aligned()
#else
#define MASKS_MAY_BE_PLAIN true
#endif

// True if the workgroup's masks can be fetched by the tile or by the block. `held_exist` says that all held rows exist.
bool masks_are_plain(bool held_exist) {
    if (!HIDES_KEYS || HAS_BLOCK_MAP) return true;  // of a block map's tiles each is asked
    return MASK_IS_PLAIN && held_exist && mask_key_step() != 0 && MASKS_MAY_BE_PLAIN;
}

// Address of the mask of the subgroup's first held row and walked row `first_walked`. `w`: of the head, with the held
// query rows or with query row 0. `first_held`: the subgroup's first key, if it holds keys.
uint mask_stride;            // from query to query, in vec4
uvec2 mask_next;             // such an address, of the next walked tile
uvec2 mask_of_tile(Work w, uint first_held, uint first_walked) {
    const MaskRows mask = mask_rows(w);
    mask_stride = mask.stride.x / 8;
#ifdef KEY_VALUE
    const uint row = first_walked, key = first_held;
#else
    const uint row = subgroup_row, key = first_walked;
#endif
    return address_add(mask.base, address_add(mul_wide(row * 2, mask.stride), mul_wide(2, uvec2(key, 0))));
}

// Returns the address that lies so many walked rows behind.
uvec2 mask_moved(uvec2 at, uint walked_rows) {
#ifdef KEY_VALUE
    return address_add(at, mul_wide(walked_rows, uvec2(16 * mask_stride, 0)));
#else
    return address_add(at, mul_wide(2, uvec2(walked_rows, 0)));
#endif
}

// Masks of the scores in registers, MASKS_OF_ROW for each row block.
#ifndef TURNED
#define MASK_OF(r, n, e) float(masks[(r) * MASKS_OF_ROW + (n)][e])
void fetch_block_masks(uint block) {}
#endif
#ifdef MASK_GRADIENT
const uint MASKS_OF_ROW = TILE_KEYS / N;
LEFT masks[MASK_IS_PLAIN ? ROW_BLOCKS * MASKS_OF_ROW : 1];

void hold_all_masks(uvec2 base) {
#if defined(F16) || defined(BF16)
    if (!MASK_IS_PLAIN) return;
    if (!mask_is_aligned()) {
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(t, MASKS_OF_ROW)
                FOR_EACH(e, ELEMENTS) {
                    const uint row = r * M + place_row(e), key = t * N + place_column(e);
                    const uint bits = load_one_16bit(RowStart(base, 0), row * mask_stride * 8 + key);
                    masks[r * MASKS_OF_ROW + t][e] = ELEMENT(float_of(QUERY_TYPE, bits));
                }
        return;
    }
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(t, MASKS_OF_ROW)
            coopMatLoad(masks[r * MASKS_OF_ROW + t], Uvec4sIn(base).x, r * M * mask_stride + t * N / 8, mask_stride,
                        gl_CooperativeMatrixLayoutRowMajor);
#endif
}
#elif defined(TURNED)
uvec4 mask_words[MASK_IS_PLAIN ? ROW_BLOCKS * BLOCK_TILES : 1];  // eight elements of each accumulator of a block
uvec2 mask_here;                                                 // mask_of_tile of the tile at hand
#define MASK_OF(r, n, e) floats_of(QUERY_TYPE, mask_words[(r) * BLOCK_TILES + (n)][(e) / 2])[(e) % 2]

// Returns the place of a score's mask, in bytes from mask_here.
uint place_in_mask(uint held_row, uint walked_row) {
#ifdef KEY_VALUE
    return walked_row * mask_stride * 16 + held_row * 2;
#else
    return held_row * mask_stride * 16 + walked_row * 2;
#endif
}
// mask_at does what load_one_16bit does, but written so RADV adds the uniform part on the scalar unit (navi31, D64,
// dkey and dvalue: 672 instead of 721 clocks).
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer HalfIn { uint16_t x; };
uint mask_at(uint uniform_offset, uint offset) {
    return uint(HalfIn(packUint2x32(mask_here) + uint64_t(uniform_offset) + uint64_t(offset)).x);
}

void fetch_masks(uvec2 base) {}
void stage_masks(uvec2 base) { mask_here = base; }
void store_masks() { mask_here = mask_next; }
void hold_masks(uint block) {}
void fetch_block_masks(uint block) {
    if (!MASK_IS_PLAIN) return;
    const uint own = place_in_mask(place_row(0), place_column(0));  // the same in all blocks
    FOR_EACH(n, BLOCK_TILES)
        FOR_EACH(r, ROW_BLOCKS) {
            const uint x = r * BLOCK_TILES + n, at = place_in_mask(r * M, block * BLOCK + n * N);
#ifdef KEY_VALUE
            FOR_EACH(i, ELEMENTS / 2) {
                const uint next = at + place_in_mask(0, 2 * i);
                mask_words[x][i] = mask_at(next, own) | mask_at(next + place_in_mask(0, 1), own) << 16;
            }
#else
            mask_words[x] = fetch_at(mask_here, at, own);
#endif
        }
}
#else
const uint MASK_VECS = MASK_KEYS / 8, MASK_ITEMS = MATRIX_STEPS(MASK_ROWS * MASK_VECS, SUBGROUP_SIZE);
uint mask_share = POOL_MASKS + subgroup * MASK_SIZE;
const uint MASKS_OF_ROW = BLOCK_TILES;
LEFT masks[MASK_IS_PLAIN ? ROW_BLOCKS * MASKS_OF_ROW : 1];
uvec4 mask_words[MASK_IS_PLAIN ? MASK_ITEMS : 1];

void fetch_masks(uvec2 base) {
#if defined(F16) || defined(BF16)
    FOR_EACH(i, MASK_ITEMS) {
        const uint e = min(i * SUBGROUP_SIZE + lane, MASK_ROWS * MASK_VECS - 1);
        mask_words[i] = Uvec4sIn(base).x[e / MASK_VECS * mask_stride + e % MASK_VECS];
    }
#endif
}
uvec4 eight_singly(uvec2 base, uint first) {
    uvec4 eight = uvec4(0);
#if defined(F16) || defined(BF16)
    for (uint i = 0; i < 8; i++) eight[i / 2] |= load_one_16bit(RowStart(base, 0), first + i) << (16 * (i % 2));
#endif
    return eight;
}
void store_masks() {
    subgroupBarrier();
    FOR_EACH(i, MASK_ITEMS) {
        const uint e = i * SUBGROUP_SIZE + lane;
        if (e < MASK_ROWS * MASK_VECS) pool[mask_share + e / MASK_VECS * MASK_STRIDE + e % MASK_VECS] = mask_words[i];
    }
}
// Stages this subgroup's masks of a tile, and waits for them.
void stage_masks(uvec2 base) {
    if (mask_is_aligned()) {
        fetch_masks(base);
        store_masks();
    } else {
        subgroupBarrier();
        for (uint e = lane; e < MASK_ROWS * MASK_VECS; e += SUBGROUP_SIZE)
            pool[mask_share + e / MASK_VECS * MASK_STRIDE + e % MASK_VECS] =
                eight_singly(base, (e / MASK_VECS * mask_stride + e % MASK_VECS) * 8);
    }
    subgroupBarrier();
}
void hold_masks(uint block) {
    if (!MASK_IS_PLAIN) return;
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(n, BLOCK_TILES) {
#ifdef KEY_VALUE
            const uint at = mask_share + (block * BLOCK + n * N) * MASK_STRIDE + r * M / 8;
            coopMatLoad(masks[r * MASKS_OF_ROW + n], pool, at, MASK_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
#else
            const uint at = mask_share + r * M * MASK_STRIDE + (block * BLOCK + n * N) / 8;
            coopMatLoad(masks[r * MASKS_OF_ROW + n], pool, at, MASK_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
#endif
        }
}
#endif
