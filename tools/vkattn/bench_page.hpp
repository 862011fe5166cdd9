// What bench has measured as parts of a page, and as a page: plots of the rates, and a table.
#pragma once

#include <string>
#include <vector>

#include "common.hpp"

namespace vkattn::tools {

// The results of one tool: objects with name, ms, tflops and gbps, or with name and refused or wrong.
struct Benched {
    std::string tool;  // "" for vkattn
    std::vector<Json> cases;
};

// Reads what tools/peers/torch_sdpa.py or `vkattn bench --suite --json` has printed: an object a line. Throws a
// UsageError that names `option`.
std::vector<Benched> read_benched(const char* option, const std::string& path);

// Rates by length, and vkattn's by the operations that each byte has, below the ceilings; then a table of vkattn's, the
// first of `all`. `ceilings` as to_json() of them has it.
std::string bench_section(const std::vector<Benched>& all, const Json& ceilings);

// A page of a suite's JSON, beside others' results.
std::string bench_page(const Json& suite, std::vector<Benched> peers);

}  // namespace vkattn::tools
