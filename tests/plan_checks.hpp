// Properties that hold for every plan of any kernel, judged from the plan, the contract (vkattn.h) and shaders/ instead
// of from src/plan. Each check returns the first flaw that it finds, "" if there is none.
//
// How they work. A plan is data, and so the checks read it: plan_reading.hpp tells a pipeline's part in attention from
// its push constants and from what it writes, and its tile from its constants, by the names that all interfaces share.
// A new kernel adds no line here. A new constant or field adds one where neither the tuning's text nor the problem
// tells its value: then the checks report that nothing does. Of names only what they say by convention is used: a
// module's macros ("_dot", "_turned"), what a pass finds ("_query", "_key_value", "_mask", "_spilled"), and of the
// kernels that options.kernel can name those that begin with "matrix" or "rows", those that end with "_dot", and the
// baseline, "materialized".
//
//   plan_checks_interface.cpp  the module fits storage type, device and numbers; every constant and push constant has
//                              the value that the problem, the tuning's text or the driver gives it; loads are as wide
//                              as the caller's alignment allows; wide addresses just where rows lie far apart
//   plan_checks_tiles.cpp      numbers that lib/tiles.glsl can work with; the shared memory of the portable kernels
//   plan_checks_matrix.cpp     the device has the matrix unit; numbers and shared memory of the kernels on it
//   plan_checks_memory.cpp     every address is patched, with a region that it may have; strides are those of the
//                              arrays whose addresses are beside them; scratch is disjoint, of the size that is used,
//                              within the limits; a barrier wherever a dispatch depends on an earlier one, and no other
//   plan_checks_work.cpp       each pipeline's dispatches cover its grid exactly once, cut loops all their steps in
//                              order; each result is written by one pipeline; a replay of the dispatches reads nothing
//                              that was not written before, and dS that is spilled just while scratch has it; no
//                              dispatch can cost more than it says, or than allowed
//   plan_arrays.cpp            the caller's addresses that are checked for null and alignment
//
// That the checks notice faults is tested: test_plan_faults.cpp plants thousands into sound plans, one in each field.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "plan/tuning.hpp"

namespace vkattn::test {

// All checks of a forward's plan. `options`: those that the plan was made with.
std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& problem, const core::Plan& plan,
                    const core::Options& options = {});
// The same for a plan of vkattn_backward_create.
std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& problem,
                    const core::Backward& backward, const core::Plan& plan,
                    const core::Options& options = {});
// The same for a plan of vkattn_combine_create.
std::string flaw_of(const core::DeviceCaps& caps, const core::Combine& combine, const core::Plan& plan);

// Numbers that lib/tiles.glsl can work with.
std::string numbers_flaw(const core::TileNumbers& numbers, bool backward = false, bool dot = false);

// Shared memory in vec4: what the shaders' maps (the pool's regions, and each store's last index) come to.
uint32_t pool_of_maps(const core::TileNumbers& numbers, uint32_t head_dim_v, bool dot = false);
uint32_t pool_of_backward_maps(const core::TileNumbers& numbers, uint32_t head_dim_qk, uint32_t head_dim_v,
                               bool dot = false);

// The numbers in "threads=256,lanes=16,..."; throws if the text is not complete or says something else.
core::TileNumbers parse_numbers(const std::string& text);

// Bytes of one head's score matrix of the baseline.
uint64_t matrix_bytes(const core::Problem& problem);

// In what two plans differ; "" if in nothing.
std::string difference(const core::Plan& a, const core::Plan& b);

}  // namespace vkattn::test
