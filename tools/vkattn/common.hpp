// What the subcommands share: errors with exit codes, the options that describe a problem, a few formats.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu/storage.hpp"
#include "npy.hpp"
#include "vkattn/runtime.hpp"

namespace vkattn::tools {

using Json = nlohmann::ordered_json;

constexpr int exit_done = 0, exit_usage = 2, exit_device = 3, exit_not_right = 4, exit_slower = 5;

// Thrown by a subcommand that has said everything: ends the program with this code.
struct ExitCode {
    int code;
};

// Bad usage or input: exit code 2. The text names the argument first.
class UsageError : public std::runtime_error {
  public:
    UsageError(const std::string& argument, const std::string& what)
        : std::runtime_error(argument + ": " + what) {}
    explicit UsageError(const std::string& whole) : std::runtime_error(whole) {}
};

// Options of run, grad, explain and bench that say what to compute and how.
struct AttentionOptions {
    std::string layout = "bhsd", scale, align, window, kernel = "auto", tuning, precision = "storage", device,
                pipeline_cache, alibi_of = "distance", block_size;
    std::vector<std::string> modules;  // NAME=FILE
    float softcap = 0;
    double max_dispatch_gflop = 0;
    uint32_t num_splits = 0;
    bool causal = false;
    bool batch_invariant = false;
    bool json = false;

    void add_to(CLI::App& app);
    bool bshd() const;  // the layout; throws UsageError
    // Sets what the options give. Shapes and strides are no part of them. Throws UsageError.
    void apply(VkattnProblem& problem) const;
    VkattnOptions plan_options() const;  // points into this object; throws UsageError
    RuntimeOptions runtime_options() const;
};

// Shapes and types given on the command line: explain and bench.
struct ShapeOptions {
    uint32_t batch = 1, heads_q = 1, seqlen_q = 0, head_dim_qk = 0;
    std::optional<uint32_t> heads_kv, seqlen_kv, head_dim_v, value_in_key;
    std::string dtype = "f32", mask_shape, mask_type = "bool", block_map;
    std::optional<std::string> kv_dtype, kv_scales, out_dtype, mask_dtype;
    bool kv_lengths_given = false, alibi = false, sinks = false;

    void add_to(CLI::App& app);
    void apply(VkattnProblem& problem) const;  // throws UsageError
    // Sets types of key, value and out, scales, slopes, sinks and block map alone: the cases of a suite take these, and
    // have shapes of their own.
    void apply_terms(VkattnProblem& problem) const;
};

// The option --value-in-key.
CLI::Option* add_value_in_key(CLI::App& app, std::optional<uint32_t>& value_in_key);
// Checks that a value that lies in its key was not given a type of its own. Throws UsageError.
void check_types_of_key(const VkattnProblem& p);

VkattnDtype parse_dtype(const std::string& text);  // f32, f16 or bf16; throws UsageError
const char* dtype_text(VkattnDtype dtype);
// Returns an operand's type, which is the problem's unless it has its own.
VkattnDtype dtype_of(const VkattnProblem& p, VkattnDtype operand);
// Returns the operands that have another type than the problem, and their types.
std::vector<std::pair<std::string, VkattnDtype>> own_dtypes(const VkattnProblem& p);
std::string dtypes_text(const VkattnProblem& p);  // "f32", or "f32, key q8_0, value f16"
const char* scales_text(VkattnScales scales);     // "one", "heads" or "rows", as --kv-scales takes it
NpyDtype npy_dtype(VkattnDtype dtype);
using oracle::block_elements;
using test::blocks_of;
using test::bytes_of;
using test::element_bytes;
using test::is_single_bytes;

// Sets the alignment that dense tensors at 256-byte boundaries have, so that the widest loads are used.
// And the strides of dense tensors whose axes are (batch, heads, seqlen, dim) or, bshd, (batch, seqlen, heads, dim).
void set_dense_layout(VkattnProblem& problem, bool bshd);
// Gradients that lie as the tensors of such a problem do.
VkattnBackward dense_backward(const VkattnProblem& problem);

// Opens the device that the options name; said on a terminal where it takes long.
Runtime open_runtime(const AttentionOptions& options);
// Refuses a device that executes nothing before anything is compiled for it or printed about it, and says on standard
// error which kernels the self-test has found wrong.
void require_execution(Runtime& runtime);

uint64_t element_count(uint32_t batch, uint32_t heads, uint32_t seqlen, uint32_t dim);
double median(std::vector<double> values);  // of at least one
std::string bytes_text(double bytes);       // "12.6 MB"

// A library error from planning, with the fields of the problem named as the command line names them.
enum class Shapes { of_options, of_files };
[[noreturn]] void rethrow_as_usage(const Error& error, Shapes shapes = Shapes::of_options);

void add_info(CLI::App& app);
void add_run(CLI::App& app);
void add_grad(CLI::App& app);
void add_explain(CLI::App& app);
void add_bench(CLI::App& app);
void add_conformance(CLI::App& app);
void add_report(CLI::App& app);

}  // namespace vkattn::tools
