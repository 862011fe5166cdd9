// check and check-grad: files of results, held to the error rule.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "problem.hpp"

namespace reference {

struct CheckOptions {
    ProblemOptions problem;
    std::filesystem::path out, lse;
    std::string precision = "storage";
};
void declare_check(CLI::App& command, CheckOptions& options);

struct CheckGradOptions {
    ProblemOptions problem;
    std::filesystem::path dout, dlse, dq, dk, dv, dbias;
};
void declare_check_grad(CLI::App& command, CheckGradOptions& options);

// A line for each tensor goes to `lines`. The exit code: 1 if a tensor breaks the rule. Both throw UsageError.
int check(const CheckOptions& options, std::FILE* lines);
int check_grad(const CheckGradOptions& options, std::FILE* lines);

}  // namespace reference
