// Pieces that the kernels' planners share: a row in the list of kernels, a launch (a pipeline while it is planned),
// cuts of grids, scratch. The planners of src/plan include it (those that make launches, launch.hpp); nobody else
// does. Problems are assumed to be valid: src/problem.cpp has resolved them.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "plan.hpp"
#include "terms.hpp"
#include "tuning.hpp"

namespace vkattn::core {

// A row in a list of kernels, with the reasons why the planner takes it only if it is asked for by name (plan.cpp's
// why_opt_in). A null reason means that the planner may choose it. Inputs: the problem and, for a backward, the
// Backward.
template <class... Inputs>
struct KernelRow {
    const char* name;
    const char* opt_in_reason;        // holds always
    const char* opt_in_for_rounding;  // holds if float32 operands of the products may be rounded
    const char* opt_in_on_cpus;       // holds on CPUs in all other cases
    Result<Plan> (*make)(const DeviceCaps&, const Inputs&..., const Options&);
};
using ForwardKernel = KernelRow<Problem>;
using BackwardKernel = KernelRow<Problem, Backward>;

Result<Plan> plan_forward_rows(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_rows_dot(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix_khr(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_tiles(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_tiles_dot(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_materialized(const DeviceCaps&, const Problem&, const Options&);

Result<Plan> plan_backward_tiles(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_tiles_dot(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_matrix(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_matrix_khr(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_materialized_backward(const DeviceCaps&, const Problem&, const Backward&, const Options&);

// The refusal of a plan that needs a kernel which was left out of this build.
Failure missing_kernel(Kernel kernel);

// The type that operands of the products may be rounded to: the storage type, or the one of options.precision.
Result<VkattnDtype> operand_type(const Problem& problem, const Options& options);

// Limits of the materialised baseline, and the size of one head's score matrix in scratch. A piece is a group of heads
// that share the scratch.
constexpr uint64_t max_pieces = 4096;
constexpr uint64_t max_matrix_bytes = uint64_t{1} << 36;  // of all heads: the kernels count vec4 in 32 bits
uint64_t matrix_bytes_of(const Problem& problem);

constexpr uint64_t default_max_scratch_bytes = uint64_t{1} << 30;
// Scratch that a plan may have in all, and what is left of it.
uint64_t scratch_limit(const DeviceCaps& caps, const Options& options);
uint64_t scratch_left(const DeviceCaps& caps, const Options& options, const Plan& plan);

// Returns a plan with these tiles and no dispatches. It has the problem's argument block if `arguments` is true.
Plan begin_plan(const Problem& problem, const TileChoice& tiles, bool arguments = true);

// A pipeline while it is planned: the constants and push constants of its kernel by their names.
template <class K>
struct Launch {
    using Kernel = K;
    using Push = typename K::Push;

    Module module;
    typename K::Constants constants;
    Push push;
    std::vector<Patch> patches;
    uint32_t reads = 0, writes = 0;
    bool of_tuning_row = false;

    void patch(size_t at, Region region, uint64_t add = 0) {
        patches.push_back({static_cast<uint32_t>(at), region, add});
    }
    Pipeline pipeline() const {
        Pipeline p{module, {}, {}, patches, reads, writes, of_tuning_row};
        std::memcpy(p.constants.data(), &constants, sizeof constants);
        // Copies field by field, so that padding between fields stays 0.
        for (const FieldInfo& f : info_of(K::id).fields)
            std::memcpy(p.push.data() + f.offset_bytes,
                        reinterpret_cast<const std::byte*>(&push) + f.offset_bytes, f.size_bytes);
        return p;
    }
};
// Makes the recording write the address of a region to a field of the push constants.
#define VKATTN_PATCH(launch, field, ...) \
    (launch).patch(offsetof(typename std::remove_reference_t<decltype(launch)>::Push, field), __VA_ARGS__)

// Adds a pipeline to a plan; returns its place in it.
inline uint32_t add_pipeline(Plan& plan, Pipeline pipeline) {
    plan.pipelines.push_back(std::move(pipeline));
    return static_cast<uint32_t>(plan.pipelines.size() - 1);
}
void add_dispatch(Plan& plan, uint32_t pipeline, std::array<uint64_t, 3> groups, const Cut& cut,
                  uint64_t flops);

// Returns the kernel's module for this storage type and device. `dot` asks for the one with 16-bit dot products, which
// the device must have for this type.
Module module_for(Kernel kernel, VkattnDtype dtype, const DeviceCaps& caps, bool dot = false);
bool has_dot_products(const DeviceCaps& caps, VkattnDtype dtype);
// Fails if this device has no 16-bit dot products for this type.
Result<bool> check_dot_products(const DeviceCaps& caps, VkattnDtype dtype);

// The arrays that recordings of a forward, backward or combine are given.
std::vector<CallerArray> caller_arrays_of(const Problem& problem);
std::vector<CallerArray> caller_arrays_of(const Problem& problem, const Backward& backward);
std::vector<CallerArray> caller_arrays_of(const Combine& combine);

// True if the push constants are too small for this problem, so that there is an argument block.
bool needs_arguments(const Problem& problem);
shared::ForwardArguments forward_arguments(const Problem& problem);
// Reserves scratch for the argument block, which begins with a ForwardArguments, and adds patches for the addresses in
// it.
void place_arguments(Plan& plan);
// Adds the dispatches that write the finished argument block, before all others.
void add_argument_writes(Plan& plan);

// The matrix kernel's launch for this problem.
Launch<kernels::forward_matrix> matrix_launch(const Problem& problem, const TileChoice& tiles);

// Adds a pass that finds tiles which the mask hides entirely, or not at all, if that pays: its dispatch, its scratch,
// and what the arguments say of it. The pass reads the mask once, while attention reads it once for every head that
// shares it.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan);
// Region bits that a pipeline reads if it uses the mask's classes; 0 if the plan has no such pass.
uint32_t mask_class_reads(const Plan& plan);

// Upper bound on the number of tiles of `other` rows, of `all`, that one tile of `own` rows can see, without the
// batch's own lengths and offsets.
uint64_t longest_loop(const Problem& problem, uint32_t own, uint32_t other, uint64_t all);
// The upper bound that the window alone gives, for any lengths and offsets.
uint64_t longest_in_window(const Problem& problem, uint32_t own, uint32_t other);

// Names something that the problem or an option asks for and the baseline does not do; "" if there is nothing.
std::string beyond_baseline(const Problem& problem, const Options& options);

// True if no row may see more than one key. dP - delta of a row is then exactly dlse, but only if dP and delta are
// summed in the same order: matrix units give 2e-7 instead of 0 (H200, float16, one key).
bool sees_one_key(const Problem& problem);

// Query rows of all heads and batches.
inline uint64_t rows_of(const Problem& p) {
    return uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
}
inline bool has_keys(const Problem& p) {
    return p.batch != 0 && p.seqlen_kv != 0;
}

// Adds the BackwardArguments to a backward's plan, the blocks of `more` right behind it, and scratch for row
// statistics.
void add_backward_arguments(const Backward& backward, Plan& plan,
                            const std::vector<shared::ForwardArguments>& more = {});
// Row statistics cannot be processed in chunks. Fails if they exceed one allocation of the device.
Result<bool> check_statistics(const DeviceCaps& caps, const Problem& problem);
// True if rows of one tile (inputs or gradients) are too far apart for 32-bit offsets. Fails if the device cannot use
// wider ones.
Result<bool> has_far_rows(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                          uint32_t tile_q, uint32_t tile_kv);
// The pass that writes the statistics. Its grid: heads of all batches, tiles of delta_rows.
Launch<kernels::backward_delta> delta_launch(const DeviceCaps& caps, const Problem& problem,
                                             const Backward& backward, const TileChoice& tiles);
uint32_t delta_rows(const Problem& problem);

// Reserves a region of scratch behind those that are there.
void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes);

// What the parts of a row bring to a merge: an lse, or row_max and row_sum of a forward kernel, where row_max is in
// base 2 or natural, as the scores are, and perhaps the row's shift (shaders/lib/score_facts.glsl).
struct PartStatistics {
    bool max_sum = false, natural = true, shift = false;
    bool sinks = false;  // they join the merge
    uint32_t bytes() const { return max_sum ? PART_FLOATS(shift) * 4 : 4; }
};

// Adds the merge of parts to a plan. With any_order the result's bits may depend on the number of parts, empty ones
// included. No dispatch costs more than `limit`.
Result<bool> add_combine(const DeviceCaps& caps, const Combine& combine, PartStatistics statistics,
                         bool any_order, uint64_t limit, Plan& plan);

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

constexpr uint32_t ceil_div(uint64_t a, uint64_t b) {
    return static_cast<uint32_t>((a + b - 1) / b);
}

}  // namespace vkattn::core
