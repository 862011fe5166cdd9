// Block maps by a word, for problems that have no files: explain and bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vkattn/vkattn.hpp"

namespace vkattn::tools {

// Sets what a problem says of its map, which is one of these:
//   random:SHARE         each head hides that share of its blocks
//   causal-documents:N   causal, over N documents of equal length, of which none sees another
//   ones                 no block is hidden
// Throws UsageError.
void ask_for_map(const std::string& text, VkattnProblem& problem);

// The blocks of the map of such a problem.
std::vector<uint8_t> make_map(const std::string& text, const VkattnProblem& problem);

}  // namespace vkattn::tools
