// Of a backward plan: grids and loops of its kernels, worked out from shaders/backward_*.comp, not from src/plan.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "plan_model.hpp"

namespace vkattn::test {

using Triple = Cover::Triple;

struct BackwardModel {
    Model of_tiles;                  // tiles, classes, keys that are seen; nothing is packed or in parts
    uint64_t rows = 0, keys = 0;     // of all heads and batches
    std::array<uint64_t, 4> bias{};  // extents of dbias; all 0: not wanted
    bool mask_per_key = false;
};
BackwardModel model_of(const core::Problem& problem, const core::Backward& backward, const core::Plan& plan);

// Kinds of dispatches that must be there, in order.
std::vector<Kind> kinds_of(const BackwardModel& model);
// Workgroups of one kind; `d`: one of them, for what it may choose itself.
Triple grid_of(const core::Problem& problem, const BackwardModel& model, const core::Dispatch& d);
// Where a dispatch begins in it.
Triple begin_of(const core::Dispatch& d);

// Steps of a workgroup's loop, as they are numbered: those begin .. end-1 that a dispatch may do.
struct Steps {
    uint64_t begin, end;
};
// nullopt: all of them.
std::optional<Steps> span_of(const core::Dispatch& d);
// As many as any workgroup of a kind has.
uint64_t steps_of(const core::Problem& problem, const BackwardModel& model, Kind kind);
// As many as a workgroup does at most, of those in `span`.
uint64_t steps_done(const core::Problem& problem, const BackwardModel& model, Kind kind,
                    const Triple& workgroup, const std::optional<Steps>& span);
// Operations of a step.
double cost_of_step(const core::Problem& problem, const BackwardModel& model, const core::Dispatch& d);

// Bytes of the accumulators that a kind keeps between dispatches.
uint64_t saved_bytes(const core::Problem& problem, const BackwardModel& model, Kind kind);

inline bool is_cut(const core::Dispatch& d) {
    return d.specialization[SPEC_SAVED] != 0;
}

}  // namespace vkattn::test
