// The files that vkattn run reads, made into a problem and its data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common.hpp"

namespace vkattn::tools {

// As on the command line.
struct RunFiles {
    std::string query, key, value;
    std::optional<std::string> mask, kv_lengths, query_offsets, dtype;
};

struct RunInputs {
    VkattnProblem problem;
    NpyArray query, key, value;  // all of the problem's dtype
    NpyArray mask;               // bool or of the problem's dtype
    std::vector<int32_t> kv_lengths, query_offsets;
};

// Throws UsageError, naming the argument whose file is wrong or does not fit the others.
RunInputs read_inputs(const RunFiles& files, const AttentionOptions& options);

}  // namespace vkattn::tools
