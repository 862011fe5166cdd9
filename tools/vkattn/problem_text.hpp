// The problem that files and options have made, for people: what was read, and what each row sees.
#pragma once

#include <string>
#include <vector>

#include "inputs.hpp"

namespace vkattn::tools {

// A line each, of which the first word says what it is about.
std::vector<std::string> problem_lines(const Inputs& inputs, bool bshd);

}  // namespace vkattn::tools
