// The files that describe a problem, for run and grad: made into the problem and its data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "files.hpp"

namespace vkattn::tools {

// As on the command line.
struct InputFiles {
    std::string query, key, value;  // no value with value_in_key
    std::optional<uint32_t> value_in_key;
    std::optional<std::string> mask, dtype, kv_dtype, out_dtype;
    ArrayFiles arrays;

    // Those of a problem, --query-offsets in place of the options' --align.
    void add_tensors(CLI::App& app);
    void add_features(CLI::App& app, AttentionOptions& options);
    void add_arrays(CLI::App& app, bool of_backward);  // the arrays that a backward has, or the others
    // Adds the options that only a forward has: the types of key and value, their scales, and --value-in-key.
    void add_of_forward(CLI::App& app);
    std::optional<NpyDtype> wanted_dtype() const;      // --dtype; throws UsageError
    std::optional<NpyDtype> wanted_out_dtype() const;  // --out-dtype; throws UsageError
    std::vector<NamedFile> named() const;              // those that are given
};

struct Inputs {
    VkattnProblem problem;
    FileArray query, key, value;  // key and value may be blocks, as uint8
    FileArray mask;
    ArrayContents arrays;
    bool map_from_mask = false;  // arrays have no block map yet: make_block_map() makes it

    std::vector<uint64_t> out_shape() const;  // in the layout of the files
    std::vector<uint64_t> lse_shape() const;
};

// Throws UsageError, naming the argument whose file is wrong or does not fit the others.
Inputs read_inputs(const InputFiles& files, const AttentionOptions& options);

}  // namespace vkattn::tools
