#version 460
// dkey and dvalue: for each tile of keys one pass over the queries of all heads that read it (Dao, arXiv:2307.08691,
// section 3.2).
//
//   for each query head of the group, each tile of TILE_Q queries of which some row sees some key of the tile:
//     P, dS of the tile                                                  // lib/backward.glsl
//     for each P_BLOCKS lines of every group of lanes:  stage their P and dS
//       for each V_KEYS of their rows:  stage dout and query;  dV += P^T . dout;  dK += dS^T . query
//   dvalue = dV;  dkey = softmax_scale * dK;  both 0 for keys that no row sees
//
// Tile ownership: a workgroup has TILE_KV keys of one kv head. P and dS are computed as lib/tiles.glsl says, query
// rows in groups of LANES invocations; they lie in shared memory as they come from the registers, four keys to a vec4.
// For the sums the invocations regroup: KEY_LANES share ROWS keys, each has every KEY_LANES-th vec4 of their rows. Of
// several slices (lib/backward_passes.glsl) even ones have a part of dV, for which they need no dS, and odd ones a
// part of dK.
//
// Shared memory (one pool, two maps that follow each other, a barrier at each change; in vec4):
//   scores  as forward_tiles.comp
//   sums    P and dS, SLOTS x K_STRIDE each    dout and query, lines of V_KEYS x KV_STRIDE
// and TILE_Q statistics of rows behind both. A line is a query row here or, with the macro DOT, two neighbours of a
// group in 16 bits: lib/lines.glsl.
// Grid: kv heads of all batches, tiles of keys, slices.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/backward_key_value.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/backward_key_value.def"
} push;
#ifdef MIXED
#define TYPED_ROWS
#endif
#include "lib/tiles.glsl"
#include "lib/backward_problem.glsl"
#include "lib/backward_passes.glsl"
#include "lib/mask.glsl"
#define WEIGHTS_TAKE_CAP (SLICES > 1 && slice() % 2 != 0)
#define CAP_IS_KEPT (SLICES == 1)
#include "lib/backward.glsl"

const uint KEY_GROUPS = TILE_KV / ROWS;
const uint KEY_LANES = THREADS / KEY_GROUPS;
// Slices of one gradient. With more than one, everything below about dkey and the query applies to the gradient that
// the workgroup's slice is of: an even slice takes dout for the query, and dvalue for dkey.
const uint GRADIENT_SLICES = SLICES > 1 ? SLICES / 2 : 1;
const uint LARGER_DIM = HEAD_DIM_QK > HEAD_DIM_V ? HEAD_DIM_QK : HEAD_DIM_V;
const uint V_VECS = SLICES > 1 ? 0 : POOL_V_STRIDE(HEAD_DIM_V, KEY_LANES) / KEY_LANES;
const uint QK_VECS = POOL_SLICE_STRIDE(SLICES > 1 ? LARGER_DIM : HEAD_DIM_QK, KEY_LANES, GRADIENT_SLICES) / KEY_LANES;
const uint KV_STRIDE = (V_VECS + QK_VECS) * KEY_LANES;
const uint SLOTS = GROUPS * P_BLOCKS;  // of lines
const uint STAGED_ROWS = ELEMENTS_OF(P_BLOCKS);  // of a group
const uint STAGED_LINES = LINES_OF(V_KEYS);
const uint POOL_DS = SLOTS * K_STRIDE;
const uint POOL_ROWS = 2 * SLOTS * K_STRIDE;

uint key_lane = thread % KEY_LANES;
uint key_group = thread / KEY_LANES;

vec4 dvalue[SLICES > 1 ? 1 : ROWS * V_VECS];
vec4 dkey[ROWS * QK_VECS];

bool of_value() { return SLICES > 1 && slice() % 2 == 0; }
// The first vec4 of a row that the slice has.
uint first_vec() { return SLICES > 1 ? slice() / 2 * QK_VECS * KEY_LANES : 0; }

#define WEIGHTS_OF_ROW(r) weights[(r) * (COLS / 4) + b]
#define GRADIENTS_OF_ROW(r) scores[(r) * (COLS / 4) + b]
void store_rows_of_groups(uint first_r) {
    [[unroll]] for (uint n = 0; n < P_BLOCKS; n++)
        [[unroll]] for (uint b = 0; b < COLS / 4; b++) {
            const uint at = (n * GROUPS + group) * K_STRIDE + b * LANES + lane, row = first_r + ELEMENTS_OF(n);
            pool[at] = stored_line4(weights_of_rows(WEIGHTS_OF_ROW, row));
            pool[POOL_DS + at] = stored_line4(weights_of_rows(GRADIENTS_OF_ROW, row));
        }
}

// A line from row r on of the groups goes to slots LINES_OF(r % STAGED_ROWS) * GROUPS .. The comparison: see store_p.
void store_slots(uint first_r) {
    [[unroll]] for (uint r = 0; r < ROWS; r += STAGED_ROWS)
        if (r == first_r) store_rows_of_groups(r);
}

// The items of a stage, 4 head dims of a line each, in one list, dout's first: see PLACE_BEHIND. Lines are those in
// the slots from first_slot on.
const uint V_PART = V_VECS * KEY_LANES, QK_PART = QK_VECS * KEY_LANES;
const uint DOUT_ITEMS = STAGED_LINES * V_PART, QUERY_FIRST = PLACE_BEHIND(DOUT_ITEMS);
const uint ITEMS = QUERY_FIRST + STAGED_LINES * QK_PART;
const uint SUM_ITEMS = (ITEMS + THREADS - 1) / THREADS;  // that an invocation stages

struct Item {
    bool of_q;
    uint slot, vec;
};

Item item_at(uint first) {
    const uint e = first + thread;
    Item item;
    item.of_q = is_behind(QUERY_FIRST, first);
    const uint index = item.of_q ? e - QUERY_FIRST : e, part = item.of_q ? QK_PART : V_PART;
    item.slot = index / part;
    item.vec = index % part;
    return item;
}

// Returns the first row of the line in a slot, counted in the query tile.
uint row_of_slot(uint first_r, uint slot) { return slot % GROUPS * ROWS + first_r + ELEMENTS_OF(slot / GROUPS); }

V_ITEM load_item(Rows q, Rows dout, uint first_r, uint first_slot, uint first) {
    const Item item = item_at(first);
    const uint slot = first_slot + item.slot, extent = item.of_q ? HEAD_DIM_QK : HEAD_DIM_V;
    const uint row = q.first + row_of_slot(first_r, slot);
    Rows t = dout;
    if (item.of_q) t = q;
#define LOAD_WHOLE(row) load_staged4(false, t, row, 4 * item.vec, extent, extent % (4 * KEY_LANES) == 0)
    if (SLICES == 1) return V_ITEM_OF(row, LOAD_WHOLE);
    const bool inside = HEAD_DIM_QK == HEAD_DIM_V && HEAD_DIM_V % (4 * KEY_LANES * GRADIENT_SLICES) == 0;
    const uint dims = of_value() ? HEAD_DIM_V : HEAD_DIM_QK;
#define LOAD_SLICE(row) load_staged4(false, t, row, 4 * (first_vec() + item.vec), dims, inside)
    return V_ITEM_OF(row, LOAD_SLICE);
}

void store_item(uint first, V_ITEM x, uint first_r, uint first_slot) {
    const Item item = item_at(first);
    if (tile_is_finished) {
        const uint row = row_of_slot(first_r, first_slot + item.slot);
        ZERO_ROWS_OF(x, row, is_empty)
    }
    pool[POOL_ROWS + item.slot * KV_STRIDE + (item.of_q ? V_PART : 0) + item.vec] = v_line4(x);
}

V_ITEM fetched[FETCHES_AHEAD ? SUM_ITEMS : 1];

void fetch_items(Rows q, Rows dout, uint first_r, uint first_slot) {
    if (!FETCHES_AHEAD) return;
    [[unroll]] for (uint t = 0; t < SUM_ITEMS; t++)
        if (is_listed(DOUT_ITEMS, QUERY_FIRST, ITEMS, t * THREADS))
            fetched[t] = load_item(q, dout, first_r, first_slot, t * THREADS);
}

void store_items(Rows q, Rows dout, uint first_r, uint first_slot) {
    if (!FETCHES_AHEAD) {
        STAYS_LOOP for (uint first = 0; first < ITEMS; first += THREADS)
            if (is_listed(DOUT_ITEMS, QUERY_FIRST, ITEMS, first))
                store_item(first, load_item(q, dout, first_r, first_slot, first), first_r, first_slot);
        return;
    }
    [[unroll]] for (uint t = 0; t < SUM_ITEMS; t++)
        if (is_listed(DOUT_ITEMS, QUERY_FIRST, ITEMS, t * THREADS))
            store_item(t * THREADS, fetched[t], first_r, first_slot);
}

Rows product_query, product_dout;
void fetch_product() { fetch_items(product_query, product_dout, 0, 0); }

// dvalue += P^T . dout, dkey += dS^T . query over the V_KEYS staged rows, whose lines stand from first_slot on.
#define P_OF_KEYS_AT(k) ((first_slot + (k)) * K_STRIDE + key_group * (ROWS / 4))
#define WEIGHTS_AT(k) ((of_value() ? 0 : POOL_DS) + P_OF_KEYS_AT(k))
#define DOUT_AT(k, o) (POOL_ROWS + (k) * KV_STRIDE + (o) * KEY_LANES + key_lane)
#define QUERY_AT(k, o) DOUT_AT(k, V_VECS + (o))
void multiply_slots(uint first_slot) {
    if (ISOLATES_ROWS && tile_is_finished) {
        if (V_VECS != 0) ADD_ISOLATED_PRODUCT(dvalue, ROWS / 4, P_OF_KEYS_AT, V_VECS, DOUT_AT, FOR_EACH, STAGED_LINES)
        ADD_ISOLATED_PRODUCT(dkey, ROWS / 4, WEIGHTS_AT, QK_VECS, QUERY_AT, FOR_EACH, STAGED_LINES)
        return;
    }
    if (V_VECS != 0)
        ADD_LONG_PRODUCT(dvalue, ROWS / 4, P_OF_KEYS_AT, V_VECS, DOUT_AT, FOR_EACH, STAGED_LINES, PV_UNROLL, {})
    ADD_LONG_PRODUCT(dkey, ROWS / 4, WEIGHTS_AT, QK_VECS, QUERY_AT, FOR_EACH, STAGED_LINES, PV_UNROLL, {})
}

void add_products(Rows q, Rows dout) {
    [[unroll]] for (uint r = 0; r < ROWS; r += STAGED_ROWS)
        for (uint slot = 0; slot < SLOTS; slot += STAGED_LINES) {
            barrier();
            if (slot == 0) store_slots(r);
            store_items(q, dout, r, slot);
            barrier();
            if (slot + STAGED_LINES < SLOTS) fetch_items(q, dout, r, slot + STAGED_LINES);
            else if (r + STAGED_ROWS < ROWS) fetch_items(q, dout, r + STAGED_ROWS, 0);
            multiply_slots(slot);
        }
}

// Adds what a query tile contributes: nothing if no row of it sees a key of the tile that begins at first_key.
void add_query_tile(Work w, uint first_key, Rows k, Rows v) {
    const uvec2 keys = tile_keys(w);
    k.begin = v.begin = max(keys.x, first_key);
    k.end = v.end = min(keys.y, first_key + TILE_KV);
    if (k.begin >= k.end) return;
    const uint kind = mask_class(w, class_index(w), first_key);
    if (kind == CLASS_HIDDEN) return;
    k = tile_at(k, first_key);
    v = tile_at(v, first_key);
    const Rows q = query_tile(push.query, QUERY, w), dout = dout_tile(w);
    product_query = q;
    if (of_value()) product_query = dout;
    product_dout = dout;
    fetch_qk(q, k, 0, HEAD_DIM_QK);
    load_statistics(w);
    find_gradients(w, q, k, dout, v, kind == CLASS_MIXED, of_value());
    apply_cap_derivative();
    add_products(product_query, dout);
}

// Where the accumulators of the tile's keys are kept between dispatches.
uvec2 kept_rows(Work w, uint first_key) {
    return accumulators_at(w.batch * num_heads_kv() + w.head_kv, key_extent(), first_key, SLICES * KV_STRIDE);
}

// This lane's first vec4 of a key's kept row.
uint kept_at(uint row) { return (row * SLICES + slice()) * KV_STRIDE + key_lane; }

// A row of the accumulators: dvalue's vec4, then dkey's. Loads and stores are too large for some drivers to unroll
// them over rows (NVIDIA's, 16-bit stores), and accumulators with other than constant indices leave the registers:
// hence a copy, and comparisons.
vec4 row[V_VECS + QK_VECS];

void take_row(uint index) {
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) {
            FOR_EACH(o, V_VECS) row[o] = dvalue[r * V_VECS + o];
            FOR_EACH(o, QK_VECS) row[V_VECS + o] = dkey[r * QK_VECS + o];
        }
}

void put_row(uint index) {
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        if (r == index) {
            FOR_EACH(o, V_VECS) dvalue[r * V_VECS + o] = row[o];
            FOR_EACH(o, QK_VECS) dkey[r * QK_VECS + o] = row[V_VECS + o];
        }
}

void load_accumulators(Work w, uint first_key) {
    if (SLICES == 1) FOR_EACH(x, ROWS * V_VECS) dvalue[x] = vec4(0);
    FOR_EACH(x, ROWS * QK_VECS) dkey[x] = vec4(0);
    if (starts_loop()) return;
    const uvec2 kept = kept_rows(w, first_key);
    for (uint r = 0; r < ROWS; r++) {
        const uint at = kept_at(min(key_group * ROWS + r, key_extent() - 1 - first_key));
        for (uint o = 0; o < V_VECS + QK_VECS; o++) row[o] = Vec4sIn(kept).x[at + o * KEY_LANES];
        put_row(r);
    }
}

void store_rows(Work w, uint first_key) {
    const uvec2 kept = kept_rows(w, first_key);
    BackwardIn a = backward();
    const Rows dv = tile_at(key_gradient_rows(a.x.dvalue, DVALUE, w), first_key);
    Rows dk = tile_at(key_gradient_rows(a.x.dkey, DKEY, w), first_key);
    if (of_value()) dk = dv;
    const float scale = of_value() ? 1 : a.x.scale;
    const uint extent = of_value() ? HEAD_DIM_V : HEAD_DIM_QK;
    for (uint r = 0; r < ROWS; r++) {
        take_row(r);
        const uint key = first_key + key_group * ROWS + r, at = kept_at(key_group * ROWS + r);
        if (key >= key_extent()) continue;
        if (ends_loop()) {
            const StoredRow to_k = stored_row(dk, key), to_v = stored_row(dv, key);
            for (uint o = 0; o < V_VECS; o++)
                store_stored4(to_v, 4 * (o * KEY_LANES + key_lane), HEAD_DIM_V, row[o]);
            for (uint o = 0; o < QK_VECS; o++)
                store_stored4(to_k, 4 * (first_vec() + o * KEY_LANES + key_lane), extent, scale * row[V_VECS + o]);
        } else {
            for (uint o = 0; o < V_VECS + QK_VECS; o++) Vec4sOut(kept).x[at + o * KEY_LANES] = row[o];
        }
    }
}

void main() {
    const uint first_key = (push.first_y + gl_WorkGroupID.y) * TILE_KV;
    Work w = work_of_keys(push.first_x + gl_WorkGroupID.x);
    load_accumulators(w, first_key);
    const uvec2 rows = seeing_rows(w, first_key, min(first_key + TILE_KV, w.num_keys));
    const Rows k = key_tensor_rows(push.key, KEY, w), v = key_tensor_rows(push.value, VALUE, w);
    // A step is a query tile of a head: all of the first head, then those of the next.
    for (uint h = 0; h < group_size(); h++) {
        for (uint first_row = rows.x / TILE_Q * TILE_Q; first_row < rows.y; first_row += TILE_Q) {
            if (!has_step(h * query_tiles() + first_row / TILE_Q)) continue;
            set_query_tile(w, w.head_kv * group_size() + h, first_row);
            add_query_tile(w, first_key, k, v);
        }
    }
    store_rows(w, first_key);
}
