// Tables of cases: those that other libraries are measured by too, with the names of tools/peers, those of models, and
// one problem with many lengths.
#pragma once

#include <string>
#include <vector>

#include "bench_results.hpp"
#include "common.hpp"
#include "workload.hpp"

namespace vkattn::tools {

// The names of its cases, one a line.
void list_suite(const std::string& suite);

// Returns a problem of dense tensors without a feature.
VkattnProblem plain_problem(VkattnDtype dtype, uint32_t batch, uint32_t heads_q, uint32_t heads_kv,
                            uint32_t queries, uint32_t keys, uint32_t head_dim);

struct SuiteCase {
    std::string name;
    VkattnProblem problem;
};

// The cases of a suite, with `options` and the dtype, slopes, sinks and block map of `shape`. Throws UsageError for an
// unknown suite.
std::vector<SuiteCase> cases_of(const std::string& suite, const ShapeOptions& shape,
                                const AttentionOptions& options);

// How the cases of a suite are run.
struct SuiteRun {
    const AttentionOptions& options;
    Pass pass;
    uint32_t repeats;
    std::string block_map;
    std::string report, peer;  // a page to write, and a file of others' results to put beside; or ""
};

// Measures one case by itself: {name, ms, tflops, gbps, flops, kernel, ...}, or {name, refused}; null if it was
// interrupted.
Json measure_case(Runtime& runtime, const SuiteCase& c, const SuiteRun& run);

// Runs every case of a suite, and prints a table, CSV or one object of JSON. Outputs are poisoned before and looked
// through after.
void run_suite(Runtime& runtime, const std::string& suite, const std::vector<SuiteCase>& cases,
               const SuiteRun& run, Results& out);

}  // namespace vkattn::tools
