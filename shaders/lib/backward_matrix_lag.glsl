// LAGGING pairs of subgroups: the subgroup for dkey finds dP of a tile together with the other's S, but dS and its
// share of dkey a step later, when the other has put P. So a tile without odd rows has one barrier, and while one
// subgroup waits for its exponentials the other multiplies. A tile is one block. There are three tiles of query: the
// one before, this one, and the next one, which is staged.
bool hides_before;  // a weight of 0 means a hidden key, in the tile before
const uint WEIGHTS_OF_TURN = OWNERS * ROW_BLOCKS * BLOCK_TILES * WEIGHTS_SIZE;

void find_ds_before() {
    const uint from = weights_at(0, 0, 0) + WEIGHTS_OF_TURN - 2 * turn * WEIGHTS_OF_TURN;
    if (hides_before) take_weights(from, true);
    else take_weights(from, false);
}
#define ADD_TILE_BEFORE { \
    find_ds_before(); \
    MOVE_TO_LEFT(scores) \
    SPILL_BLOCK(spill_before, 0) \
    add_to_qk(qk_before); \
}
#define ADD_LAGGING_BLOCK(buf, finish, find) { \
    if (finds_dkey) { \
        ADD_TILE_BEFORE \
        const ACCUMULATOR start = minus_delta(buf, 0, 0); \
        FOR_EACH(r, ROW_BLOCKS) scores[r] = start; \
        multiply_held((buf) + BUF_V); \
    } else { \
        begin_scores(0); \
        if (!(finish)) fetch_block_masks(0); \
        multiply_held(qk_now); \
        if (!(finish)) hold_masks(0); \
        find; \
        MOVE_TO_LEFT(scores) \
        add_to_qk((buf) + BUF_V); \
    } \
    hides_before = HIDES_IN_PLAIN || (finish); \
}

// Begins a head, whose first tile is at `spill_at` of spilled dS. Before it the subgroup for dkey finds zeros.
void begin_lag() {
    qk_now = qk_next = 0;
    qk_before = 2 * BUF_SIZE;
    turn = 0;
    hides_before = false;
    spill_before = spill_at;
    for (uint e = thread; e < WALKED * QK_STRIDE; e += THREADS) pool[qk_before + e] = POOL_TYPE(0);
    for (uint e = thread; e < WEIGHTS_OF_TURN; e += THREADS)
        pool[POOL_WEIGHTS + WEIGHTS_OF_TURN + e] = POOL_TYPE(0);
    if (finds_dkey) FOR_EACH(r, ROW_BLOCKS) scores[r] = ZEROS;
}
// Ends a tile.
void move_lag() {
    const uint before = qk_before;
    qk_before = qk_now;
    qk_now = qk_next;
    qk_next = before;
    turn = 1 - turn;
    spill_before = spill_at;
}
void end_lag() {
    barrier();
    if (finds_dkey) ADD_TILE_BEFORE
}
