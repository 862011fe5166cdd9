// The library speaks of fields of its structs; who sits at a terminal has given options.
#pragma once

#include <string>
#include <string_view>

#include "common.hpp"

namespace vkattn::tools {

// The text with each field that an option or a file of the command line stands for replaced by that option's name.
std::string with_option_names(std::string_view text, Shapes shapes);

}  // namespace vkattn::tools
