// Float masks of 16-bit elements in the plain tiles of the backward on matrix units (lib/backward_matrix_walk.glsl). A
// mask becomes a left operand, whose elements lie where those of an accumulator do (MOVE_FRAGMENT): so each invocation
// has the mask of its own scores. Masks in other tiles and of other kinds are read element by element (find_finished).
//
// A subgroup stages the mask of its scores for itself: from global memory to registers while S is multiplied, then
// through the pool. Operands loaded from global memory as they are take longer, because an instruction then touches
// eight rows for four bytes an invocation (H200, 580.159, D64, N 4,096, the passes for dquery and for dkey and dvalue:
// 4.55 and 6.03 ms, for 2.36 and 3.42 without any loads).
const bool PLAIN_SCORES = !FINISHES_ALL_TILES && (MASK_KIND == MASK_NONE || MASK_IS_PLAIN);

// True if that holds for the workgroup. `held_exist`: all its held rows do, so that their mask may be read.
bool masks_are_plain(bool held_exist) {
    if (MASK_KIND == MASK_NONE) return true;
    return MASK_IS_PLAIN && held_exist && mask_key_step() != 0 && arguments().x.mask.x % 16 == 0;
}

// Address of the mask of the subgroup's first held row and walked row `first_walked`. `w`: of the head, with the held
// query rows or with query row 0. `first_held`: the subgroup's first key, if it holds keys.
uint mask_stride;  // from query to query, in vec4
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

// The address so many walked rows behind.
uvec2 mask_moved(uvec2 at, uint walked_rows) {
#ifdef KEY_VALUE
    return address_add(at, mul_wide(walked_rows, uvec2(16 * mask_stride, 0)));
#else
    return address_add(at, mul_wide(2, uvec2(walked_rows, 0)));
#endif
}

// Masks of the scores in registers: MASKS_OF_ROW for each row block, those of a block from number FIRST_MASK on.
#ifdef MASK_GRADIENT
const uint MASKS_OF_ROW = TILE_KEYS / N;
LEFT masks[MASK_IS_PLAIN ? ROW_BLOCKS * MASKS_OF_ROW : 1];

void hold_all_masks(uvec2 base) {
#if defined(F16) || defined(BF16)
    if (MASK_IS_PLAIN)
        FOR_EACH(r, ROW_BLOCKS)
            FOR_EACH(t, MASKS_OF_ROW)
                coopMatLoad(masks[r * MASKS_OF_ROW + t], Uvec4sIn(base).x, r * M * mask_stride + t * N / 8,
                            mask_stride, gl_CooperativeMatrixLayoutRowMajor);
#endif
}
#else
const uint MASK_VECS = MASK_KEYS / 8, MASK_ITEMS = MATRIX_STEPS(MASK_ROWS * MASK_VECS, SUBGROUP_SIZE);
uint mask_share = POOL_MASKS + subgroup * MASK_SIZE;
#ifdef KEY_VALUE
const uint MASK_UNITS = 1, MASKS_OF_ROW = BLOCK_TILES;
#else  // staged are the masks of a row block at a time
const uint MASK_UNITS = ROW_BLOCKS, MASKS_OF_ROW = WALKED / N;
#endif
LEFT masks[MASK_IS_PLAIN ? ROW_BLOCKS * MASKS_OF_ROW : 1];
uvec4 mask_words[MASK_IS_PLAIN ? MASK_UNITS * MASK_ITEMS : 1];
uvec2 mask_here, mask_next;  // addresses of the masks of this walked tile and the next one

void fetch_mask_words(uvec2 base, uint first_row) {
#if defined(F16) || defined(BF16)
    FOR_EACH(i, MASK_UNITS * MASK_ITEMS) {
        const uint e = min(i % MASK_ITEMS * SUBGROUP_SIZE + lane, MASK_ROWS * MASK_VECS - 1);
        const uint row = first_row + i / MASK_ITEMS * M + e / MASK_VECS;
        mask_words[i] = Uvec4sIn(base).x[row * mask_stride + e % MASK_VECS];
    }
#endif
}
void stage_mask_words(uint unit) {
    FOR_EACH(item, MASK_ITEMS) {
        const uint e = item * SUBGROUP_SIZE + lane;
        if (e < MASK_ROWS * MASK_VECS)
            pool[mask_share + e / MASK_VECS * MASK_STRIDE + e % MASK_VECS] = mask_words[unit * MASK_ITEMS + item];
    }
    subgroupBarrier();
}

// What a plain tile does with masks: before its first block, and in each block before S is multiplied, before the
// scores become P, and at the end. A block's masks are held in registers before the scores become P.
#ifdef KEY_VALUE  // the masks of the block that follows are on their way during a block: half a tile's latency is not enough
#define FIRST_MASK(block) 0
void begin_masks(bool are_staged) {
    if (!MASK_IS_PLAIN || are_staged) return;
    fetch_mask_words(mask_here, 0);
    stage_mask_words(0);
}
void fetch_masks(uint block) {
    if (!MASK_IS_PLAIN) return;
    if (block + 1 < BLOCKS) fetch_mask_words(mask_here, (block + 1) * BLOCK);
    else fetch_mask_words(mask_next, 0);
}
void hold_masks(uint block) {
    if (!MASK_IS_PLAIN) return;
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(n, BLOCK_TILES)
            coopMatLoad(masks[r * MASKS_OF_ROW + n], pool, mask_share + n * N * MASK_STRIDE + r * M / 8, MASK_STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
    subgroupBarrier();
}
void end_masks() {
    if (MASK_IS_PLAIN) stage_mask_words(0);
}
#else
#define FIRST_MASK(block) ((block) * BLOCK_TILES)
void begin_masks(bool are_staged) {}
void fetch_masks(uint block) {
    if (MASK_IS_PLAIN && block == 0) fetch_mask_words(mask_here, 0);
}
void hold_masks(uint block) {
    if (!MASK_IS_PLAIN || block != 0) return;
    FOR_EACH(unit, MASK_UNITS) {
        stage_mask_words(unit);
        FOR_EACH(t, MASKS_OF_ROW)
            coopMatLoad(masks[unit * MASKS_OF_ROW + t], pool, mask_share + t * N / 8, MASK_STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
    }
}
void end_masks() {}
#endif
#endif
