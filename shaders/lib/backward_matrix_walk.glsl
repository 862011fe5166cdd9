// The loop of the backward on matrix units over walked tiles. A kernel supplies which tiles there are (first_place,
// next_place, is_end), puts walked_qk and walked_v there (place_walked), and says what of a tile exists and is seen
// (exists_whole, is_inner, is_inner_block, sees_block) and which rows of it are dropped (drop_rows).
//
// A tile is plain if all its rows exist and see every key, nothing but the scale makes its scores, and no row has a
// factor or is empty. Plain tiles whose follower exists as a whole are multiplied without a branch (H200, 580.159, D64:
// with one a block 188 TFLOP/s for 192); others go block by block, and blocks that no row of the subgroup sees are left
// out.
//
// The tile that follows is fetched while this one is multiplied, and stored to the other buffer: a barrier a tile.
struct Place {
    uint head;   // of the group
    uint first;  // row or key
};
Rows walked_qk, walked_v;

Place first_place();
Place next_place(Place at);
bool is_end(Place at);
void place_walked(Place at);
bool exists_whole(Place at);                       // all rows of the tile exist, and may be read
bool is_inner(Place at);                           // and every held row and walked row see each other
bool is_inner_block(Work w, Place at, uint block);  // likewise, of a block and the subgroup's rows
bool sees_block(Work w, Place at, uint block);     // some row of them sees some key
Work work_at(Place at);
uint first_key_of(Place at);
void drop_rows(Place at, uint buf, bool odd);     // zeroes walked rows that count for nothing, between barriers

#ifdef KEY_VALUE
vec4 fetched_numbers;

RowStart numbers_of(Place at) {
    Work w = work;
    set_query_tile(w, w.head_kv * group_size() + at.head, at.first);
    return statistics_of(w, min(at.first + min(thread, WALKED - 1), w.last_row));
}
// With one stage, every invocation loads, and those of the first WALKED store: a test around the loads parts the plain
// tile's code. With more, its registers are dearer (H200, 580.159, ms of D64 and D128 at N 4,096 with one stage: 5.70
// and 6.48, with a test 5.93 and 6.47; with two stages: 6.38 and 7.09, with a test 5.83 and 6.24).
void fetch_numbers(Place at) {
    if (STAGES > 1 && thread >= WALKED) return;
    const RowStart from = numbers_of(at);
    fetched_numbers = Vec4sIn(from.base).x[from.at / 4];
}
void store_numbers(uint buf) {
    const uint at = buf + BUF_NUMBERS + thread / 4, i = thread % 4;
    const float factor = fetched_numbers.w != 0 ? 0 : fetched_numbers.z;
    if (thread < WALKED) {
        pool[at][i] = floatBitsToUint(-fetched_numbers.x);
        pool[at + NUMBERS_STRIDE][i] = floatBitsToUint(-fetched_numbers.y);
        pool[at + 2 * NUMBERS_STRIDE][i] = floatBitsToUint(factor);
    }
}
float factor_of(uint buf, uint row) {
    return uintBitsToFloat(pool[buf + BUF_NUMBERS + 2 * NUMBERS_STRIDE + row / 4][row % 4]);
}
// True if a row of the tile has a factor or is empty. It is the same for all subgroups.
bool has_odd_row(uint buf) {
    bool odd = false;
    FOR_EACH(i, MATRIX_STEPS(WALKED, SUBGROUP_SIZE)) {
        const float factor = factor_of(buf, min(i * SUBGROUP_SIZE + lane, WALKED - 1));
        odd = odd || floatBitsToUint(factor) != floatBitsToUint(1.0);
    }
    return subgroupAny(odd);
}
#else
void fetch_numbers(Place at) {}
void store_numbers(uint buf) {}
bool has_odd_row(uint buf) { return false; }
#endif

// Multiplies a plain tile while the next one is staged.
void add_plain_tile(Place next, uint buf, uint other) {
    FOR_EACH(stage, STAGES) {
        if (stage == 0) fetch_numbers(next);
        fetch_whole_stage(walked_qk, walked_v, stage);
        FOR_EACH(i, BLOCKS / STAGES) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            ADD_BLOCK(buf, block, find_plain(buf, block))
        }
        store_stage(other, stage);
        if (stage == 0) store_numbers(other);
    }
}

void find_any(bool finish, Work w, uint first_key, uint buf, uint block) {
    if (finish) find_finished(w, first_key, buf, block);
    else find_plain(buf, block);
}

// Multiplies any tile while the next one is staged.
void add_tile(Place here, Place next, bool plain, uint buf, uint other) {
    const Work w = work_at(here);
    [[dont_unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        if (stage == 0) fetch_numbers(next);
        fetch_stage(walked_qk, walked_v, stage);
        [[dont_unroll]] for (uint i = 0; i < BLOCKS / STAGES; i++) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            if (!sees_block(w, here, block)) continue;
            const bool finish = !plain || !is_inner_block(w, here, block);
            ADD_BLOCK(buf, block, find_any(finish, w, first_key_of(here), buf, block))
        }
        store_stage(other, stage);
        if (stage == 0) store_numbers(other);
    }
}

// Goes through all tiles. `rows_are_plain`: no held row has a factor or is empty.
void walk(bool rows_are_plain) {
    Place here = first_place();
    if (is_end(here)) return;
    place_walked(here);
    barrier();
    FOR_EACH(stage, STAGES) {
        fetch_stage(walked_qk, walked_v, stage);
        store_stage(0, stage);
    }
    fetch_numbers(here);
    store_numbers(0);
    uint buf = 0;
    const bool never_plain = FINISHES_ALL_TILES || MASK_KIND != MASK_NONE || FAR_ROWS;
    bool inner = is_inner(here);
    [[dont_unroll]] for (;;) {
        Place next = next_place(here);
        const bool last = is_end(next);
        if (last) next = here;  // it is fetched once more, for nothing
        place_walked(next);
        barrier();
        const bool odd = has_odd_row(buf), plain = !never_plain && rows_are_plain && !odd;
        const uint other = BUF_SIZE - buf;
        if (plain && inner && exists_whole(next)) {
            add_plain_tile(next, buf, other);
        } else {
            drop_rows(here, buf, odd);
            add_tile(here, next, plain, buf, other);
        }
        if (last) return;
        here = next;
        buf = other;
        inner = is_inner(here);
    }
}
