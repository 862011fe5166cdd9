// Where sequences lie: which (batch, head, query tile, split of the keys) a workgroup works on, how many rows and keys
// its batch has, where they begin in their tensors, and which keys a row sees. Every kernel that looks at an attention
// problem includes it, by way of operand_layout.glsl or argument_block.glsl. This file alone reads the lengths and
// bounds of the push constants: kernels ask a Work, which one of work_of_tile, work_of_last_tile and work_of_keys has
// filled.
#include "lib/logarithms.glsl"
#include "lib/score_facts.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer ArgumentsIn { ForwardArguments x; };
// A macro, so that calls are not nested too deep (kernels.def).
#define arguments() ArgumentsIn(ARGUMENTS_ADDRESS)  // only where HAS_ARGUMENTS
bool is_present(uint bit) { return (arguments().x.present & bit) != 0; }

struct Work {
    uint batch, head_kv;
    uint head;           // of the first row
    uint first_query;    // row of the query tensors (query, out, dout ...) with which the batch's sequence begins
    uint num_queries;    // query rows of the sequence, of one head
    uint first_key;      // row of the key and value tensors with which the batch's sequence begins
    uint num_keys;       // keys that the mask and the batch's kv length leave
    int lo, hi;          // query row i sees key j only if i + lo <= j <= i + hi
    int position;        // query row i stands at key i + position, cut to where it is before or behind all keys
    int beyond;          // by so much farther from all keys. Both are 0 without an argument block
    uint first_row;      // of the query tile; rows count heads too where heads are packed
    uint last_row;       // last row of the tile that exists
    uint split;          // number of the split of the keys
};

// Macros, so that calls are not nested too deep (kernels.def).
#define num_heads_q() (push.heads & 0xffff)
#define group_size() (push.heads >> 16)
#define rows_to_group() (PACKED_HEADS ? group_size() : 1)
uint num_heads_kv() { return num_heads_q() / group_size(); }

// Rows of a head that results without strides have room for, and keys of a head, whatever the batch.
#define query_extent() (push.seqlen_q)
#define key_extent() (push.seqlen_kv)

// Tiles of a head, whatever the batch: the grid and the classes of mask tiles are planned without the batch's lengths.
uint query_tiles() { return (query_extent() * rows_to_group() + TILE_Q - 1) / TILE_Q; }
uint key_tiles() { return (key_extent() + TILE_KV - 1) / TILE_KV; }

// True if a bound makes some query tiles go through fewer keys than others.
bool tiles_differ_in_length() {
    return push.bound_hi < int(push.seqlen_kv) - 1 || push.bound_lo > -int(push.seqlen_q);
}

uint rows_of_sequence(Work w) { return w.num_queries * rows_to_group(); }

// Query row, and head of the group, of a row.
#define query_of(row) ((row) / rows_to_group())
#define head_of(row) ((row) % rows_to_group())

// bound + shift, held to the range; the ends stand for unbounded.
int shifted(int bound, int shift) {
    const int sum = bound + shift;
    const bool overflow = ((bound ^ sum) & (shift ^ sum)) < 0;
    const int least = int(0x80000000), most = 0x7fffffff;
    if (overflow) return bound < 0 ? least : most;
    return bound == least || bound == most ? bound : sum;
}

// Finds what is the batch's own: its sequences, and where its rows stand among its keys. `shift` is the batch's part of
// the rows' offset; the part that is the same for all batches is folded into the bounds of the push constants.
void find_sequences(inout Work w) {
    w.first_query = w.first_key = 0;
    w.num_queries = push.seqlen_q;
    w.num_keys = push.seqlen_kv;
    w.lo = push.bound_lo;
    w.hi = push.bound_hi;
    w.position = w.beyond = 0;
    if (!HAS_ARGUMENTS) return;
    ArgumentsIn a = arguments();
    int shift = 0;
    const bool lengths = is_present(PRESENT_KV_LENGTHS), offsets = is_present(PRESENT_QUERY_OFFSETS);
    const int length = IntsIn(a.x.kv_lengths).x[lengths ? w.batch : 0];
    const int offset = IntsIn(a.x.query_offsets).x[offsets ? w.batch : 0];
    if (lengths) w.num_keys = uint(clamp(length, 0, int(push.seqlen_kv)));
    if (lengths && a.x.follow_lengths != 0) shift = int(w.num_keys);
    if (offsets) shift = offset;
    w.num_keys = min(w.num_keys, a.x.key_limit);
    const int position = a.x.position + shift;  // only one of the two is large
    w.position = clamp(position, -int(push.seqlen_q), int(push.seqlen_kv));
    w.beyond = abs(position - w.position);
    // Beyond these a bound hides, or leaves, everything; within them nothing overflows.
    w.lo = clamp(shifted(w.lo, shift), -int(push.seqlen_q), int(push.seqlen_kv));
    w.hi = clamp(shifted(w.hi, shift), -int(push.seqlen_q) - 1, int(push.seqlen_kv) - 1);
}

// The work on one query tile of one head, counted over all batches (with packed heads, of one kv head).
Work work_of_tile(uint head, uint tile) {
    Work w;
    const uint heads = PACKED_HEADS ? num_heads_kv() : num_heads_q();
    w.batch = head / heads;
    w.head = head % heads * rows_to_group();
    w.head_kv = w.head / group_size();
    w.split = 0;
    find_sequences(w);
    w.first_row = tile * TILE_Q;
    w.last_row = min(w.first_row + TILE_Q, rows_of_sequence(w)) - 1;
    return w;
}

// The work on a query tile that is counted from the last one. Under a causal bound that one is the longest, so the
// workgroups that start last are short.
Work work_of_last_tile(uint head, uint tile) { return work_of_tile(head, query_tiles() - 1 - tile); }

// The work on the keys of one kv head, counted over all batches. It has no query rows yet.
Work work_of_keys(uint head) {
    Work w;
    w.batch = head / num_heads_kv();
    w.head_kv = head % num_heads_kv();
    w.split = 0;
    find_sequences(w);
    return w;
}

// Sets the query tile of a work that has none yet.
void set_query_tile(inout Work w, uint head, uint first_row) {
    w.head = head;
    w.first_row = first_row;
    w.last_row = min(first_row + TILE_Q, w.num_queries) - 1;
}

// The key at which a row stands, cut to where it is before or behind all keys. A macro, as those above.
#define position_of(w, row) (int(query_of(row)) + (w).position)

// Keys begin .. end-1 that a row may see; empty when end <= begin.
ivec2 visible_keys(Work w, uint row) {
    const int i = int(query_of(row));
    return ivec2(max(0, i + w.lo), min(int(w.num_keys), i + w.hi + 1));
}

// True if bounds and lengths hide all of a tile of rows from .x to .y and keys from .x to before .y.
bool tile_is_hidden(Work w, uvec2 rows, uvec2 keys) {
    return int(keys.y) <= visible_keys(w, rows.x).x || int(keys.x) >= visible_keys(w, rows.y).y;
}
// True if they hide nothing of it.
bool tile_is_visible(Work w, uvec2 rows, uvec2 keys) {
    return int(keys.x) >= visible_keys(w, rows.y).x && int(keys.y) <= visible_keys(w, rows.x).y;
}

// Rows begin .. end-1 of which each may see some of the keys first_key .. end_key-1; (0, 0) if there is none.
uvec2 seeing_rows(Work w, uint first_key, uint end_key) {
    const int begin = max(0, int(first_key) - w.hi), end = min(int(w.num_queries), int(end_key) - w.lo);
    return first_key < end_key && begin < end ? uvec2(begin, end) : uvec2(0);
}

// Rows begin .. end-1 of which each may see all of these keys, of which there are some; begin >= end if there is none.
uvec2 rows_seeing_all(Work w, uint first_key, uint end_key) {
    const int begin = max(0, int(end_key) - 1 - w.hi), end = min(int(w.num_queries), int(first_key) - w.lo + 1);
    return uvec2(begin, max(0, end));
}

// Keys begin .. end-1 that some row of the query tile sees; (0, 0) if none.
uvec2 tile_keys(Work w) {
    const int begin = visible_keys(w, w.first_row).x, end = visible_keys(w, w.last_row).y;
    return begin < end ? uvec2(begin, end) : uvec2(0);
}

// Those of them that the work's split has; (0, 0) if none. A split has at most `most_tiles` tiles of keys.
//
// `splits` of them share the tiles that the query tile sees, in equal parts: how many there are is known here, by the
// batch's length and bounds, and not when the plan is made. They are not cut into less than LEAST_KEYS_OF_SPLIT, so
// that the last splits may have none. With `splits` of 0 each split has most_tiles, counted from key 0, so that a row's
// keys are cut at the same places whatever other rows and keys there are.
uvec2 keys_of_split(Work w, uint most_tiles, uint splits) {
    const uvec2 keys = tile_keys(w);
    uint first = 0, tiles = most_tiles;
    if (splits != 0) {
        first = keys.x / TILE_KV;
        const uint all = (keys.y + TILE_KV - 1) / TILE_KV - first;
        tiles = max((all + splits - 1) / splits, min(most_tiles, (LEAST_KEYS_OF_SPLIT + TILE_KV - 1) / TILE_KV));
    }
    const uint from = (first + w.split * tiles) * TILE_KV;
    const uint begin = max(keys.x, from), end = min(keys.y, from + tiles * TILE_KV);
    return begin < end ? uvec2(begin, end) : uvec2(0);
}

// Rows of the query tile, of a tensor of queries (query, out, dout, dquery). `head`: address of the head's row 0.
Rows query_rows(Work w, uvec2 head, uvec2 stride, uvec2 head_stride) {
    const Rows t = rows_of(address_add(head, mul_wide(w.first_query, stride)), stride, head_stride,
                           rows_to_group(), rows_of_sequence(w));
    return tile_at(t, w.first_row);
}

// Rows of the sequence of keys, of key, value or their gradients; the caller places the tile.
Rows key_rows(Work w, uvec2 head, uvec2 stride) {
    return rows_of(address_add(head, mul_wide(w.first_key, stride)), stride, uvec2(0), 1, key_extent());
}

// A row of a float32 tensor without strides, (batch, num_heads_q, seqlen_q) of `elements` each, that lies behind
// heads_before other heads: lse, statistics, splits. The row is of a tile of w; offsets within a tile fit 31 bits, with
// packed heads too: their rows are few.
RowStart dense_row(uvec2 base, uvec2 heads_before, uint elements, Work w, uint row) {
    const uvec2 head = address_add(heads_before, uvec2(w.batch * num_heads_q() + w.head, 0));
    const uint origin = query_of(w.first_row);
    const uvec2 index = address_add(mul_wide(query_extent(), head), uvec2(w.first_query + origin, 0));
    const uvec2 bytes = mul_wide(elements * 4, index);
    return RowStart(address_add(base, bytes), (head_of(row) * query_extent() + query_of(row) - origin) * elements);
}

float lse_of(float row_max, float row_sum) {
    if (IS_ZERO(row_sum)) return uintBitsToFloat(MINUS_INFINITY);
    const float lse = NATURAL_SCORES ? row_max + LN_2 * log2(row_sum) : LN_2 * (row_max + log2(row_sum));
    return IS_FINITE(row_sum) ? lse : uintBitsToFloat(NAN_BITS);
}
