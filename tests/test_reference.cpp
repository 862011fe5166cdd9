// vkattn_reference's make and check-grad: gradients that are right pass, others and files that do not fit do not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oracle/backward.hpp"
#include "reference/commands.hpp"

using namespace reference;
using namespace vkattn::tools;
namespace fs = std::filesystem;

namespace {

using Floats = std::vector<float>;
using Shape = std::vector<std::uint64_t>;

// A problem of every feature in a folder of its own, and its gradients by the yardstick.
class Made {
  public:
    Made(NpyDtype dtype, const char* dtype_option)
        : folder_(fs::temp_directory_path() / ("vkattn_reference_" + std::to_string(std::random_device{}()))),
          dtype_(dtype) {
        make({.folder = folder_,
              .text = {},
              .batch = 2,
              .heads_q = 4,
              .heads_kv = 2,
              .seqlen = 5,
              .seqlen_kv = 9,
              .head_dim = 6,
              .head_dim_v = 3,
              .dtype = dtype_option,
              .mask = {4, 5, 7},
              .mask_type = "float",
              .kv_lengths = true,
              .grad = true,
              .dlse = true});
        options.problem.query = folder_ / "q.npy";
        options.problem.key = folder_ / "k.npy";
        options.problem.value = folder_ / "v.npy";
        options.problem.mask = folder_ / "mask.npy";
        options.problem.kv_lengths = folder_ / "kv_lengths.npy";
        options.problem.causal = true;
        options.problem.softcap = 2;
        options.dout = folder_ / "do.npy";
        options.dlse = folder_ / "dlse.npy";
    }
    ~Made() { fs::remove_all(folder_); }
    Made(const Made&) = delete;
    Made& operator=(const Made&) = delete;

    oracle::NaiveGradients gradients() const {
        const GivenProblem given = read_problem(options.problem, dtype_);
        const auto doubles = [](const fs::path& path) { return widen(to_float(read_npy(path))); };
        return oracle::naive_backward(given.problem, given.query, given.key, given.value,
                                      doubles(options.dout), doubles(options.dlse),
                                      storage_of("--dq", dtype_));
    }
    fs::path write(const char* name, const Floats& values, Shape shape) const {
        write_npy(folder_ / name, from_float(values, std::move(shape), dtype_));
        return folder_ / name;
    }
    void write_gradients(const oracle::NaiveGradients& gradients) {
        options.dq = write("dq.npy", gradients.query, {2, 4, 5, 6});
        options.dk = write("dk.npy", gradients.key, {2, 2, 9, 6});
        options.dv = write("dv.npy", gradients.value, {2, 2, 9, 3});
        options.dbias = write("dbias.npy", gradients.mask, {4, 5, 7});
    }

    CheckGradOptions options;

  private:
    fs::path folder_;
    NpyDtype dtype_;
};

constexpr std::pair<NpyDtype, const char*> dtypes[] = {
    {NpyDtype::float32, "f32"}, {NpyDtype::float16, "f16"}, {NpyDtype::bfloat16, "bf16"}};

int exit_code(const CheckGradOptions& options) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> unseen(std::tmpfile(), std::fclose);
    return check_grad(options, unseen.get());
}

// The element of the largest gradient, so that it is not hidden.
float& largest(Floats& values) {
    return *std::max_element(values.begin(), values.end(),
                             [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

void refused(const Made& made, const char* argument, const std::function<void(CheckGradOptions&)>& change) {
    CheckGradOptions changed = made.options;
    change(changed);
    try {
        exit_code(changed);
        FAIL("not refused");
    } catch (const UsageError& error) {
        const std::string message = error.what();
        CAPTURE(message);
        CHECK(message.starts_with(argument));
    }
}

}  // namespace

TEST_CASE("reference: gradients are held to the error rule") {
    for (const auto& [dtype, title] : dtypes) {
        const std::string name = title;
        CAPTURE(name);
        Made made(dtype, title);
        const oracle::NaiveGradients right = made.gradients();
        made.write_gradients(right);
        CHECK(exit_code(made.options) == 0);
        for (Floats oracle::NaiveGradients::*part :
             {&oracle::NaiveGradients::query, &oracle::NaiveGradients::key, &oracle::NaiveGradients::value,
              &oracle::NaiveGradients::mask}) {
            oracle::NaiveGradients wrong = right;
            largest(wrong.*part) *= 1.1f;
            made.write_gradients(wrong);
            CHECK(exit_code(made.options) == 1);
        }
        made.write_gradients(right);
        for (fs::path CheckGradOptions::*part : {&CheckGradOptions::dq, &CheckGradOptions::dk,
                                                 &CheckGradOptions::dv, &CheckGradOptions::dbias}) {
            CheckGradOptions one = made.options;
            one.dq = one.dk = one.dv = one.dbias = "";
            one.*part = made.options.*part;
            CHECK(exit_code(one) == 0);
            one.dlse = "";
            CHECK(exit_code(one) == (part == &CheckGradOptions::dv ? 0 : 1));  // lse is not of the values
        }
        CheckGradOptions other = made.options;
        other.problem.softcap = 0;
        CHECK(exit_code(other) == 1);
    }
}

TEST_CASE("reference: gradients in the layout of the rest") {
    Made made(NpyDtype::float32, "f32");
    oracle::NaiveGradients gradients = made.gradients();
    made.write_gradients(gradients);
    CheckGradOptions& options = made.options;
    const auto swap = [&](fs::path& path) {
        const NpyArray array = read_npy(path);
        const Floats values = to_float(array);
        const std::size_t heads = array.shape[1], rows = array.shape[2], width = array.shape[3];
        Floats swapped;
        for (std::size_t n = 0; n < values.size(); ++n) {
            const std::size_t d = n % width, h = n / width % heads, r = n / width / heads % rows;
            const std::size_t b = n / width / heads / rows;
            swapped.push_back(values[((b * heads + h) * rows + r) * width + d]);
        }
        path = made.write(path.filename().c_str(), swapped, {array.shape[0], rows, heads, width});
    };
    for (fs::path* path : {&options.problem.query, &options.problem.key, &options.problem.value,
                           &options.dout, &options.dq, &options.dk, &options.dv})
        swap(*path);
    options.problem.layout = "bshd";
    CHECK(exit_code(options) == 0);
}

TEST_CASE("reference: gradients that do not fit are refused") {
    Made made(NpyDtype::float16, "f16");
    made.write_gradients(made.gradients());
    using Options = CheckGradOptions;
    refused(made, "--dq", [](Options& o) { o.dq = o.dk = o.dv = o.dbias = ""; });
    refused(made, "--dq", [](Options& o) { o.dq = "missing.npy"; });
    refused(made, "--dq", [](Options& o) { o.dq = o.dk; });
    refused(made, "--dk", [](Options& o) { o.dk = o.dq; });
    refused(made, "--dv", [](Options& o) { o.dv = o.dk; });
    refused(made, "--dv", [](Options& o) { o.dv = o.dbias; });
    refused(made, "--dv", [](Options& o) { o.dv = o.dlse; });  // float32
    refused(made, "--dbias", [](Options& o) { o.dbias = o.dq; });
    refused(made, "--dbias", [](Options& o) { o.problem.mask = ""; });
    refused(made, "--dout", [](Options& o) { o.dout = o.dq; });
    refused(made, "--dlse", [](Options& o) { o.dlse = o.dq; });
    refused(made, "--key", [](Options& o) { o.problem.key = o.dv; });
    refused(made, "--dk", [](Options& o) {
        o.dq = "";
        o.dk = o.dv = o.problem.kv_lengths;
    });
}
