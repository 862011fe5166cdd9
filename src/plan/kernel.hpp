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

// A row in a list of kernels. Inputs: the problem and, of the backward, what is wanted of it.
template <class... Inputs>
struct KernelRow {
    const char* name;
    const char* opt_in_reason;  // why the planner never chooses this kernel by itself; null if it may
    const char*
        opt_in_for_rounding;     // why not, where operands of the products may be rounded; null if it may
    const char* opt_in_on_cpus;  // why not on CPUs, where they need not be rounded; null if it may
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

// One head's matrix of the baseline in scratch, and into how many pieces its heads may be taken.
constexpr uint64_t max_pieces = 4096;
constexpr uint64_t max_matrix_bytes = uint64_t{1} << 36;  // of all heads: the kernels count vec4 in 32 bits
uint64_t matrix_bytes_of(const Problem& problem);

constexpr uint64_t default_max_scratch_bytes = uint64_t{1} << 30;
// Scratch that a plan may have in all, and what is left of it.
uint64_t scratch_limit(const DeviceCaps& caps, const Options& options);
uint64_t scratch_left(const DeviceCaps& caps, const Options& options, const Plan& plan);

// A plan of these tiles, without dispatches but with the argument block that the problem needs, if `arguments`.
Plan begin_plan(const Problem& problem, const TileChoice& tiles, bool arguments = true);

// A pipeline while it is planned: the constants and push constants of its kernel by their names.
template <class K>
struct Launch {
    using Kernel = K;
    using Push = typename K::Push;

    Module module{};
    bool rolled = false;
    typename K::Constants constants;
    Push push;
    std::vector<Patch> patches;
    uint32_t reads = 0, writes = 0;
    bool of_tuning_row = false;

    void patch(size_t at, Region region, uint64_t add = 0) {
        patches.push_back({static_cast<uint32_t>(at), region, add});
    }
    Pipeline pipeline() const {
        Pipeline p{module, rolled, {}, {}, patches, reads, writes, of_tuning_row};
        std::memcpy(p.constants.data(), &constants, sizeof constants);
        // By field: between two of them may lie bytes that are no field's, which stay 0.
        for (const FieldInfo& f : info_of(K::id).fields)
            std::memcpy(p.push.data() + f.offset_bytes,
                        reinterpret_cast<const std::byte*>(&push) + f.offset_bytes, f.size_bytes);
        return p;
    }
};
// Has the address of a region written to a field of the push constants.
#define VKATTN_PATCH(launch, field, ...) \
    (launch).patch(offsetof(typename std::remove_reference_t<decltype(launch)>::Push, field), __VA_ARGS__)

// Adds a pipeline to a plan; returns its place in it.
inline uint32_t add_pipeline(Plan& plan, Pipeline pipeline) {
    plan.pipelines.push_back(std::move(pipeline));
    return static_cast<uint32_t>(plan.pipelines.size() - 1);
}
void add_dispatch(Plan& plan, uint32_t pipeline, std::array<uint64_t, 3> groups, const Cut& cut,
                  uint64_t flops);

// The module for this storage type and device, of a kernel that has one for each. `dot`: the one whose products are
// 16-bit dot products, which the device has for this type.
Module module_for(Kernel kernel, VkattnDtype dtype, const DeviceCaps& caps, bool dot = false);
bool has_dot_products(const DeviceCaps& caps, VkattnDtype dtype);
// Refuses what 16-bit dot products cannot do on this device.
Result<bool> check_dot_products(const DeviceCaps& caps, VkattnDtype dtype);
inline bool has_two_forms(Module module) {
    return info_of(module).forms == 2;
}

// The arrays that recordings of a plan are given, by what it is of.
std::vector<CallerArray> caller_arrays_of(const Problem& problem);
std::vector<CallerArray> caller_arrays_of(const Problem& problem, const Backward& backward);
std::vector<CallerArray> caller_arrays_of(const Combine& combine);

// True if the push constants are too small for this problem, so that there is an argument block.
bool needs_arguments(const Problem& problem);
shared::ForwardArguments forward_arguments(const Problem& problem);
// Places the block in scratch, and the addresses in it that begin with a ForwardArguments.
void place_arguments(Plan& plan);

// The matrix kernel's launch for this problem.
Launch<kernels::forward_matrix> matrix_launch(const Problem& problem, const TileChoice& tiles);

// A pass that finds tiles which the mask hides entirely, or not at all, where that pays. It reads the mask once, where
// attention reads it once for every head that shares it. Its dispatch, its scratch, and what the plan's arguments say.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan);
// Region bits that a pipeline reads which uses the classes: none, if there are none.
uint32_t mask_class_reads(const Plan& plan);

// Upper bound on the number of tiles of `other` rows, of `all`, that one tile of `own` rows can see, without the
// batch's own lengths and offsets.
uint64_t longest_loop(const Problem& problem, uint32_t own, uint32_t other, uint64_t all);
// The upper bound that the window alone gives, for any lengths and offsets.
uint64_t longest_in_window(const Problem& problem, uint32_t own, uint32_t other);

// Names something that the problem or an option asks for and the baseline does not do; "" if there is nothing.
std::string beyond_baseline(const Problem& problem, const Options& options);

// True if no row may see more than one key. Its dP - delta is then dlse and nothing else, which only sums in one order
// give exactly: H200 on matrix units, float16, one key: 2e-7 in place of 0.
bool sees_one_key(const Problem& problem);

// Query rows of all heads and batches.
inline uint64_t rows_of(const Problem& p) {
    return uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
}
inline bool has_keys(const Problem& p) {
    return p.batch != 0 && p.seqlen_kv != 0;
}

// Gives a backward's plan its BackwardArguments, `more` blocks right behind it, and scratch for the rows' statistics.
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

// What parts have for each row: an lse or, from a forward kernel, row_max and row_sum. row_max is of the scores' kind
// (shaders/lib/scores.glsl).
enum class PartStatistics { lse, max_sum_log2, max_sum_natural };

// Adds the merge of parts to a plan. any_order: bits may depend on how many parts there are, empty ones too. No
// dispatch costs more than `limit`.
Result<bool> add_combine(const DeviceCaps& caps, const Combine& combine, PartStatistics statistics,
                         bool any_order, uint64_t limit, Plan& plan);

// Cuts a grid (x, y, z) into boxes that fit the device's and cost at most `limit` each, at `unit` a workgroup. Refuses
// if one workgroup costs more, or boxes are too many.
struct Box {
    std::array<uint64_t, 3> first, count;
};
constexpr uint64_t max_boxes = 1 << 16;
Result<std::vector<Box>> cut_grid(const DeviceCaps& caps, std::array<uint64_t, 3> grid, uint64_t unit,
                                  uint64_t limit);

// Floating-point operations that a dispatch may have.
uint64_t dispatch_limit(const DeviceCaps& caps, const Options& options);

// attempt(limit) with the limit of a dispatch. The default limit is no promise: where the attempt fails with it, it is
// doubled, because long dispatches are better than none.
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
