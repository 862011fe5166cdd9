// How K and V are fetched, and how V is turned while it is staged (macro TURNED).
//
// Addresses of inner tiles are sums of a uniform 64-bit number and an offset of the invocation that is found before the
// loop: RADV loads from such a sum without an instruction for it (19 to 36 others without that, of 99 in a pass on
// RDNA4). Patch `thread + p * THREADS` of a tile is TURNED_KEYS neighbouring keys of one vec4 of head dims: items
// p * TURNED_KEYS ... of an invocation, which become as many neighbours of each of eight rows of V^T.
const uint PATCH_ROWS = TILE_KV / TURNED_KEYS;
#define PATCH_OF(t) (thread + (t) / TURNED_KEYS * THREADS)
#define KEY_OF(t) (PATCH_OF(t) % PATCH_ROWS * TURNED_KEYS + (t) % TURNED_KEYS)
#define HAS_PATCH(t) (PATCHES % THREADS == 0 || PATCH_OF(t) < PATCHES)

void fetch_v(Rows v, uint first_dim) {
    FOR_EACH(t, V_ITEMS) {
        const uint row = KEY_OF(t), d = first_dim + PATCH_OF(t) / PATCH_ROWS * 8;
        if (HAS_PATCH(t)) fetched[t] = fetch8(row_start(v, v.first + row, KEY_VALUE_BYTES), d, HEAD_DIM_V, WHOLE_V);
    }
}

// k_offset and v_offset say where the invocation's first item of K and its first patch of V lie in a tile, in bytes.
// turned_at is the pool's element to which the patch goes in the row of its first head dim. Where a patch has two keys,
// turned_half says which half of that element is theirs.
uint k_offset, v_offset, turned_at, turned_half;
void find_offsets(Rows k, Rows v, uint first_dim) {
    const uint group = thread % PATCH_ROWS;
    k_offset = thread / K_VECS * k.stride.x + thread % K_VECS * 16;
    v_offset = group * TURNED_KEYS * v.stride.x + thread / PATCH_ROWS * 16 + first_dim * 2;
    turned_at = POOL_V + thread / PATCH_ROWS * 8 * V_STRIDE + group * TURNED_KEYS / 4;
    turned_half = group % 2;
}

// fetch_k and fetch_v where every row of the tile exists and lies within 32-bit offsets.
const bool EVEN_K = THREADS % K_VECS == 0, ALL_K = TILE_KV * K_VECS % THREADS == 0;
const bool EVEN_V = THREADS % PATCH_ROWS == 0;
const bool WIDE_K = LOAD_BYTES == 16 && WHOLE_K && EVEN_K, WIDE_V = LOAD_BYTES == 16 && WHOLE_V && EVEN_V;
void fetch_inner_k(Rows k) {
    if (WIDE_K) {
        FOR_EACH(t, K_ITEMS)
            if (ALL_K || thread / K_VECS + t * (THREADS / K_VECS) < TILE_KV)
                fetched[t] = fetch_at(k.base, t * (THREADS / K_VECS) * k.stride.x, k_offset);
    } else {
        FETCH_INNER(fetched, k, K_ITEMS, K_VECS, 0, HEAD_DIM_QK, WHOLE_K)
    }
}
void fetch_inner_v(Rows v, uint first_dim) {
    FOR_EACH(t, V_ITEMS) {
        const uint row = KEY_OF(t), d = first_dim + PATCH_OF(t) / PATCH_ROWS * 8;
        if (HAS_PATCH(t)) {
            if (WIDE_V)
                fetched[t] = fetch_at(v.base, t % TURNED_KEYS * v.stride.x +
                                                  t / TURNED_KEYS * (THREADS / PATCH_ROWS * 16), v_offset);
            else
                fetched[t] = fetch8(row_of_whole_tile(v, row, KEY_VALUE_BYTES), d, HEAD_DIM_V, WHOLE_V);
        }
    }
}

void store_patch(uint p, uvec4 keys[4]) {
    uint at = turned_at + p * (THREADS / PATCH_ROWS * 8 * V_STRIDE), half_of = turned_half;
    if (!EVEN_V) {
        const uint patch_number = thread + p * THREADS, group = patch_number % PATCH_ROWS;
        at = POOL_V + patch_number / PATCH_ROWS * 8 * V_STRIDE + group * TURNED_KEYS / 4;
        half_of = group % 2;
    }
    put_patch(at, V_STRIDE, TURNED_KEYS, half_of, keys);
}

// `value` is an expression of the item t and its key, `row`.
#define STORE_V(value) \
    FOR_EACH(p, V_ITEMS / TURNED_KEYS) \
        if (HAS_PATCH(p * TURNED_KEYS)) { \
            uvec4 keys[4]; \
            FOR_EACH(i, TURNED_KEYS) { \
                const uint t = p * TURNED_KEYS + i, row = KEY_OF(t); \
                keys[i] = value; \
            } \
            store_patch(p, keys); \
        }
