// The loop of the backward on matrix units over walked tiles, of each of `walked_heads` heads. A kernel supplies which
// rows are walked (walked, inner), where they lie (place_head), and says what of a tile is seen (is_inner_block,
// sees_block) and which rows of it are dropped (drop_rows).
//
// Tiles that a block map hides are passed over.
//
// A tile is plain if all its rows exist and see every key, if a block map says so of its blocks, if nothing but the
// scale and a mask that is plain makes its scores, or slopes that they begin as (terms_change() is false of it), and if
// no row has a factor or is empty. Plain tiles that are followed by a whole tile or by none, and whose masks are
// aligned, are multiplied without a branch (H200, 580.159, D64: 192 TFLOP/s; 188 with one a block). Others go block by
// block, and blocks that no row of the subgroup sees are left out.
//
// The tile that follows is fetched while this one is multiplied, and stored to the other buffer: a barrier a tile.
// Few instructions stand between two plain tiles, because the two subgroups of an SM's quarter cannot hide many. So
// plain tiles have a loop of their own, and what changes from tile to tile is counted, not found again: NVIDIA's
// compiler otherwise computes again for each tile what is the same for all (H200, 580.159, D128, N 4,096, lagging
// pairs: 3.5 instead of 4.4 ms for dkey, dvalue and dS).
struct Place {
    uint head;   // of the group
    uint first;  // row or key
};
uvec2 walked;  // begin .. end-1: the rows that are walked
uvec2 inner;   // begin .. end-1: those which exist, and which see or are seen by all held rows
Rows walked_qk, walked_v;  // of the whole head: the tile's first row is 0
uint next_first;           // row or key: the first one of the tile that is fetched

#ifdef KEY_VALUE
#define walked_heads() group_size()
#else
#define walked_heads() 1
#endif
void place_head(uint head);                         // puts walked_qk and walked_v to the head of the group
uint step_of(Place at);                             // the tile's number among the steps that dispatches share
bool is_inner_block(Work w, Place at, uint block);  // all rows of the block see, or are seen by, the subgroup's rows
#ifdef KEY_VALUE
void place_spill(Place at);
void move_spill(uint rows);  // to the tile so many rows behind
#endif
bool sees_block(Work w, Place at, uint block);      // some row of the two sees some key
void begin_rows(Place at, uint first, uint count, bool plain);  // called before so many walked rows: begin_tile()
Work work_at(Place at);
uvec2 mask_of(Place at);                            // address of the mask of plain blocks there
uint first_key_of(Place at);
uint first_link(Place at);                          // index of the link of tile 0 (lib/tile_links.glsl)
void drop_rows(Place at, uint buf, bool odd);       // zeroes walked rows that count for nothing, between barriers

// Returns the first row of a head's first tile in this dispatch, and of the tile behind its last one.
uvec2 tiles_of_head(uint head) {
    uvec2 tiles = uvec2(walked.x / WALKED, (walked.y + WALKED - 1) / WALKED);
    if (IS_RESUMED) {
        const uint first_step = step_of(Place(head, 0));
        tiles.x = max(tiles.x, max(push.first_step, first_step) - first_step);
        tiles.y = min(tiles.y, max(push.end_step, first_step) - first_step);
        tiles.x = min(tiles.x, tiles.y);  // of a head behind the end: its number of rows may not fit 32 bits
    }
    return tiles * WALKED;
}

// Without links a window has the classes that the block map gives walked tiles, a bit each: as many as a subgroup finds
// at once.
struct Window {
    uint head, first;  // `first`: the tile of bit 0
    uint seen, plain;
};
const uint WINDOW = SUBGROUP_SIZE < 32 ? SUBGROUP_SIZE : 32;
Window window = Window(0, 0x80000000u, 0, 0);

// Returns the first tile from `at` on that the block map does not hide. From `end` on there is none.
WalkedTile tile_in_window(Place at, uint end) {
    uint tile = at.first / WALKED;
    [[dont_unroll]] while (tile * WALKED < end) {
        if (tile - window.first >= WINDOW || at.head != window.head) {
            const Place own = Place(at.head, (tile + lane % WINDOW) * WALKED);
            const Work w = work_at(own);
            const uint kind = class_of_blocks(w, uvec2(w.first_row, w.last_row), keys_from(first_key_of(own)));
            const uint seen = subgroupBallot(kind != CLASS_HIDDEN).x, plain = subgroupBallot(kind == CLASS_PLAIN).x;
            window = Window(at.head, tile, seen, plain);
        }
        const uint rest = window.seen >> (tile - window.first);
        if (rest != 0) {
            const uint bit = tile + findLSB(rest) - window.first;
            return WalkedTile((window.first + bit) * WALKED, (window.plain >> bit & 1) != 0);
        }
        tile = window.first + WINDOW;
    }
    return WalkedTile(tile * WALKED, false);
}

Walk tile_walk;
// Returns the first tile from `at` on that the block map does not hide. From `end` on there is none.
WalkedTile first_walked(Place at, uint end) {
    if (!HAS_BLOCK_MAP) return WalkedTile(at.first, true);
    if (!HAS_LINKS) return tile_in_window(at, end);
    tile_walk.row = first_link(at);
    return begin_walk(tile_walk, at.first);
}
// Returns the next one behind `at`, the tile that was returned last.
WalkedTile next_walked(Place at, uint end) {
    if (HAS_LINKS) return go_on_walk(tile_walk);
    return first_walked(Place(at.head, at.first + WALKED), end);
}

// Returns the range begin .. end-1 of a tile's first row for which the tile is an inner one and is followed by a whole
// tile or by none.
uvec2 inner_tiles(uvec2 tiles) {
    const uint last = tiles.y - WALKED;
    uint end = min(max(inner.y, WALKED) - WALKED + 1, tiles.y);
    if (last + WALKED > walked_qk.end) end = min(end, max(last, WALKED) - WALKED);
    return uvec2(inner.x, inner.y < WALKED ? 0 : end);
}

#ifdef KEY_VALUE
Rows walked_statistics;
// Every subgroup loads the rows' numbers for itself, so that it knows before the barrier whether the tile has an odd
// row.
const uint NUMBER_ITEMS = MATRIX_STEPS(WALKED, SUBGROUP_SIZE);
struct Numbers {
    vec4 of_row[NUMBER_ITEMS];
};

#define FETCH_NUMBERS(row_start_of) \
    FOR_EACH(i, NUMBER_ITEMS) { \
        const uint row = next_first + min(i * SUBGROUP_SIZE + lane, WALKED - 1); \
        const RowStart from = row_start_of(walked_statistics, row, 4); \
        numbers.of_row[i] = Vec4sIn(from.base).x[from.at / 4]; \
    }
void fetch_numbers(out Numbers numbers) { FETCH_NUMBERS(row_start) }
void fetch_inner_numbers(out Numbers numbers) { FETCH_NUMBERS(row_of_whole_tile) }
// Returns true if this invocation has seen a row of the tile that has a factor or is empty.
bool store_numbers(uint buf, Numbers numbers) {
    bool odd = false;
    FOR_EACH(i, NUMBER_ITEMS) {
        const uint row = i * SUBGROUP_SIZE + lane, at = buf + BUF_NUMBERS + row / POOL_FLOATS;
        const float factor = numbers.of_row[i].w != 0 ? 0 : numbers.of_row[i].z;
        odd = odd || floatBitsToUint(factor) != floatBitsToUint(1.0);
        if (subgroup * WALKED + row < WALKED) {  // one test: a second one parts the plain tile's code
            pool[at][row % POOL_FLOATS] = floatBitsToUint(-numbers.of_row[i].x);
            pool[at + NUMBERS_STRIDE][row % POOL_FLOATS] = floatBitsToUint(-numbers.of_row[i].y);
            pool[at + 2 * NUMBERS_STRIDE][row % POOL_FLOATS] = floatBitsToUint(factor);
        }
    }
    return odd;
}
float factor_of(uint buf, uint row) {
    return uintBitsToFloat(pool[buf + BUF_NUMBERS + 2 * NUMBERS_STRIDE + row / POOL_FLOATS][row % POOL_FLOATS]);
}
#else
struct Numbers {
    uint none;
};
void fetch_numbers(out Numbers numbers) {}
void fetch_inner_numbers(out Numbers numbers) {}
bool store_numbers(uint buf, Numbers numbers) { return false; }
#endif

// Multiplies a plain tile while the next one (or the same again, if it is the last) is staged. The next one exists
// whole, and its masks are at mask_next. Returns what store_numbers does.
bool add_plain_tile(uint buf, uint other) {
    bool odd = false;
    if (MASK_IS_PLAIN) fetch_masks(mask_next);
    FOR_EACH(stage, STAGES) {
        Fetched fetched;
        Numbers numbers;
        fetch_whole_stage(walked_qk, walked_v, next_first, stage, fetched);
        if (BLOCKS == 1) fetch_inner_numbers(numbers);  // behind the block it would be waited for (H200, D256: -1 %)
        FOR_EACH(i, BLOCKS / STAGES) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            ADD_BLOCK(buf, block, true, false, find_plain(buf, block, 0))
            // With two blocks, earlier it holds registers for longer (H200, D64: -4 %).
            if (BLOCKS > 1 && block == 0) fetch_inner_numbers(numbers);
        }
        store_stage(other, stage, fetched);
        if (stage == 0) odd = store_numbers(other, numbers);
    }
    if (MASK_IS_PLAIN) store_masks();
    return odd;
}

// True if a term but the mask changes scores of the tile.
bool terms_change_tile(Place here) {
    const Work w = work_at(here);
    return terms_change(w, tile_rows(w), keys_from(first_key_of(here)));
}

void find_any(bool finish, Work w, uint first_key, uint buf, uint block) {
    if (finish) find_finished(w, first_key, buf, block);
    else find_plain(buf, block, 0);
}

// Fetches a stage of the tile that begins at next_first. Not all of its rows need exist.
void fetch_next_stage(uint stage, out Fetched fetched) {
    fetch_stage(next_whole_tile(walked_qk, next_first), next_whole_tile(walked_v, next_first), stage, fetched);
}

// Multiplies any tile while the next one is staged. Returns what store_numbers does. With `can_be_plain` the tile is
// plain if it is an inner one.
bool add_tile(Place here, bool can_be_plain, uint buf, uint other) {
    const Work w = work_at(here);
    bool odd = false;
    const bool is_inner = here.first >= inner.x && here.first + WALKED <= inner.y;
    const bool has_plain_masks = MASK_IS_PLAIN && can_be_plain && is_inner && !terms_change_tile(here);
    if (has_plain_masks) stage_masks(mask_of(here));
    [[dont_unroll]] for (uint stage = 0; stage < STAGES; stage++) {
        Fetched fetched;
        Numbers numbers;
        if (stage == 0) fetch_numbers(numbers);
        fetch_next_stage(stage, fetched);
        [[dont_unroll]] for (uint i = 0; i < BLOCKS / STAGES; i++) {
            const uint block = stage * (BLOCKS / STAGES) + i;
            if (!sees_block(w, here, block)) {
#ifdef KEY_VALUE
                spill_nothing(block);
#endif
                continue;
            }
            const bool finish = !has_plain_masks && (!can_be_plain || !is_inner_block(w, here, block));
            begin_rows(here, here.first + block * BLOCK, BLOCK, !finish);
            ADD_BLOCK(buf, block, false, finish, find_any(finish, w, first_key_of(here), buf, block))
        }
        store_stage(other, stage, fetched);
        if (stage == 0) odd = store_numbers(other, numbers);
    }
    return odd;
}

// A walk through the tiles of a head, up to `end`.
struct HeadWalk {
    Place here;
    WalkedTile tile, next;
    uint end;
    uvec2 quick;      // begin .. end-1: the first rows of inner tiles that a whole tile or none follows
    uint quick_left;  // how many tiles, from this one on, have their first rows there; 0 if this one has not
    uint buf;
};

uint quick_tiles_from(uint first, uvec2 quick) {
    return first >= quick.x && first < quick.y ? (quick.y - first + WALKED - 1) / WALKED : 0;
}
// Returns true if this tile is plain unless it has an odd row.
bool may_be_plain(HeadWalk w) {
    const bool next_is_whole = !HAS_BLOCK_MAP || w.next.first >= w.end || w.next.first + WALKED <= walked_qk.end;
    return w.quick_left != 0 && w.tile.is_plain && next_is_whole && !terms_change_tile(w.here);
}
// Begins a tile that is staged: finds which one is fetched meanwhile. Behind the last one it is fetched once more.
void begin_walked_tile(HeadWalk w) {
    next_first = w.next.first < w.end ? w.next.first : w.here.first;
    barrier();
}
void go_to_next(inout HeadWalk w) {
    const uint rows = w.next.first - w.here.first;
#ifdef MAY_LAG
    if (LAGGING) move_lag();
#endif
#ifdef KEY_VALUE
    move_spill(rows);
#endif
    w.buf = BUF_SIZE - w.buf;
    w.here.first += rows;
    w.tile = w.next;
    w.next = WalkedTile(w.here.first + WALKED, true);
    if (HAS_BLOCK_MAP && w.here.first < w.end) w.next = next_walked(w.here, w.end);
    w.quick_left -= min(w.quick_left, HAS_BLOCK_MAP ? rows / WALKED : 1);
}

// Stages the first tile of a head. Returns what store_numbers does.
bool stage_first_tile(HeadWalk w) {
    next_first = w.here.first;
    place_head(w.here.head);
    find_offsets(walked_qk, walked_v);
    barrier();
#ifdef KEY_VALUE
    place_spill(w.here);
#endif
#ifdef MAY_LAG
    if (LAGGING) begin_lag();
#endif
    FOR_EACH(stage, STAGES) {
        Fetched fetched;
        fetch_next_stage(stage, fetched);
        store_stage(0, stage, fetched);
    }
#ifdef MAY_LAG
    if (LAGGING) qk_next = BUF_SIZE;
#endif
    Numbers numbers;
    fetch_numbers(numbers);
    return store_numbers(0, numbers);
}

// Goes through the tiles of a head. With `can_be_plain`, inner tiles without an odd row are plain.
void walk_head(uint head, bool can_be_plain) {
    const uvec2 tiles = tiles_of_head(head);
    HeadWalk w;
    w.here = Place(head, tiles.x);
    w.end = tiles.y;
    w.tile = WalkedTile(tiles.x, true);
    if (tiles.x < tiles.y) w.tile = first_walked(w.here, tiles.y);
    w.here.first = w.tile.first;
    if (w.here.first >= tiles.y) return;
    w.next = next_walked(w.here, tiles.y);
    w.buf = 0;
    bool saw_odd = stage_first_tile(w);
    w.quick = can_be_plain && mask_is_aligned() ? inner_tiles(tiles) : uvec2(0);
    w.quick_left = quick_tiles_from(w.here.first, w.quick);
    [[dont_unroll]] while (w.here.first < w.end) {
        bool odd = subgroupAny(saw_odd);  // the same for all subgroups; in this place the compiler knows it
        bool has_masks = false;           // the tile's masks are staged
        [[dont_unroll]] while (!odd && may_be_plain(w)) {
            begin_walked_tile(w);
            if (MASK_IS_PLAIN && !has_masks) {
                mask_next = mask_of(w.here);
                stage_masks(mask_next);
            }
            has_masks = true;
            if (MASK_IS_PLAIN && w.here.first + WALKED < w.end) mask_next = mask_moved(mask_next, WALKED);
            begin_rows(w.here, w.here.first, WALKED, true);
            odd = subgroupAny(add_plain_tile(w.buf, BUF_SIZE - w.buf));
            go_to_next(w);
        }
        if (w.here.first >= w.end) break;
        begin_walked_tile(w);
        drop_rows(w.here, w.buf, odd);
        saw_odd = add_tile(w.here, can_be_plain && !odd && w.tile.is_plain, w.buf, BUF_SIZE - w.buf);
        go_to_next(w);
        w.quick_left = quick_tiles_from(w.here.first, w.quick);
    }
#ifdef MAY_LAG
    if (LAGGING) end_lag();
#endif
}

// Goes through all tiles. With `rows_are_plain` no held row has a factor or is empty, and the rows' masks are plain.
void walk(bool rows_are_plain) {
    if (walked.x >= walked.y) return;
    [[dont_unroll]] for (uint head = 0; head < walked_heads(); head++)
        walk_head(head, rows_are_plain && PLAIN_SCORES && !FAR_ROWS);
}
