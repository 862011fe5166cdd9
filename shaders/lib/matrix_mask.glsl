// Masks in the matrix kernel: classes of tiles, and keys that a mask hides from all rows. The cursor asks for the next
// tile that is not hidden, the loops for the hidden keys. Without a mask nothing here costs anything.

#include "lib/tile_links.glsl"

// Classes of mask tiles, a bit each, as many as fit a word or a subgroup. If they were loaded one by one, each would be
// waited for (H200, N 4,096, a boolean mask that hides nothing: 257 instead of 272 TFLOP/s at D128, 290 both ways at
// D64).
struct Classes {
    uint index, first, hidden, plain;  // `first`: the tile of bit 0
};
const uint CLASSES = SUBGROUP_SIZE < 32 ? SUBGROUP_SIZE : 32;

Classes classes_of(Work w) { return Classes(class_index(w), 0x80000000u, 0, 0); }

// The first tile from `from` on that is not hidden entirely.
uint next_in(Work w, inout Classes c, uint from, uint end) {
    if (!SKIPS_TILES) return from;
    uint rest = 0;
    [[dont_unroll]] while (from < end && rest == 0) {
        const uint tile = from / TILE_KV;
        if (tile - c.first >= CLASSES) {
            const uint kind = mask_class(w, c.index, (tile + lane % CLASSES) * TILE_KV);
            c = Classes(c.index, tile, subgroupBallot(kind == CLASS_HIDDEN).x, subgroupBallot(kind == CLASS_PLAIN).x);
        }
        const uint behind = tile - c.first;
        rest = ~c.hidden >> behind << behind & 0xffffffffu >> (32 - CLASSES);
        from = (c.first + (rest != 0 ? findLSB(rest) : CLASSES)) * TILE_KV;
    }
    return from;
}
bool is_plain(Classes c, uint first) { return (c.plain >> (first / TILE_KV - c.first) % 32 & 1) != 0; }

#ifndef KEY_VALUE  // which holds keys, and finds for itself what it drops
// Keys that no row of a tile may see can hold anything, and 0 * NaN is not 0. The loop with a running maximum has S
// before it stages V, and zeroes such keys of V. The loop with stale offsets multiplies them as they are; if that
// gives a result that is not finite it starts again, and zeroes such keys of K and V as it stages them
// (zero_hidden_keys).
shared uint seen[MATRIX_STEPS(TILE_KV, 32)];  // keys of a tile, a bit each
shared uint saw_nonfinite;  // 1: a sum or an output of some row is not finite
bool zero_hidden_keys = false;

bool drops_unseen() { return HIDES_KEYS && zero_hidden_keys; }  // in tiles that are no inner ones

void forget_seen() {
    for (uint i = thread; i < MATRIX_STEPS(TILE_KV, 32); i += THREADS) seen[i] = 0;
}

bool is_seen(uint key) { return (seen[key / 32] >> key % 32 & 1) != 0; }

#ifdef RUNNING_MAX
// Marks the keys that this subgroup's rows see, by their scores.
void mark_seen() {
    const ACCUMULATOR places = read_places();
    uint words[MATRIX_STEPS(TILE_KV, 32)];
    FOR_EACH(i, MATRIX_STEPS(TILE_KV, 32)) words[i] = 0;
    FOR_EACH(e, ELEMENTS) {
        const uint column = place_of(places, e).y;
        FOR_EACH(n, KEY_TILES)
            FOR_EACH(r, ROW_BLOCKS)
                if (scores[r * KEY_TILES + n][e] > NO_MAXIMUM) words[n * N / 32] |= 1u << (n * N % 32 + column);
    }
    FOR_EACH(i, MATRIX_STEPS(TILE_KV, 32)) atomicOr(seen[i], words[i]);
}
#endif

// Marks the keys that the tile's rows see, by the mask; by all invocations.
void find_seen(Work w, uint first_key) {
    const Terms terms = terms_of(w, true);
    forget_seen();
    barrier();
    [[dont_unroll]] for (uint i = thread; i < TILE_Q * TILE_KV; i += THREADS) {
        const uint row = min(w.first_row + i / TILE_KV, w.last_row), key = i % TILE_KV;
        const float score = finished(0, terms, row, visible_keys(w, row), int(first_key + key));
        if (score > NO_MAXIMUM) atomicOr(seen[key / 32], 1u << key % 32);
    }
    barrier();
}
#endif
