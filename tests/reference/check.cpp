#include "commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "../oracle/backward.hpp"

namespace reference {
namespace {

using namespace vkattn::tools;

constexpr std::string_view not_of_out = "does not follow from --query and --value";

bool report(std::FILE* lines, std::string_view tensor, const oracle::Bound& bound) {
    fmt::print(lines, "{}: max error {:.2g}, allowed {:.2g}: {}\n", tensor, bound.measured, bound.allowed,
               bound.ok ? "ok" : "FAILED");
    return bound.ok;
}

// All gradients given are of one dtype, which is the storage type.
NpyDtype gradient_dtype(const CheckGradOptions& options) {
    std::string_view first;
    NpyDtype common{};
    for (const auto& [argument, path] : {std::pair{"--dq", &options.dq},
                                         {"--dk", &options.dk},
                                         {"--dv", &options.dv},
                                         {"--dbias", &options.dbias}}) {
        if (path->empty()) continue;
        const NpyDtype dtype = read_argument(argument, *path).dtype;
        if (first.empty()) {
            first = argument;
            common = dtype;
            storage_of(argument, dtype);
        }
        if (dtype != common)
            throw UsageError(
                fmt::format("{}: dtype {} is not that of {}", argument, dtype_name(dtype), first));
    }
    if (first.empty()) throw UsageError("--dq: this, --dk, --dv or --dbias is needed");
    return common;
}

std::optional<oracle::StorageType> operands_of(const std::string& precision) {
    if (precision == "storage") return {};
    if (precision == "f16") return oracle::StorageType::float16;
    if (precision == "bf16") return oracle::StorageType::bfloat16;
    throw UsageError("--precision: is not storage, f16 or bf16");
}

std::vector<float> read_dbias(const CheckGradOptions& options, const oracle::Problem& problem,
                              NpyDtype storage) {
    if (!problem.mask || !problem.mask->additive)
        throw UsageError("--dbias: there is no --mask of a float type");
    NpyArray array = read_argument("--dbias", options.dbias);
    if (!std::equal(array.shape.begin(), array.shape.end(), problem.mask->extents.begin(),
                    problem.mask->extents.end()))
        throw UsageError("--dbias: the shape is not that of --mask");
    return stored_values("--dbias", std::move(array), storage);
}

}  // namespace

int check(const CheckOptions& options, std::FILE* lines) {
    const NpyDtype dtype = read_argument("--out", options.out).dtype;
    const oracle::StorageType storage = storage_of("--out", dtype);
    const GivenProblem given = read_problem(options.problem, dtype);
    const Tensor out = read_tensor("--out", options.out, options.problem.layout, dtype);
    require_shape("--out", out.shape, given.out_shape, not_of_out);
    std::optional<std::vector<float>> lse;
    if (!options.lse.empty()) lse = read_rows("--lse", options.lse, given.problem);

    const oracle::Result expected = oracle::forward(given.problem, given.query, given.key, given.value);
    const oracle::NaiveResult naive = oracle::naive_forward(
        given.problem, given.query, given.key, given.value, storage, operands_of(options.precision));
    bool ok = report(lines, "out", oracle::check(out.values, expected.out, naive.out, storage));
    if (lse)
        ok &=
            report(lines, "lse", oracle::check(*lse, expected.lse, naive.lse, oracle::StorageType::float32));
    return ok ? 0 : 1;
}

int check_grad(const CheckGradOptions& options, std::FILE* lines) {
    const NpyDtype dtype = gradient_dtype(options);
    const oracle::StorageType storage = storage_of("--dq", dtype);
    const GivenProblem given = read_problem(options.problem, dtype);
    const auto tensor = [&](std::string_view argument, const std::filesystem::path& path, const Shape4& shape,
                            std::string_view otherwise) {
        Tensor read = read_tensor(argument, path, options.problem.layout, dtype);
        require_shape(argument, read.shape, shape, otherwise);
        return std::move(read.values);
    };
    const std::vector<double> dout = widen(tensor("--dout", options.dout, given.out_shape, not_of_out));
    std::vector<double> dlse;
    if (!options.dlse.empty()) dlse = widen(read_rows("--dlse", options.dlse, given.problem));
    std::optional<std::vector<float>> dq, dk, dv, dbias;
    if (!options.dq.empty()) dq = tensor("--dq", options.dq, given.query_shape, "is not that of --query");
    if (!options.dk.empty()) dk = tensor("--dk", options.dk, given.key_shape, "is not that of --key");
    if (!options.dv.empty()) dv = tensor("--dv", options.dv, given.value_shape, "is not that of --value");
    if (!options.dbias.empty()) dbias = read_dbias(options, given.problem, dtype);

    const oracle::Gradients expected =
        oracle::backward(given.problem, given.query, given.key, given.value, dout, dlse);
    const oracle::NaiveGradients naive =
        oracle::naive_backward(given.problem, given.query, given.key, given.value, dout, dlse, storage);
    bool ok = true;
    if (dq) ok &= report(lines, "dq", oracle::check(*dq, expected.query, naive.query, storage));
    if (dk) ok &= report(lines, "dk", oracle::check(*dk, expected.key, naive.key, storage));
    if (dv) ok &= report(lines, "dv", oracle::check(*dv, expected.value, naive.value, storage));
    if (dbias) ok &= report(lines, "dbias", oracle::check(*dbias, expected.mask, naive.mask, storage));
    if (!options.dsinks.empty())
        ok &= report(lines, "dsinks",
                     oracle::check(to_float(read_argument("--dsinks", options.dsinks)), expected.sinks,
                                   naive.sinks, storage));
    return ok ? 0 : 1;
}

void declare_check(CLI::App& command, CheckOptions& options) {
    declare_problem(command, options.problem, "--out");
    command.add_option("--out", options.out, "the result to check; its dtype is the storage type")
        ->required();
    command.add_option("--lse", options.lse, "the log-sum-exp to check: (batch, heads, seqlen) float32");
    command.add_option("--precision", options.precision,
                       "what the products' operands may be rounded to: storage (default), f16 or bf16");
}

void declare_check_grad(CLI::App& command, CheckGradOptions& options) {
    declare_problem(command, options.problem, "the gradients to check");
    command.add_option("--dout", options.dout, "the gradient of out")->required();
    command.add_option("--dlse", options.dlse,
                       "the gradient of lse: (batch, heads, seqlen) float32; default: 0");
    command.add_option("--dq", options.dq, "a gradient to check; all are of one dtype, the storage type");
    command.add_option("--dk", options.dk, "a gradient to check");
    command.add_option("--dv", options.dv, "a gradient to check");
    command.add_option("--dbias", options.dbias, "a gradient to check, in the shape of --mask");
    command.add_option("--dsinks", options.dsinks, "a gradient to check, float32 (heads of --query)");
}

}  // namespace reference
