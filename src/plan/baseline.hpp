// What the materialised baseline is limited to.
#pragma once

#include <cstdint>
#include <string>

#include "plan.hpp"

namespace vkattn::core {

// Limits of the materialised baseline, and the size of one head's score matrix in scratch. A piece is a group of heads
// that share the scratch.
constexpr uint64_t max_pieces = 4096;
constexpr uint64_t max_matrix_bytes = uint64_t{1} << 36;  // of all heads: the kernels count vec4 in 32 bits
uint64_t matrix_bytes_of(const Problem& problem);

// Names something that the problem or an option asks for and the baseline does not do; "" if there is nothing.
std::string beyond_baseline(const Problem& problem, const Options& options);

}  // namespace vkattn::core
