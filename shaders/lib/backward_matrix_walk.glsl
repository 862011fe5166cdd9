// The loop of the backward on matrix units over walked tiles, of each of `walked_heads` heads. A kernel supplies which
// rows are walked (walked, inner), where they lie (place_head), and says what of a tile is seen (is_inner_block,
// sees_block) and which rows of it are dropped (drop_rows).
//
// A tile is plain if all its rows exist and see every key, nothing but the scale makes its scores, and no row has a
// factor or is empty. Plain tiles whose follower exists as a whole are multiplied without a branch (H200, 580.159, D64:
// with one a block 188 TFLOP/s for 192); others go block by block, and blocks that no row of the subgroup sees are left
// out.
//
// The tile that follows is fetched while this one is multiplied, and stored to the other buffer: a barrier a tile.
// Whatever decides about a tile is known before its barrier, and takes few instructions: two subgroups of an SM's
// quarter cannot hide much between the products.
struct Place {
    uint head;   // of the group
    uint first;  // row or key
};
uvec2 walked;  // begin .. end-1: the rows that are walked
uvec2 inner;   // begin .. end-1: those which exist, and which see or are seen by all held rows
Rows walked_qk, walked_v;

#ifdef KEY_VALUE
#define walked_heads() group_size()
#else
#define walked_heads() 1
#endif
void place_head(Place at);                          // puts walked_qk and walked_v to the place
bool has_place(Place at);                           // the dispatch goes through it
bool is_inner_block(Work w, Place at, uint block);  // its rows are inner ones to the subgroup's rows
bool sees_block(Work w, Place at, uint block);      // some row of them sees some key
Work work_at(Place at);
uvec2 mask_of(Place at);                            // address of the mask of plain blocks there
uint first_key_of(Place at);
void drop_rows(Place at, uint buf, bool odd);       // zeroes walked rows that count for nothing, between barriers

bool is_end(Place at) { return at.head >= walked_heads(); }
Place first_of(uint head) { return Place(head, walked.x / WALKED * WALKED); }
Place next_place(Place at) {
    at.first += WALKED;
    return at.first < walked.y ? at : first_of(at.head + 1);
}
// The place itself or the next one that the dispatch goes through.
Place skipped(Place at) {
    if (IS_RESUMED)
        [[dont_unroll]] while (!is_end(at) && !has_place(at)) at = next_place(at);
    return at;
}
bool exists_whole(Place at) { return at.first >= walked_qk.begin && at.first + WALKED <= walked_qk.end; }

#ifdef KEY_VALUE
Rows walked_statistics;
// Every subgroup loads them for itself, so that it knows before the barrier whether the tile has an odd row.
const uint NUMBER_ITEMS = MATRIX_STEPS(WALKED, SUBGROUP_SIZE);
struct Numbers {
    vec4 of_row[NUMBER_ITEMS];
};

void fetch_numbers(out Numbers numbers) {
    FOR_EACH(i, NUMBER_ITEMS) {
        const RowStart from = row_start(walked_statistics, walked_statistics.first + i * SUBGROUP_SIZE + lane, 4);
        numbers.of_row[i] = Vec4sIn(from.base).x[from.at / 4];
    }
}
// Returns true if this invocation has seen a row of the tile that has a factor or is empty.
bool store_numbers(uint buf, Numbers numbers) {
    bool odd = false;
    FOR_EACH(i, NUMBER_ITEMS) {
        const uint row = i * SUBGROUP_SIZE + lane, at = buf + BUF_NUMBERS + row / 4;
        const float factor = numbers.of_row[i].w != 0 ? 0 : numbers.of_row[i].z;
        odd = odd || floatBitsToUint(factor) != floatBitsToUint(1.0);
        if (subgroup * WALKED + row < WALKED) {  // one test: a second one parts the plain tile's code
            pool[at][row % 4] = floatBitsToUint(-numbers.of_row[i].x);
            pool[at + NUMBERS_STRIDE][row % 4] = floatBitsToUint(-numbers.of_row[i].y);
            pool[at + 2 * NUMBERS_STRIDE][row % 4] = floatBitsToUint(factor);
        }
    }
    return odd;
}
float factor_of(uint buf, uint row) {
    return uintBitsToFloat(pool[buf + BUF_NUMBERS + 2 * NUMBERS_STRIDE + row / 4][row % 4]);
}
#else
struct Numbers {
    uint none;
};
void fetch_numbers(out Numbers numbers) {}
bool store_numbers(uint buf, Numbers numbers) { return false; }
#endif

void move_walked(Place at, uint head) {
    if (at.head != head) {
        place_head(at);
        return;
    }
    walked_qk = tile_after(walked_qk, at.first);
    walked_v = tile_after(walked_v, at.first);
#ifdef KEY_VALUE
    walked_statistics = tile_after(walked_statistics, at.first);
#endif
}

// Multiplies a plain tile while the next one is staged. Returns what store_numbers does.
bool add_plain_tile(uint buf, uint other) {
    bool odd = false;
    if (MASK_IS_PLAIN) fetch_masks(mask_next);
    FOR_EACH(stage, STAGES) {
        Fetched fetched;
        Numbers numbers;
        if (stage == 0) fetch_numbers(numbers);
        fetch_whole_stage(walked_qk, walked_v, stage, fetched);
        FOR_EACH(i, BLOCKS / STAGES) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            ADD_BLOCK(buf, block, false, find_plain(buf, block, 0))
        }
        store_stage(other, stage, fetched);
        if (stage == 0) odd = store_numbers(other, numbers);
    }
    if (MASK_IS_PLAIN) store_masks();
    return odd;
}

void find_any(bool finish, Work w, uint first_key, uint buf, uint block) {
    if (finish) find_finished(w, first_key, buf, block);
    else find_plain(buf, block, 0);
}

// Multiplies any tile while the next one is staged. Returns what store_numbers does. `has_plain_masks`: the tile is
// plain, but its masks are loaded one by one.
bool add_tile(Place here, bool plain, bool has_plain_masks, uint buf, uint other) {
    const Work w = work_at(here);
    bool odd = false;
    if (MASK_IS_PLAIN && has_plain_masks) stage_masks_singly(mask_here);
    [[dont_unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        Fetched fetched;
        Numbers numbers;
        if (stage == 0) fetch_numbers(numbers);
        fetch_stage(walked_qk, walked_v, stage, fetched);
        [[dont_unroll]] for (uint i = 0; i < BLOCKS / STAGES; i++) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            if (!sees_block(w, here, block)) continue;
            const bool finish = !has_plain_masks && (!plain || !is_inner_block(w, here, block));
            ADD_BLOCK(buf, block, finish, find_any(finish, w, first_key_of(here), buf, block))
        }
        store_stage(other, stage, fetched);
        if (stage == 0) odd = store_numbers(other, numbers);
    }
    return odd;
}

uvec2 mask_after(Place here, Place next) {
    return next.head == here.head ? mask_moved(mask_here, next.first - here.first) : mask_of(next);
}

// Goes through all tiles. `rows_are_plain`: no held row has a factor or is empty, and their masks are plain.
void walk(bool rows_are_plain) {
    Place here = walked.x < walked.y ? skipped(first_of(0)) : Place(walked_heads(), 0);
    if (is_end(here)) return;
    place_head(here);
    barrier();
    FOR_EACH(stage, STAGES) {
        Fetched fetched;
        fetch_stage(walked_qk, walked_v, stage, fetched);
        store_stage(0, stage, fetched);
    }
    Numbers numbers;
    fetch_numbers(numbers);
    bool saw_odd = store_numbers(0, numbers);
    uint buf = 0;
    bool has_masks = false;  // those of the tile are staged
    const bool aligned = mask_is_aligned();
    if (MASK_IS_PLAIN) mask_here = mask_of(here);
    const bool can_be_plain = rows_are_plain && PLAIN_SCORES && !FAR_ROWS;
    [[dont_unroll]] for (;;) {
        const Place next = skipped(next_place(here));
        const bool last = is_end(next);
        if (MASK_IS_PLAIN) mask_next = mask_after(here, last ? here : next);
        if (!last) move_walked(next, here.head);  // the last one is fetched once more, for nothing
        const bool inside = can_be_plain && here.first >= inner.x && here.first + WALKED <= inner.y;
        const bool quick = inside && exists_whole(last ? here : next);
        const bool odd = subgroupAny(saw_odd);  // the same for all subgroups; in this place the compiler knows it
        const uint other = BUF_SIZE - buf;
        barrier();
        if (quick && !odd && aligned) {
            if (MASK_IS_PLAIN && !has_masks) {
                fetch_masks(mask_here);
                store_masks();
                barrier();
            }
            saw_odd = add_plain_tile(buf, other);
            has_masks = true;
        } else {
            has_masks = false;
            drop_rows(here, buf, odd);
            saw_odd = add_tile(here, can_be_plain && !odd, MASK_IS_PLAIN && quick && !odd, buf, other);
        }
        if (last) return;
        here = next;
        mask_here = mask_next;
        buf = other;
    }
}
