// The properties that plan_checks.hpp tells of, one by one: each returns the first flaw that it finds, "" if there is
// none. Some are called by tests themselves.
#pragma once

#include <string>

#include "plan_reading.hpp"
#include "shared/kernels.h"

namespace vkattn::test {

// plan_checks_interface.cpp: a pipeline's module, constants and push constants.
std::string module_flaw(const Given& g, const core::Pipeline& pipeline);
// Compares constants with what they must be, and what lies behind them with nothing. `expected` may have more of them
// than the kernel, but none may be missing.
std::string constants_flaw(const core::Pipeline& pipeline, const Values& expected);
std::string constants_flaw(const Given& g, const core::Pipeline& pipeline);
// The same of push constants, in words. Addresses and what a dispatch's cut says are 0 in a pipeline.
using Words = std::map<std::string_view, std::vector<uint32_t>>;
std::string words_flaw(const core::Pipeline& pipeline, const Words& expected);
std::string words_flaw(const Given& g, const core::Pipeline& pipeline);
std::string nonfinite_flaw(const Given& g, const core::Pipeline& pipeline);
// far_rows and packed_heads are the planner's choice within bounds.
std::string choices_flaw(const Given& g, const core::Pipeline& pipeline);

// plan_checks_tiles.cpp, plan_checks_matrix.cpp: the shaders can work with a workgroup's numbers.
std::string tiles_flaw(const Given& g);
std::string matrix_flaw(const Given& g, const core::Pipeline& pipeline);
std::string workgroup_flaw(const Given& g, const core::Pipeline& pipeline);

// plan_checks_memory.cpp: what is read and written, and how it is found.
std::string touches_flaw(const Given& g, const core::Pipeline& pipeline);
std::string arguments_flaw(const Given& g);
std::string scratch_flaw(const Given& g);
std::string barrier_flaw(const core::Plan& plan);
std::string caller_arrays_flaw(const Given& g);
// Bytes into the argument block of the ForwardArguments that a pipeline reads.
uint64_t block_of(const core::Pipeline& pipeline);

// What a dispatch's cut says, in its order.
inline constexpr std::string_view fields_of_cut[] = {"first_x", "first_y", "first_z", "first_step",
                                                     "end_step"};

// plan_checks_work.cpp: who does which part of the work, in which order, and what it costs.
std::string coverage_flaw(const Given& g);
std::string flow_flaw(const Given& g);
std::string cost_flaw(const Given& g);
// Steps of a workgroup's loop over the other sequence, as they are numbered.
uint64_t steps_of(const Given& g, const core::Pipeline& pipeline);
// Operations for a row and a key of a tile, at least.
double cost_of_pair(const Given& g, const core::Pipeline& pipeline);
// Every dispatch has a pipeline, every pipeline a dispatch; what a dispatch's cut says has a field in its kernel.
// `spare`: the baseline has pipelines that not all problems need.
std::string pipelines_flaw(const core::Plan& plan, bool spare);

}  // namespace vkattn::test
