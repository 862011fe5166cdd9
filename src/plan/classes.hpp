// Passes before attention find out which tiles are hidden, so that loops leave them out: they write classes of a mask's
// tiles, and links of a block map's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "plan.hpp"
#include "tuning.hpp"

namespace vkattn::core {

// Adds a pass that finds tiles which the mask hides entirely, or not at all, if that pays: its dispatch, its scratch,
// and what the arguments say of it. The pass reads the mask once, while attention reads it once for every head that
// shares it.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan);

// These are the tiles of a kernel that follows links: a workgroup holds `held` rows and walks through tiles of `walked`
// rows.
struct LinkedTiles {
    bool holds_keys = false;     // and walks through queries; or the other way round
    bool packed = false;         // a tile holds the rows of all query heads of a group
    bool isolates_rows = false;  // the constant of that name
    uint32_t held = 0, walked = 0;
    // The argument block has the address of the links at this byte. Without a value the push constants have it.
    std::optional<size_t> at = {};
};
// Adds passes that make the links of a block map for several kernels, if there is a map, and if scratch has room for
// all. Kernels without links ask the map itself, a subgroup's width of tiles at a time.
void add_tile_links(const DeviceCaps& caps, const Options& options, std::span<const LinkedTiles> kernels,
                    Plan& plan);
// True if each tile of all these kernels lies in one block of the map, and no other term tells its elements apart.
bool has_whole_blocks(const Problem& problem, std::span<const LinkedTiles> kernels);

bool has_scratch(const Plan& plan, Region region);
// Region bits that a pipeline reads if it uses the mask's classes; 0 if the plan has no such pass.
uint32_t mask_class_reads(const Plan& plan);

// Tells one of these kernels of the links that a plan has for it. All get the same constants: how weights are rounded
// depends on whole_blocks (lib/backward_matrix_scores.glsl), and the passes of a backward must round them alike.
template <class Launch>
void set_links(Launch& launch, const Plan& plan, std::span<const LinkedTiles> kernels) {
    if (!has_scratch(plan, Region::tile_links)) return;
    launch.constants.has_links = 1;
    launch.constants.whole_blocks = has_whole_blocks(plan.problem, kernels);
    launch.reads |= bit(Region::tile_links);
}

}  // namespace vkattn::core
