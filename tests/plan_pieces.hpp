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

using Specialization = std::array<uint32_t, SPEC_COUNT>;

// What a dispatch's shader does: patches that it needs, and regions that it reaches through them, or through the
// addresses in the argument block. `may_read` does no harm.
struct Touches {
    std::vector<core::Patch> patches;
    uint32_t reads = 0, writes = 0, may_read = 0;

    void reads_at(size_t at, core::Region region) {
        patches.push_back({static_cast<uint32_t>(at), region});
        reads |= bit(region);
    }
    void writes_at(size_t at, core::Region region, uint64_t add = 0) {
        patches.push_back({static_cast<uint32_t>(at), region, add});
        writes |= bit(region);
    }
};
std::string touches_flaw(const Touches& touches, const core::Dispatch& dispatch);
std::string patch_flaw(const std::vector<core::Patch>& patches, const std::vector<core::Patch>& expected);

// Whether `rows` rows of `stride`, and as many heads as share a tile, lie beyond 31-bit offsets in bytes.
bool far_apart(const core::Problem& problem, uint64_t rows, uint64_t stride, uint64_t heads,
               uint64_t head_stride, uint64_t inner);

// Of the tile kernels. PACK and WIDE_ROWS are taken over: they are the planner's choice within bounds.
Specialization specialization_of(const core::Problem& problem, const Model& model, Kind kind,
                                 const core::Dispatch& d);
// This does the work of workgroup_flaw for plans of the matrix kernel.
std::string matrix_workgroup_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                  const core::Plan& plan, const core::Options& options);
// PACK and WIDE_ROWS of a dispatch are the planner's choice within bounds, which this checks.
std::string choices_flaw(const core::Problem& problem, const Model& model, const core::Dispatch& dispatch);
// The variant for this storage type and device.
std::string variant_flaw(const core::DeviceCaps& caps, VkattnDtype dtype, core::Variant variant);

std::string groups_flaw(const core::DeviceCaps& caps, const core::Dispatch& d);
// Masks of which tiles are classified, and the dispatch that does it.
uint64_t masks_of(const core::Problem& problem, const Model& model);
std::string classes_flaw(const core::Problem& problem, const Model& model, const core::Dispatch& d);

// Push constants beside the strides.
std::string numbers_in_push_flaw(const core::Problem& problem, const shared::ForwardPush& push);
std::string arguments_flaw(const core::Problem& problem, const Model& model,
                           const shared::ForwardArguments& arguments);
// Of a ForwardArguments.
std::vector<core::Patch> argument_patches(const core::Problem& problem, const Model& model);
// All checks of the baseline's backward.
std::string baseline_backward_flaw(const core::DeviceCaps& caps, const core::Problem& problem,
                                   const core::Backward& backward, const core::Plan& plan);
std::string regions_flaw(const core::DeviceCaps& caps, const core::Plan& plan,
                         const std::function<uint64_t(core::Region)>& bytes_used);

}  // namespace vkattn::test
