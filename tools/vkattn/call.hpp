// What --json says of the call itself, so that it can be repeated: arguments, versions, device, shapes, options.
#pragma once

#include "common.hpp"

namespace vkattn::tools {

// Called once, by main.
void keep_arguments(int argc, char** argv);

// The first members of every JSON object: arguments as they were given, versions and device.
Json call_json(const Runtime& runtime);

// Shapes and features under the names of their options, with what was not given filled in.
Json problem_json(const VkattnProblem& problem, bool bshd);
Json options_json(const AttentionOptions& options);

std::string version_text(uint32_t version);  // of Vulkan, as in 1.3.275

}  // namespace vkattn::tools
