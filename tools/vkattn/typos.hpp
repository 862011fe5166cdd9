// Names that were probably meant, for words that are none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vkattn::tools {

// "; did you mean --causal?", with up to three of the names in it; empty where none is like the word. Leading dashes,
// case, and the difference between '-' and '_' count for nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace vkattn::tools
