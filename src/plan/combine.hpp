// The merge of parts, of a split forward or of a caller.
#pragma once

#include <cstdint>

#include "plan.hpp"

namespace vkattn::core {

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

}  // namespace vkattn::core
