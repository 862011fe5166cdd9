// make: the inputs of an attention problem, written to .npy files.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace reference {

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
int make(MakeOptions options);  // the exit code; throws UsageError

}  // namespace reference
