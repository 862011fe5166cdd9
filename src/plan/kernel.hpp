// What the kernels' planners share: a row in the list of kernels, and the pieces that every forward dispatch
// is made of.
#pragma once

#include <cstddef>
#include <cstring>

#include "plan.hpp"
#include "tuning.hpp"

namespace vkattn::core {

struct Kernel {
    const char* name;
    const char* only_by_name;  // why it is never the planner's choice; null: it may be
    Result<Plan> (*make)(const DeviceCaps&, const Problem&, const Options&);
};

Result<Plan> plan_forward_rows(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix_khr(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_tiles(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_materialized(const DeviceCaps&, const Problem&, const Options&);

struct BackwardKernel {
    const char* name;
    const char* only_by_name;
    Result<Plan> (*make)(const DeviceCaps&, const Problem&, const Backward&, const Options&);
};

Result<Plan> plan_backward_tiles(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_materialized_backward(const DeviceCaps&, const Problem&, const Backward&, const Options&);

// What the operands of the products may be rounded to: the storage type, or what options.precision says.
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

// Of the five variants of a kernel with storage types, `float32` being the first, the one for this type and device.
Variant variant_for(Variant float32, VkattnDtype dtype, const DeviceCaps& caps);

// Whether the push constants are too small for this problem, so that there is an argument block.
bool needs_arguments(const Problem& problem);
shared::ForwardArguments forward_arguments(const Problem& problem);
// Places the block in scratch, and the addresses in it that begin with a ForwardArguments.
void place_arguments(Plan& plan);

// One launch of `variant` with the push constants and specialization that all kernels have in common. `arguments`: they
// have an argument block.
Dispatch common_dispatch(const Problem& problem, Variant variant, const TileChoice& tiles, bool arguments);
inline Dispatch forward_dispatch(const Problem& problem, Variant variant, const TileChoice& tiles) {
    return common_dispatch(problem, variant, tiles, needs_arguments(problem));
}

// The same for the matrix kernel.
Dispatch matrix_dispatch(const Problem& problem, const TileChoice& tiles);

// A pass that finds tiles which the mask hides entirely, or not at all, where that pays. It reads the mask once, where
// attention reads it once for every head that shares it. Its dispatch, its scratch, and what the plan's arguments say.
void add_mask_classes(const DeviceCaps& caps, const Options& options, const TileChoice& tiles,
                      uint64_t query_tiles, Plan& plan);
// Lets a dispatch use them, if there are any.
void use_mask_classes(const Plan& plan, Dispatch& dispatch);

// Tiles of `other` rows that the band of visible places leaves to a tile of `own` rows at most, of `all`: by what is known
// without the batch's own lengths and offsets.
uint64_t longest_loop(const Problem& problem, uint32_t own, uint32_t other, uint64_t all);
// The same by the window alone: for any lengths and offsets.
uint64_t longest_in_window(const Problem& problem, uint32_t own, uint32_t other);

// What the baseline does not do, of all that a problem or an option may ask for; "" if nothing.
std::string beyond_baseline(const Problem& problem, const Options& options);

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
// Of all scratch, statistics are not to be had in pieces: refuses more of them than the device can allocate.
Result<bool> check_statistics(const DeviceCaps& caps, const Problem& problem);
// Whether rows of a tile, of gradients too, lie too far apart for narrow offsets. Refuses what the device cannot do.
Result<bool> find_wide_rows(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                            uint32_t tile_q, uint32_t tile_kv);
// The pass that writes the statistics, without its grid: heads of all batches, tiles of delta_rows.
Dispatch delta_dispatch(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                        const TileChoice& tiles);
uint32_t delta_rows(const Problem& problem);

// Overwrites a member of the push constants, which begins at byte `at`.
template <class T>
void set_push(Dispatch& dispatch, size_t at, const T& value) {
    std::memcpy(dispatch.push.data() + at, &value, sizeof value);
}
#define VKATTN_SET_PUSH(dispatch, field, value) \
    set_push<decltype(shared::ForwardPush::field)>(dispatch, offsetof(shared::ForwardPush, field), value)

// Reserves a region of scratch behind those that are there.
void reserve_scratch(Plan& plan, Region region, uint64_t size_bytes);

// The merge of parts as dispatches. own_parts: those of a forward kernel, with row_max and row_sum for an lse. any_order: bits
// may depend on how many parts there are, empty ones too. None costs more than `limit`.
Result<std::vector<Dispatch>> combine_dispatches(const DeviceCaps& caps, const Combine& combine,
                                                 bool own_parts, bool any_order, uint64_t limit);

// Cuts a grid (x, y, z) into boxes that fit the device's and cost at most `limit` each, at `unit` a workgroup. Refuses if
// one workgroup costs more, or boxes are too many.
struct Box {
    std::array<uint64_t, 3> first, count;
};
constexpr uint64_t max_boxes = 1 << 16;
Result<std::vector<Box>> cut_grid(const DeviceCaps& caps, std::array<uint64_t, 3> grid, uint64_t unit,
                                  uint64_t limit);

// Floating-point operations that a dispatch may have.
uint64_t dispatch_limit(const DeviceCaps& caps, const Options& options);

constexpr uint32_t ceil_div(uint64_t a, uint64_t b) {
    return static_cast<uint32_t>((a + b - 1) / b);
}

}  // namespace vkattn::core
