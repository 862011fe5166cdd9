// Classes of mask tiles.
#pragma once

#include <cstdint>

#include "plan.hpp"
#include "tuning.hpp"

namespace vkattn::core {

// Adds a pass that finds tiles which the mask hides entirely, or not at all, if that pays: its dispatch, its scratch,
// and what the arguments say of it. The pass reads the mask once, while attention reads it once for every head that
// shares it.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan);
// Region bits that a pipeline reads if it uses the mask's classes; 0 if the plan has no such pass.
uint32_t mask_class_reads(const Plan& plan);

}  // namespace vkattn::core
