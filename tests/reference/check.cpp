#include "check.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <vector>

#include "../oracle/attention.hpp"

namespace reference {
namespace {

using namespace vkattn::tools;

constexpr std::string_view not_of_out = "does not follow from --query and --value";

bool report(std::FILE* lines, std::string_view tensor, const oracle::Bound& bound) {
    fmt::print(lines, "{}: max error {:.2g}, allowed {:.2g}: {}\n", tensor, bound.measured, bound.allowed,
               bound.ok ? "ok" : "FAILED");
    return bound.ok;
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
    const oracle::NaiveResult naive =
        oracle::naive_forward(given.problem, given.query, given.key, given.value, storage);
    bool ok = report(lines, "out", oracle::check(out.values, expected.out, naive.out, storage));
    if (lse)
        ok &=
            report(lines, "lse", oracle::check(*lse, expected.lse, naive.lse, oracle::StorageType::float32));
    return ok ? 0 : 1;
}

void declare_check(CLI::App& command, CheckOptions& options) {
    declare_problem(command, options.problem, "--out");
    command.add_option("--out", options.out, "the result to check; its dtype is the storage type")
        ->required();
    command.add_option("--lse", options.lse, "the log-sum-exp to check: (batch, heads, seqlen) float32");
}

}  // namespace reference
