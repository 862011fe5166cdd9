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

// "1 dispatch", "2 dispatches"; the plural is the word with s where none is given.
std::string count_text(uint64_t count, const std::string& word, const std::string& plural = "");

// What an attention that keeps whole matrices needs for them in float32: the scores, and for the gradients dP too.
uint64_t matrix_bytes(const VkattnProblem& problem, bool backward);

std::string version_text(uint32_t version);  // of Vulkan, as in 1.3.275

}  // namespace vkattn::tools
