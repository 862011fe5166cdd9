// What the checks of plan_checks*.cpp have in common.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan_model.hpp"

namespace vkattn::test {

// Returns values by their names in "name=number,name=number,...". Throws if the text has another form.
std::map<std::string, uint32_t> values_in(const std::string& text);

// Compares the constants of a pipeline with what they must be, and what lies behind them with nothing. `expected` may
// have more of them than the kernel, but none may be missing.
std::string constants_flaw(const core::Pipeline& pipeline, const Values& expected);
// Compares what kernels are told of numbers that are not finite with the driver and the options.
std::string nonfinite_flaw(const core::DeviceCaps& caps, const core::Options& options,
                           const core::Plan& plan);

// Push constants in words, by the names of the fields.
using Words = std::map<std::string_view, std::vector<uint32_t>>;
// Compares the push constants of a pipeline in the same way, and what lies between or behind them with nothing.
// Addresses and what a dispatch's cut says are 0 in a pipeline: they need not be in `expected`.
std::string words_flaw(const core::Pipeline& pipeline, const Words& expected);
// The words that say what the problem is. Scales, which are rounded somehow, are as they are if they come close.
Words words_of(const core::Problem& problem, const core::Pipeline& pipeline);
// The strides of the operands, or none where an argument block has them.
std::vector<uint32_t> layout_words(const core::Problem& problem, bool arguments);

// What a pipeline's shader does: patches that it needs, and regions that it reaches through them, or through the
// addresses in the argument block. `may_read` does no harm.
struct Touches {
    core::Kernel kernel;
    std::vector<core::Patch> patches;
    uint32_t reads = 0, writes = 0, may_read = 0;

    explicit Touches(core::Kernel of) : kernel(of) {}
    explicit Touches(const core::Pipeline& pipeline) : Touches(core::info_of(pipeline.module).kernel) {}
    // Through this field of the push constants; throws if there is none.
    void patch(std::string_view field, core::Region region, uint64_t add = 0);
    void reads_at(std::string_view field, core::Region region) {
        patch(field, region);
        reads |= bit(region);
    }
    void writes_at(std::string_view field, core::Region region, uint64_t add = 0) {
        patch(field, region, add);
        writes |= bit(region);
    }
    // The argument block, from its byte `add` on: in a field of its own, or in place of the operands' strides.
    void reads_arguments(uint64_t add = 0);
};
std::string touches_flaw(const Touches& touches, const core::Pipeline& pipeline);
std::string patch_flaw(const std::vector<core::Patch>& patches, const std::vector<core::Patch>& expected);

// Whether `rows` rows of `stride`, and as many heads as share a tile, lie beyond 31-bit offsets in bytes.
bool far_apart(const core::Problem& problem, uint64_t rows, uint64_t stride, uint64_t heads,
               uint64_t head_stride, uint64_t inner);

// Every dispatch has a pipeline, every pipeline a dispatch, each pass just one pipeline; what a dispatch's cut says
// has a field in its kernel. `spare`: the baseline has pipelines that not all problems need, and several of one kernel.
std::string pipelines_flaw(const core::Plan& plan, bool spare);

// TYPE_*, MASK_* of the shaders.
uint32_t type_constant(VkattnDtype dtype);
uint32_t mask_constant(const core::Problem& problem);
// Constants that only the problem decides, and those that all kernels but a few leave at nothing special.
Values problem_constants(const core::Problem& problem, const Model& model);
// Of the tile kernels. packed_heads and far_rows are taken over: they are the planner's choice within bounds.
Values expected_constants(const core::Problem& problem, const Model& model, const core::Pipeline& pipeline);
// Whether it is the module's form for CPUs that is wanted, and numbers of the row that are in it.
std::string form_flaw(const core::Pipeline& pipeline, uint32_t rolled);
// This does the work of workgroup_flaw for plans of the matrix kernel.
std::string matrix_workgroup_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                  const core::Plan& plan, const core::Options& options);
// packed_heads and far_rows of a pipeline are the planner's choice within bounds, which this checks.
std::string choices_flaw(const core::Problem& problem, const Model& model, const core::Pipeline& pipeline);
// The module for this storage type and device.
std::string module_flaw(const core::DeviceCaps& caps, VkattnDtype dtype, core::Module module);

std::string groups_flaw(const core::DeviceCaps& caps, const core::Dispatch& d);
// Masks of which tiles are classified, and the dispatch that does it.
uint64_t masks_of(const core::Problem& problem, const Model& model);
uint64_t least_cost_of_classes(const core::Problem& problem, const Model& model, const core::Dispatch& d);
std::string classes_flaw(const core::Problem& problem, const Model& model, const core::Dispatch& d);

std::string arguments_flaw(const core::Problem& problem, const Model& model,
                           const shared::ForwardArguments& arguments);
// Of a BackwardArguments, with which the block begins.
std::string backward_arguments_flaw(const core::Problem& problem, const core::Backward& backward,
                                    const Model& model, const std::vector<std::byte>& block);
// The chosen kernel and those that were refused are all of these.
std::string refusals_flaw(const core::Plan& plan, const std::vector<std::string>& all);
// Of a ForwardArguments.
std::vector<core::Patch> argument_patches(const core::Problem& problem, const Model& model);
// Workgroups of backward_delta.comp have a size of their own, which the row's numbers have no say in.
std::string delta_workgroup_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                 const core::Pipeline& pipeline);
// Whether a grid has just `tiles` workgroups in y or, of rows that go on in z where y is too short, enough of them.
std::string rows_grid_flaw(const core::Dispatch& d, uint64_t tiles);
// All checks of the baseline's backward.
std::string baseline_backward_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                   const core::Backward& backward, const core::Plan& plan);
std::string regions_flaw(const core::DeviceCaps& caps, const core::Plan& plan,
                         const std::function<uint64_t(core::Region)>& bytes_used);

// The largest power of two up to 16 that every row of the mask begins at a multiple of, in bytes from its start; 0
// without a mask.
uint32_t unit_of_mask_rows(const core::Problem& p);

}  // namespace vkattn::test
