// The cursor says where the matrix kernel's loop over tiles of keys stands. Both loops of forward_matrix.comp move it.
// It assumes that some row sees at least one key.
struct TileCursor {
    Work w;
    Rows q, k, v;    // k: the tile of keys at which the loop stands
    uint first_dim;  // the first head dim of V that the workgroup's slice has
    uint end_key;
    // Tiles that begin from first_inner to last_inner are inner ones: all their keys exist and are within every row's
    // bounds, so that only a mask can make their scores need finishing. If no tile is skipped, all keys of the one that
    // follows an inner one exist, or none.
    int first_inner, last_inner;
    // With a mask or a block map:
    Classes classes;            // without links
    Walk walk;                  // with them
    uint next_key;              // the first key of the tile that follows
    bool is_plain, next_plain;  // true if neither changes anything in this tile; in the next
};

void find_next(inout TileCursor c, uint from) {
    c.next_key = next_in(c.w, c.classes, from, c.end_key);
    c.next_plain = is_plain(c.classes, c.next_key);
}
void set_next(inout TileCursor c, WalkedTile next) {
    c.next_key = next.first;
    c.next_plain = next.is_plain;
}
uint next_first(TileCursor c) { return !SKIPS_TILES ? c.k.first + TILE_KV : c.next_key; }
uint step_to_next(TileCursor c) { return !SKIPS_TILES ? TILE_KV : c.next_key - c.k.first; }

void go_on(inout TileCursor c, Rows next) {
    c.k = next;
    c.is_plain = c.next_plain;
    if (HAS_LINKS) set_next(c, go_on_walk(c.walk));
    else if (SKIPS_TILES) find_next(c, next.first + TILE_KV);
}

void go_to_first(inout TileCursor c) {
    if (HAS_LINKS) set_next(c, begin_walk(c.walk, c.k.begin));
    else find_next(c, c.k.begin / TILE_KV * TILE_KV);
    go_on(c, tile_at(c.k, c.next_key));
}

TileCursor find_cursor() {
    TileCursor c;
    const uint unit = (PACKED_HEADS ? 1 : group_size()) * SLICES;  // workgroups that share K and V
    const uvec2 place = place_in_grid(unit, key_extent());
    const uint x = push.first_x + place.x;
    c.w = work_at(x / SLICES, push.first_y + place.y, push.first_z + gl_WorkGroupID.z);
    c.first_dim = x % SLICES * OUT_SPAN;
    const uvec2 keys = own_keys(c.w);
    c.q = query_tile(push.query, QUERY, c.w);
    c.k = key_tensor_rows(push.key, KEY, c.w);
    c.v = key_tensor_rows(push.value, VALUE, c.w);
    c.k.begin = c.v.begin = keys.x;
    c.k.end = c.v.end = c.end_key = keys.y;
    c.classes = classes_of(c.w);
    c.walk.row = class_index(c.w);
    const ivec2 first_row = visible_keys(c.w, c.w.first_row), last_row = visible_keys(c.w, c.w.last_row);
    c.first_inner = last_row.x;
    c.last_inner = min(first_row.y, int(c.end_key)) - int(TILE_KV);
    if (!SKIPS_TILES && c.end_key % TILE_KV != 0)
        c.last_inner = min(c.last_inner, int(c.end_key) - 2 * int(TILE_KV));
    go_to_first(c);
    return c;
}
