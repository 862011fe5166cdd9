// What every plan is built of: scratch, the argument block, pipelines and dispatches. Problems are assumed to be valid:
// src/problem.cpp has resolved them.
#pragma once

#include <cstdint>
#include <utility>

#include "plan.hpp"
#include "terms.hpp"
#include "tuning.hpp"

namespace vkattn::core {

constexpr uint64_t default_max_scratch_bytes = uint64_t{1} << 30;
// Scratch that a plan may have in all, and what is left of it.
uint64_t scratch_limit(const DeviceCaps& caps, const Options& options);
uint64_t scratch_left(const DeviceCaps& caps, const Options& options, const Plan& plan);

// Reserves a region of scratch behind those that are there.
void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes);

// Returns a plan with these tiles and no dispatches. It has the problem's argument block if `arguments` is true.
Plan begin_plan(const Problem& problem, const TileChoice& tiles, bool arguments = true);

// True if the push constants are too small for this problem, so that there is an argument block.
bool needs_arguments(const Problem& problem);
shared::ForwardArguments forward_arguments(const Problem& problem);
// Reserves scratch for the argument block, which begins with a ForwardArguments, and adds patches for the addresses in
// it.
void place_arguments(Plan& plan);
// Adds the dispatches that write the finished argument block, before all others.
void add_argument_writes(Plan& plan);

// Adds a pipeline to a plan; returns its place in it.
inline uint32_t add_pipeline(Plan& plan, Pipeline pipeline) {
    plan.pipelines.push_back(std::move(pipeline));
    return static_cast<uint32_t>(plan.pipelines.size() - 1);
}
void add_dispatch(Plan& plan, uint32_t pipeline, std::array<uint64_t, 3> groups, const Cut& cut,
                  uint64_t flops);

// Query rows of all heads and batches.
inline uint64_t rows_of(const Problem& p) {
    return uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
}
// Returns the region that holds value.
inline Region region_of_value(const Problem& p) {
    return p.value_in_key != 0 ? Region::key : Region::value;
}
inline bool has_keys(const Problem& p) {
    return p.batch != 0 && p.seqlen_kv != 0;
}

constexpr uint32_t ceil_div(uint64_t a, uint64_t b) {
    return static_cast<uint32_t>((a + b - 1) / b);
}

}  // namespace vkattn::core
