// What the kernels' planners share: a row in the list of kernels, and the pieces that every forward dispatch
// is made of.
#pragma once

#include <cstring>

#include "plan.hpp"
#include "tuning.hpp"

namespace vkattn::core {

struct Kernel {
    const char* name;
    bool automatic;  // false: only when asked for by name
    Result<Plan> (*make)(const DeviceCaps&, const Problem&, const Options&);
};

Result<Plan> plan_forward_tiles(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_materialized(const DeviceCaps&, const Problem&, const Options&);

// One launch of `variant` with the push constants and specialization that all forward kernels have in common.
// `first_head` .. + num_heads are heads of all batches; `tiles` is the number of query tiles (or rows).
Dispatch forward_dispatch(const Problem& problem, Variant variant, const TileChoice& tiles);

// Reserves a region of scratch behind those that are there.
void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes);

// The argument block, where the push constants are too small for this problem. Before any other reservation.
void add_arguments(Plan& plan);

// Grid of `heads` x `tiles` within the device's limits: x = heads, y and z = tiles. False if it cannot be
// held.
bool set_grid(const DeviceCaps& caps, uint64_t heads, uint64_t tiles, Dispatch& dispatch);

constexpr uint32_t ceil_div(uint64_t a, uint64_t b) {
    return static_cast<uint32_t>((a + b - 1) / b);
}

}  // namespace vkattn::core
