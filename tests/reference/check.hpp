// check: files of results, held to the error rule.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "problem.hpp"

namespace reference {

struct CheckOptions {
    ProblemOptions problem;
    std::filesystem::path out, lse;
};
void declare_check(CLI::App& command, CheckOptions& options);

// A line for each tensor goes to `lines`. The exit code: 1 if a tensor breaks the rule. Throws UsageError.
int check(const CheckOptions& options, std::FILE* lines);

}  // namespace reference
