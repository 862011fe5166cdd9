// vkattn_reference: attention problems in .npy files and their answers, by the fp64 oracle. It shares no code
// with the library.
//   make   writes q.npy, k.npy and v.npy of a small transformer layer that reads a text
//   check  recomputes attention and holds out (and lse) to the error rule
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../tools/vkattn/npy.hpp"
#include "../oracle/attention.hpp"

namespace {

namespace fs = std::filesystem;
using namespace vkattn::tools;

// Bad usage, files that do not fit together included: exit code 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// ---- make

struct MakeOptions {
    fs::path folder;
    fs::path text;
    std::size_t batch = 1;
    std::size_t heads_q = 8;
    std::size_t heads_kv = 2;
    std::size_t seqlen = 1024;
    std::size_t head_dim = 64;
    std::uint64_t seed = 1;
};

constexpr std::string_view default_text =
    "A reader does not weigh every word alike. Most of a page is passed over, a few words are looked up "
    "again and "
    "again, and what is taken from each of them depends on what the reader is looking for. ";

constexpr std::size_t embedding_width = 64;

// splitmix64: the same numbers on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    float uniform() {  // mean 0, variance 1
        state_ += 0x9e3779b97f4a7c15u;
        std::uint64_t bits = state_;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
        bits ^= bits >> 31;
        const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
        return static_cast<float>((2 * unit - 1) * std::sqrt(3.0));
    }

    std::vector<float> vector(std::size_t count) {
        std::vector<float> values(count);
        for (float& x : values) x = uniform();
        return values;
    }

  private:
    std::uint64_t state_;
};

std::string read_text(const fs::path& path) {
    if (path.empty()) return std::string(default_text);
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.empty()) throw UsageError("--text: the file is empty or cannot be read");
    return text;
}

// Each token is its byte's vector, a part of its neighbours' added, brought to a mean square of 1. The
// sequences of a batch follow one another in the text.
std::vector<float> embed(const MakeOptions& options, const std::string& text, Random& random) {
    const std::vector<float> table = random.vector(256 * embedding_width);
    const std::size_t tokens = options.batch * options.seqlen;
    const auto byte_vector = [&](std::size_t token) {
        return &table[static_cast<unsigned char>(text[token % text.size()]) * embedding_width];
    };
    std::vector<float> embedded(tokens * embedding_width);
    for (std::size_t t = 0; t < tokens; ++t) {
        const std::span<float> token(&embedded[t * embedding_width], embedding_width);
        const float* self = byte_vector(t);
        const float* before = byte_vector(t + text.size() - 1);
        const float* after = byte_vector(t + 1);
        for (std::size_t i = 0; i < embedding_width; ++i)
            token[i] = self[i] + 0.5f * before[i] + 0.25f * after[i];
        const float square = std::inner_product(token.begin(), token.end(), token.begin(), 0.0f);
        for (float& x : token) x /= std::sqrt(square / embedding_width);
    }
    return embedded;
}

// Tokens times a random matrix a head: (batch, heads, seqlen, head_dim), each value of about variance 1.
std::vector<float> project(const MakeOptions& options, std::size_t heads, const std::vector<float>& embedded,
                           Random& random) {
    const std::size_t width = heads * options.head_dim;
    const std::vector<float> matrix = random.vector(width * embedding_width);
    std::vector<float> projected;
    projected.reserve(options.batch * options.seqlen * width);
    for (std::size_t b = 0; b < options.batch; ++b)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t t = 0; t < options.seqlen; ++t)
                for (std::size_t d = 0; d < options.head_dim; ++d) {
                    const float* token = &embedded[(b * options.seqlen + t) * embedding_width];
                    const float* row = &matrix[(h * options.head_dim + d) * embedding_width];
                    const float sum = std::inner_product(token, token + embedding_width, row, 0.0f);
                    projected.push_back(sum / std::sqrt(float{embedding_width}));
                }
    return projected;
}

// Rotary position embedding: turns (x[i], x[i + head_dim / 2]) by position * 10000^(-2 i / head_dim).
void rotate(const MakeOptions& options, std::vector<float>& values) {
    const std::size_t half = options.head_dim / 2;
    for (std::size_t row = 0; row * options.head_dim < values.size(); ++row) {
        float* x = &values[row * options.head_dim];
        for (std::size_t i = 0; i < half; ++i) {
            const double share = static_cast<double>(i) / static_cast<double>(half);
            const double angle = static_cast<double>(row % options.seqlen) * std::pow(10000.0, -share);
            const auto cosine = static_cast<float>(std::cos(angle));
            const auto sine = static_cast<float>(std::sin(angle));
            const float first = x[i];
            const float second = x[i + half];
            x[i] = first * cosine - second * sine;
            x[i + half] = first * sine + second * cosine;
        }
    }
}

int make(const MakeOptions& options) {
    if (options.heads_q % options.heads_kv != 0) throw UsageError("--heads-q is no multiple of --heads-kv");
    Random random(options.seed);
    const std::vector<float> embedded = embed(options, read_text(options.text), random);
    std::vector<float> query = project(options, options.heads_q, embedded, random);
    std::vector<float> key = project(options, options.heads_kv, embedded, random);
    const std::vector<float> value = project(options, options.heads_kv, embedded, random);
    rotate(options, query);
    rotate(options, key);

    std::error_code ignored;  // write_npy reports a missing folder
    fs::create_directories(options.folder, ignored);
    const auto write = [&](const char* name, const std::vector<float>& values, std::size_t heads) {
        try {
            write_npy(options.folder / name,
                      from_float(values, {options.batch, heads, options.seqlen, options.head_dim},
                                 NpyDtype::float32));
        } catch (const NpyError& error) {
            throw UsageError(fmt::format("{}: {}", (options.folder / name).string(), error.what()));
        }
    };
    write("q.npy", query, options.heads_q);
    write("k.npy", key, options.heads_kv);
    write("v.npy", value, options.heads_kv);
    return 0;
}

// ---- check

struct CheckOptions {
    fs::path query, key, value, out, lse;
    std::string layout = "bhsd";
    std::optional<double> scale;
    bool causal = false;
    std::string align = "bottom-right";
    std::string window = "-1,-1";
    double softcap = 0;
};

using Shape4 = std::array<std::size_t, 4>;  // (batch, heads, seqlen, head_dim)

struct Tensor {
    Shape4 shape{};
    NpyDtype dtype = NpyDtype::float32;
    std::vector<float> values;  // contiguous in the order of shape
};

NpyArray read_argument(std::string_view argument, const fs::path& path) {
    try {
        return read_npy(path);
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("{} {}: {}", argument, path.string(), error.what()));
    }
}

std::vector<float> swap_heads_and_rows(std::span<const float> values, const Shape4& shape) {
    const auto [batch, heads, seqlen, head_dim] = shape;
    std::vector<float> result;
    result.reserve(values.size());
    for (std::size_t b = 0; b < batch; ++b)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t s = 0; s < seqlen; ++s) {
                const auto row = values.subspan(((b * seqlen + s) * heads + h) * head_dim, head_dim);
                result.insert(result.end(), row.begin(), row.end());
            }
    return result;
}

Tensor read_tensor(std::string_view argument, const fs::path& path, std::string_view layout) {
    const NpyArray array = read_argument(argument, path);
    if (array.shape.size() != 4)
        throw UsageError(fmt::format("{}: {} dimensions instead of 4", argument, array.shape.size()));
    Tensor tensor;
    tensor.dtype = array.dtype;
    try {
        tensor.values = to_float(array);
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("{}: {}", argument, error.what()));
    }
    std::copy(array.shape.begin(), array.shape.end(), tensor.shape.begin());
    if (layout == "bshd") {
        std::swap(tensor.shape[1], tensor.shape[2]);
        tensor.values = swap_heads_and_rows(tensor.values, tensor.shape);
    }
    return tensor;
}

std::int32_t parse_integer(std::string_view argument, std::string_view text) {
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        throw UsageError(fmt::format("{}: '{}' is not a 32-bit integer", argument, text));
    return value;
}

void set_alignment(oracle::Problem& problem, std::string_view text) {
    if (text == "top-left") {
        problem.alignment = oracle::Alignment::top_left;
    } else if (text == "bottom-right") {
        problem.alignment = oracle::Alignment::bottom_right;
    } else {
        problem.alignment = oracle::Alignment::given;
        problem.query_offset = {parse_integer("--align", text)};
    }
}

void set_window(oracle::Problem& problem, std::string_view text) {
    const std::size_t comma = text.find(',');
    if (comma == text.npos) throw UsageError("--window: two numbers are needed, as in 128,0");
    problem.window_left = parse_integer("--window", text.substr(0, comma));
    problem.window_right = parse_integer("--window", text.substr(comma + 1));
    if (problem.window_left < -1 || problem.window_right < -1)
        throw UsageError("--window: -1 (unbounded) is the only negative number");
}

oracle::Problem problem_of(const CheckOptions& options, const Shape4& query, const Shape4& key,
                           const Shape4& value) {
    if (key[0] != query[0]) throw UsageError("--key: not the batch of --query");
    if (key[1] == 0 || query[1] % key[1] != 0)
        throw UsageError("--key: its heads do not divide those of --query");
    if (key[3] != query[3]) throw UsageError("--key: not the head dim of --query");
    if (value[0] != key[0] || value[1] != key[1] || value[2] != key[2])
        throw UsageError("--value: not the batch, heads and length of --key");
    oracle::Problem problem;
    problem.batch = query[0];
    problem.num_heads_q = query[1];
    problem.num_heads_kv = key[1];
    problem.seqlen_q = query[2];
    problem.seqlen_kv = key[2];
    problem.head_dim_qk = query[3];
    problem.head_dim_v = value[3];
    problem.softmax_scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query[3])));
    problem.softcap = options.softcap;
    problem.causal = options.causal;
    set_alignment(problem, options.align);
    set_window(problem, options.window);
    return problem;
}

oracle::StorageType storage_of(NpyDtype dtype) {
    switch (dtype) {
        case NpyDtype::float32:
            return oracle::StorageType::float32;
        case NpyDtype::float16:
            return oracle::StorageType::float16;
        case NpyDtype::bfloat16:
            return oracle::StorageType::bfloat16;
        default:
            throw UsageError(fmt::format("--out: dtype {} is not a storage type", dtype_name(dtype)));
    }
}

std::vector<float> read_lse(const fs::path& path, const oracle::Problem& problem) {
    const NpyArray array = read_argument("--lse", path);
    if (array.dtype != NpyDtype::float32) throw UsageError("--lse: the dtype is not float32");
    if (array.shape != std::vector<std::uint64_t>{problem.batch, problem.num_heads_q, problem.seqlen_q})
        throw UsageError("--lse: the shape is not (batch, heads, seqlen) of --query");
    return to_float(array);
}

bool report(std::string_view tensor, const oracle::Bound& bound) {
    fmt::print("{}: max error {:.2g}, allowed {:.2g}: {}\n", tensor, bound.measured, bound.allowed,
               bound.ok ? "ok" : "FAILED");
    return bound.ok;
}

int check(const CheckOptions& options) {
    const Tensor query = read_tensor("--query", options.query, options.layout);
    const Tensor key = read_tensor("--key", options.key, options.layout);
    const Tensor value = read_tensor("--value", options.value, options.layout);
    const Tensor out = read_tensor("--out", options.out, options.layout);
    const oracle::Problem problem = problem_of(options, query.shape, key.shape, value.shape);
    const oracle::StorageType storage = storage_of(out.dtype);
    if (out.shape != Shape4{query.shape[0], query.shape[1], query.shape[2], value.shape[3]})
        throw UsageError("--out: the shape does not follow from --query and --value");
    std::optional<std::vector<float>> lse;
    if (!options.lse.empty()) lse = read_lse(options.lse, problem);

    const auto widen = [](const Tensor& tensor) {
        return std::vector<double>(tensor.values.begin(), tensor.values.end());
    };
    const std::vector<double> q = widen(query), k = widen(key), v = widen(value);
    const oracle::Result expected = oracle::forward(problem, q, k, v);
    const oracle::NaiveResult naive = oracle::naive_forward(problem, q, k, v, storage);
    bool ok = report("out", oracle::check(out.values, expected.out, naive.out, storage));
    if (lse) ok &= report("lse", oracle::check(*lse, expected.lse, naive.lse, oracle::StorageType::float32));
    return ok ? 0 : 1;
}

void declare_make(CLI::App& command, MakeOptions& options) {
    command.add_option("folder", options.folder, "where q.npy, k.npy and v.npy go")->required();
    command.add_option("--text", options.text, "a file whose bytes are the tokens")->check(CLI::ExistingFile);
    command.add_option("--batch", options.batch)->capture_default_str()->check(CLI::Range(1, 65535));
    command.add_option("--heads-q", options.heads_q)->capture_default_str()->check(CLI::Range(1, 65535));
    command.add_option("--heads-kv", options.heads_kv)->capture_default_str()->check(CLI::Range(1, 65535));
    command.add_option("--seqlen", options.seqlen)->capture_default_str()->check(CLI::Range(1, 1 << 24));
    command.add_option("--head-dim", options.head_dim)->capture_default_str()->check(CLI::Range(1, 576));
    command.add_option("--seed", options.seed)->capture_default_str();
}

void declare_check(CLI::App& command, CheckOptions& options) {
    command.add_option("--query", options.query, ".npy file")->required();
    command.add_option("--key", options.key, ".npy file")->required();
    command.add_option("--value", options.value, ".npy file")->required();
    command.add_option("--out", options.out, "the result to check; its dtype is the storage type")
        ->required();
    command.add_option("--lse", options.lse, "the log-sum-exp to check: (batch, heads, seqlen) float32");
    command.add_option("--layout", options.layout, "of all tensors but lse")
        ->capture_default_str()
        ->check(CLI::IsMember({"bhsd", "bshd"}));
    command.add_option("--scale", options.scale, "default: 1 / sqrt(head dim)");
    command.add_flag("--causal", options.causal);
    command.add_option("--align", options.align, "top-left, bottom-right or the offset of query row 0")
        ->capture_default_str();
    command.add_option("--window", options.window, "LEFT,RIGHT; -1: unbounded")->capture_default_str();
    command.add_option("--softcap", options.softcap, "0: none")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("attention problems in .npy files and their fp64 answers", "vkattn_reference");
    app.require_subcommand(1);
    MakeOptions make_options;
    CheckOptions check_options;
    CLI::App& make_command = *app.add_subcommand("make", "write q.npy, k.npy and v.npy of a small problem");
    CLI::App& check_command = *app.add_subcommand("check", "hold a result to the error rule");
    declare_make(make_command, make_options);
    declare_check(check_command, check_options);
    try {
        app.parse(argc, argv);
        return make_command.parsed() ? make(make_options) : check(check_options);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "vkattn_reference: {}\n", error.what());
        return 2;
    }
}
