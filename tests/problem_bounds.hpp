// This models on the host which keys shaders/lib/sequences.glsl shows a query row, and compares them with the
// definition.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "problem.hpp"

namespace vkattn::test {

// Returns the keys begin .. end-1 that find_bounds and visible_keys leave to row i, where the batch has this kv length
// and this offset. `overflow` is set where the shader's 32-bit arithmetic would wrap.
std::pair<int64_t, int64_t> device_keys(const core::Problem& problem, uint32_t i, int32_t length,
                                        int32_t offset, bool& overflow);

// Returns "" if the shaders show row i exactly what the definition shows it, as far as keys around the edges of both
// tell.
std::string row_flaw(const VkattnProblem& given, const core::Problem& problem, uint32_t i, int32_t length,
                     int32_t offset);

}  // namespace vkattn::test
