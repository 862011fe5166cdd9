// How long the loops of a plan are, and how grids are cut so that no dispatch costs more than a limit.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan.hpp"

namespace vkattn::core {

// Upper bound on the number of tiles of `other` rows, of `all`, that one tile of `own` rows can see, without the
// batch's own lengths and offsets.
uint64_t longest_loop(const Problem& problem, uint32_t own, uint32_t other, uint64_t all);
// The upper bound that the window alone gives, for any lengths and offsets.
uint64_t longest_in_window(const Problem& problem, uint32_t own, uint32_t other);

// Cuts a grid (x, y, z) into boxes that fit the device's limits and cost at most `limit` each, at `unit` a workgroup.
// Fails if one workgroup costs more, or if there would be more than max_boxes.
struct Box {
    std::array<uint64_t, 3> first, count;
};
constexpr uint64_t max_boxes = 1 << 16;
Result<std::vector<Box>> cut_grid(const DeviceCaps& caps, std::array<uint64_t, 3> grid, uint64_t unit,
                                  uint64_t limit);

// The most floating-point operations that a dispatch may have.
uint64_t dispatch_limit(const DeviceCaps& caps, const Options& options);

// Returns attempt(limit) with the limit of a dispatch. If the caller set no limit and the attempt fails, the limit is
// doubled until it succeeds, because long dispatches are better than none.
template <class Attempt>
auto within_limit(const DeviceCaps& caps, const Options& options, const Attempt& attempt) {
    constexpr uint64_t most = uint64_t{1} << 62;
    uint64_t limit = dispatch_limit(caps, options);
    auto result = attempt(limit);
    while (!result && options.max_dispatch_flops == 0 && limit < most) result = attempt(limit *= 2);
    return result;
}

// The box as a cut of the grid.
Cut cut_of(const Box& box);

}  // namespace vkattn::core
