// These functions show what bench has measured, as a page or a part of one: plots of the rates, and a table.
#pragma once

#include <string>
#include <vector>

#include "common.hpp"

namespace vkattn::tools {

// Benched has the results of one tool: objects with name, ms, tflops and gbps, or with name and refused or wrong.
struct Benched {
    std::string tool;  // "" for vkattn
    std::vector<Json> cases;
};

// Reads what tools/peers/torch_sdpa.py or `vkattn bench --suite --json` has printed: an object a line. Throws a
// UsageError that names `option`.
std::vector<Benched> read_benched(const char* option, const std::string& path);

// Plots the rates by length, and those of vkattn, the first of `all`, by the operations that each byte has, below the
// ceilings, and puts vkattn's results into a table. `ceilings` is what to_json() makes of them.
std::string bench_section(const std::vector<Benched>& all, const Json& ceilings);

// Makes a page of a suite's JSON, beside others' results.
std::string bench_page(const Json& suite, std::vector<Benched> peers);

}  // namespace vkattn::tools
