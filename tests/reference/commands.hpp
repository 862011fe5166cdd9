// The subcommands of vkattn_reference. Exit codes are returned; all throw UsageError.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "problem.hpp"

namespace reference {

// make: the inputs of an attention problem, written to .npy files.
struct MakeOptions {
    std::filesystem::path folder;
    std::filesystem::path text;
    std::size_t batch = 1;
    std::size_t heads_q = 8;
    std::size_t heads_kv = 2;
    std::size_t seqlen = 1024;
    std::size_t seqlen_kv = 0;  // 0: as seqlen
    std::size_t head_dim = 64;
    std::size_t head_dim_v = 0;  // 0: as head_dim
    std::string dtype = "f32";
    std::vector<std::uint64_t> mask;  // extents; none: no mask
    std::string mask_type = "bool";
    bool kv_lengths = false;
    bool grad = false;
    bool dlse = false;
    std::uint64_t seed = 1;

    // Queries are the last tokens of a sequence.
    std::size_t tokens() const { return std::max(seqlen, seqlen_kv); }
};

void declare_make(CLI::App& command, MakeOptions& options);
int make(MakeOptions options);

// check and check-grad: files of results, held to the error rule.
struct CheckOptions {
    ProblemOptions problem;
    std::filesystem::path out, lse;
    std::string precision = "storage";
};
void declare_check(CLI::App& command, CheckOptions& options);

struct CheckGradOptions {
    ProblemOptions problem;
    std::filesystem::path dout, dlse, dq, dk, dv, dbias, dsinks;
};
void declare_check_grad(CLI::App& command, CheckGradOptions& options);

// quantise and decode: floats into ggml's blocks, as uint8, and back into float32.
struct BlocksOptions {
    std::string type;
    std::filesystem::path in, out;
};
void declare_blocks(CLI::App& command, BlocksOptions& options);
int quantise(const BlocksOptions& options);
int decode(const BlocksOptions& options);

// A line for each tensor goes to `lines`; 1 if a tensor breaks the rule.
int check(const CheckOptions& options, std::FILE* lines);
int check_grad(const CheckGradOptions& options, std::FILE* lines);

}  // namespace reference
