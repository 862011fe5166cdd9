// Of a backward plan: grids and loops of its kernels, worked out from shaders/backward_*.comp, not from src/plan.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "plan_model.hpp"

namespace vkattn::test {

// The tile of a pass that recomputes tiles, and how many workgroups share a result, by its pipeline's constants.
struct PassTile {
    uint64_t q, kv, slices;
};
PassTile pass_tile(const core::Pipeline& pipeline);

struct BackwardModel {
    Model of_tiles;                  // tiles, classes, keys that are seen; nothing is packed or in parts
    bool on_matrices = false;        // the passes for dquery, dkey and dvalue are those on matrix units
    bool apart = false;              // dkey and dvalue have a pass each, dvalue's first
    uint64_t rows = 0, keys = 0;     // of all heads and batches
    std::array<uint64_t, 4> bias{};  // extents of dbias; all 0: not wanted
    bool mask_per_key = false;
};
BackwardModel model_of(const core::Problem& problem, const core::Backward& backward, const core::Plan& plan);

// Kinds of dispatches that must be there, in order.
std::vector<Kind> kinds_of(const BackwardModel& model);
// Workgroups of a pass; `pipeline`: the pass's, for what it may choose itself.
Triple grid_of(const core::Problem& problem, const BackwardModel& model, const core::Pipeline& pipeline);

// Steps of a workgroup's loop, as they are numbered: those begin .. end-1 that a dispatch may do.
struct Steps {
    uint64_t begin, end;
};
// nullopt: all of them.
std::optional<Steps> span_of(const core::Plan& plan, const core::Dispatch& d);
// As many as any workgroup of a pass has.
uint64_t steps_of(const core::Problem& problem, const BackwardModel& model, const core::Pipeline& pipeline);
// As many as a workgroup does at most, of those in `span`.
uint64_t steps_done(const core::Problem& problem, const BackwardModel& model, const core::Pipeline& pipeline,
                    const Triple& workgroup, const std::optional<Steps>& span);
// Operations of a step.
double cost_of_step(const core::Problem& problem, const BackwardModel& model, const core::Pipeline& pipeline);

// Bytes of the accumulators that a pass keeps between dispatches.
uint64_t kept_bytes(const core::Problem& problem, const BackwardModel& model, const core::Pipeline& pipeline);

// Whether rows of a tile of any tensor lie beyond 31-bit offsets in bytes. `slack`: rows more than the shaders address.
bool far_rows(const core::Problem& problem, const core::Backward& backward, uint64_t tile_q, uint64_t tile_kv,
              uint64_t slack);

// Whether a pass's loops are cut into dispatches.
inline bool is_cut(const core::Pipeline& pipeline) {
    return recomputes(kind_of(pipeline)) && constant(pipeline, "is_resumed") != 0;
}
inline bool is_cut(const core::Plan& plan) {
    return std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                       [](const core::Pipeline& pipeline) { return is_cut(pipeline); });
}

}  // namespace vkattn::test
