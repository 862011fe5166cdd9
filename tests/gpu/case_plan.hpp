// Cases as the planner sees them, without building a pipeline; and what the plans' pipelines are made from, as numbers.
#pragma once

#include <cstdint>

#include "gpu/cases.hpp"
#include "plan/plan.hpp"
#include "vulkan/pipeline_constants.hpp"

namespace vkattn::test {

// The plan of a case's forward, or of its backward, whose dbias is wanted where it has a float mask.
core::Result<core::Plan> core_plan_of(const core::DeviceCaps& caps, const Case& c, bool backward);

// FNV-1a of a module's words.
uint64_t hash_of_words(const core::Module& module);
// FNV-1a, 32 bits, of the names and values of the constants that a pipeline's module reads. A constant that is 0 counts
// as one that is not there: so a new constant, which is 0 where it is not asked for, changes no hash but the module's.
uint32_t hash_of_constants(const core::Pipeline& pipeline, core::PipelineConstants& constants);
// FNV-1a, 64 bits, of the words of a pipeline's module and of the constants that it reads. A pipeline of an equal
// fingerprint on an equal driver is the same pipeline.
uint64_t fingerprint(const core::Pipeline& pipeline, core::PipelineConstants& constants);
// The words of a pipeline's module, with the pipeline's constants in place of the module's defaults.
core::Spirv specialized(const core::Pipeline& pipeline, core::PipelineConstants& constants);
// FNV-1a, 64 bits, of what a plan does beside its pipelines' code: grids, push constants and argument block. A byte
// that is 0 counts as one that is not there: so a new word at the end, which is 0 where it is not asked for, changes
// nothing.
uint64_t hash_of_work(const core::Plan& plan);

}  // namespace vkattn::test
