// Links lead a loop on matrix units from one tile to the next that a block map does not hide (LINK_OF in
// shared/kernels.h). tile_links.comp has made them for each tile of held rows. A loop loads the link of a tile one tile
// ahead, so that it waits for none, and the tiles between cost nothing.
struct Walk {
    uint row;    // index of the link of tile 0, of the held rows
    uint ahead;  // the link of the tile that was returned last
};
struct WalkedTile {
    uint first;     // row or key
    bool is_plain;  // the map leaves the tile as it is
};

#ifdef KEY_VALUE
const uint WALKED_TILE = TILE_Q;
uint walked_tiles() { return query_tiles(); }
#else
const uint WALKED_TILE = TILE_KV;
uint walked_tiles() { return key_tiles(); }
#endif
// LINKS_ADDRESS: lib/operand_layout.glsl, lib/backward_problem.glsl
uint link_at(Walk walk, uint tile) {
    return UintsIn(LINKS_ADDRESS).x[walk.row + min(tile, walked_tiles() - 1)];
}
WalkedTile walked_tile(uint tile, uint kind) {
    return WalkedTile(tile * WALKED_TILE, WHOLE_BLOCKS || kind == CLASS_PLAIN);
}

// Returns the first tile from that of `first` on that is not hidden.
WalkedTile begin_walk(inout Walk walk, uint first) {
    const uint from = first / WALKED_TILE, link = link_at(walk, from);
    const bool hidden = LINK_CLASS(link) == CLASS_HIDDEN;
    const uint tile = hidden ? LINK_NEXT(link) : from;
    walk.ahead = link_at(walk, tile);
    return walked_tile(tile, hidden ? LINK_NEXT_CLASS(link) : LINK_CLASS(link));
}
// Returns the tile behind the one returned last.
WalkedTile go_on_walk(inout Walk walk) {
    const uint link = walk.ahead;
    walk.ahead = link_at(walk, LINK_NEXT(link));
    return walked_tile(LINK_NEXT(link), LINK_NEXT_CLASS(link));
}
