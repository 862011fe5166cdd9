// What must hold of every plan, recomputed from the contract and from the shaders instead of from src/plan.
// Each check returns the first flaw that it finds, "" if there is none.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "plan/tuning.hpp"

namespace vkattn::test {

// All of the checks below. `options`: those that the plan was made with.
std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& problem, const core::Plan& plan,
                    const core::Options& options = {});
// The same for a plan of vkattn_backward_create.
std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& problem,
                    const core::Backward& backward, const core::Plan& plan,
                    const core::Options& options = {});
// The workgroups and constants of the backward on matrix units.
std::string backward_matrix_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                 const core::Backward& backward, const core::Plan& plan);
// The same for a plan of vkattn_combine_create.
std::string flaw_of(const core::DeviceCaps& caps, const core::Combine& combine, const core::Plan& plan);

// Numbers that lib/tiles.glsl can work with.
std::string numbers_flaw(const core::TileNumbers& numbers, bool backward = false, bool dot = false);
// The workgroup within the device's limits; tiles and constants say what the tuning says; no module that the device
// lacks the features for.
std::string workgroup_flaw(const core::DeviceCaps& caps, const core::Problem& problem, const core::Plan& plan,
                           const core::Options& options);
// The grids within the device's limits; every (head, query tile, part of the keys), every tile of a mask that is
// classified, and every row that is combined, covered exactly once.
std::string work_flaw(const core::DeviceCaps& caps, const core::Problem& problem, const core::Plan& plan);
// No dispatch can cost more than it says, nor more than the options allow.
std::string cost_flaw(const core::Problem& problem, const core::Plan& plan, const core::Options& options);
// Push constants hold the problem; each region that a pipeline touches is patched into the field its shader
// reads.
std::string push_flaw(const core::Problem& problem, const core::Plan& plan);
// Regions aligned, disjoint, of the size that is used, nothing unused.
std::string scratch_flaw(const core::DeviceCaps& caps, const core::Problem& problem, const core::Plan& plan);
// The argument block holds strides, mask and what else does not fit the push constants.
std::string arguments_flaw(const core::Problem& problem, const core::Plan& plan);
// A barrier between every two dispatches that depend on each other, none that separates nothing.
std::string barrier_flaw(const core::Plan& plan);
// Just the kernels that a tuning row is for may have the row rejected.
std::string of_row_flaw(const core::Plan& plan);
// Dispatches of the combine kernel, from `first` on, and their pipeline: grid, constants, push constants, patches.
// own_parts: those of a forward kernel; natural: of one whose scores are natural.
std::string combine_flaw(const core::DeviceCaps& caps, const core::Combine& combine, const core::Plan& plan,
                         size_t first, bool own_parts, bool natural);

// Shared memory in vec4: what the shaders' maps (the pool's regions, and each store's last index) come to.
uint32_t pool_of_maps(const core::TileNumbers& numbers, uint32_t head_dim_v, bool dot = false);
uint32_t pool_of_backward_maps(const core::TileNumbers& numbers, uint32_t head_dim_qk, uint32_t head_dim_v,
                               bool dot = false);

// The numbers in "threads=256,lanes=16,..."; throws if the text is not complete or says something else.
core::TileNumbers parse_numbers(const std::string& text);

// Bytes of one head's score matrix of the materialized kernel.
uint64_t matrix_bytes(const core::Problem& problem);

// In what two plans differ; "" if in nothing.
std::string difference(const core::Plan& a, const core::Plan& b);

}  // namespace vkattn::test
