// What check and check-grad share: a problem in .npy files, and tensors beside it.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../../tools/vkattn/npy.hpp"
#include "../oracle/attention.hpp"

namespace reference {

// Bad usage, files that do not fit together included: exit code 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct ProblemOptions {
    std::filesystem::path query, key, value, mask, kv_lengths, query_offsets, alibi, sinks, block_map;
    std::string layout = "bhsd";
    std::optional<double> scale;
    bool causal = false;
    std::string align = "bottom-right";
    std::string window = "-1,-1", alibi_of = "distance", block_size = "128,128";
    double softcap = 0;
};

using Shape4 = std::array<std::size_t, 4>;  // (batch, heads, seqlen, head_dim)

struct Tensor {
    Shape4 shape{};
    std::vector<float> values;  // contiguous in the order of shape
};

struct GivenProblem {
    oracle::Problem problem;
    Shape4 query_shape{}, key_shape{}, value_shape{}, out_shape{};  // out: as it must be
    std::vector<double> query, key, value;
};

// storage_dtype: what decides the storage type, as the help calls it.
void declare_problem(CLI::App& command, ProblemOptions& options, std::string_view storage_dtype);

// All throw UsageError that names the argument. Tensors are brought to `storage` and out of their layout.
GivenProblem read_problem(const ProblemOptions& options, vkattn::tools::NpyDtype storage);
vkattn::tools::NpyArray read_argument(std::string_view argument, const std::filesystem::path& path);
std::vector<float> stored_values(std::string_view argument, vkattn::tools::NpyArray array,
                                 vkattn::tools::NpyDtype storage);
Tensor read_tensor(std::string_view argument, const std::filesystem::path& path, std::string_view layout,
                   vkattn::tools::NpyDtype storage);
void require_shape(std::string_view argument, const Shape4& shape, const Shape4& expected,
                   std::string_view otherwise);  // what the message says of the shape
std::vector<float> read_rows(std::string_view argument, const std::filesystem::path& path,
                             const oracle::Problem& problem);  // float32 (batch, heads, seqlen)
oracle::StorageType storage_of(std::string_view argument, vkattn::tools::NpyDtype dtype);
std::vector<double> widen(const std::vector<float>& values);

}  // namespace reference
