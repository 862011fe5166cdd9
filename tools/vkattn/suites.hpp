// Tables of cases that other libraries are measured by too: tools/peers has the same names.
#pragma once

#include "common.hpp"
#include "workload.hpp"

namespace vkattn::tools {

// Throws UsageError for an unknown suite.
void check_suite(const std::string& suite);

// The names of its cases, one a line.
void list_suite(const std::string& suite);

// Runs a pass of every case of a suite, with `options` and the dtype, slopes, sinks and block map of `shape`, and
// prints a table or, with --json, one object. Outputs are poisoned before and looked through after.
void run_suite(Runtime& runtime, const std::string& suite, const ShapeOptions& shape,
               const AttentionOptions& options, Pass pass, uint32_t repeats);

}  // namespace vkattn::tools
