// The library's modules, and those that the application has compiled, on the command line.
#pragma once

#include <string>
#include <vector>

#include "vkattn/runtime.hpp"

namespace vkattn::tools {

// What plans take if --module is given: VkattnOptions::variant.
constexpr const char* variant_of_options = "command line";

// Gives the runtime's context a module for each NAME=FILE. Throws UsageError.
void add_modules(const Runtime& runtime, const std::vector<std::string>& given);

// Prints each module, and the command that compiles it in shaders/.
void print_modules();

}  // namespace vkattn::tools
