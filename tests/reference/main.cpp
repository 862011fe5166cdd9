// vkattn_reference: attention problems in .npy files and their answers, by the fp64 oracle. It shares no code
// with the library.
//   make   writes q.npy, k.npy and v.npy of a small transformer layer that reads a text, and what goes with them
//   check  recomputes attention and holds out (and lse) to the error rule
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
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
    std::size_t seqlen_kv = 0;  // 0: as seqlen
    std::size_t head_dim = 64;
    std::size_t head_dim_v = 0;  // 0: as head_dim
    std::string dtype = "f32";
    std::vector<std::uint64_t> mask;  // extents; none: no mask
    std::string mask_type = "bool";
    bool kv_lengths = false;
    std::uint64_t seed = 1;

    // Queries are the last tokens of a sequence.
    std::size_t tokens() const { return std::max(seqlen, seqlen_kv); }
};

// Rows of one tensor: the last `seqlen` tokens of each sequence.
struct Rows {
    std::size_t heads;
    std::size_t seqlen;
    std::size_t head_dim;
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
    const std::size_t tokens = options.batch * options.tokens();
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
std::vector<float> project(const MakeOptions& options, const Rows& rows, const std::vector<float>& embedded,
                           Random& random) {
    const std::size_t width = rows.heads * rows.head_dim;
    const std::vector<float> matrix = random.vector(width * embedding_width);
    std::vector<float> projected;
    projected.reserve(options.batch * rows.seqlen * width);
    for (std::size_t b = 0; b < options.batch; ++b)
        for (std::size_t h = 0; h < rows.heads; ++h)
            for (std::size_t t = options.tokens() - rows.seqlen; t < options.tokens(); ++t)
                for (std::size_t d = 0; d < rows.head_dim; ++d) {
                    const float* token = &embedded[(b * options.tokens() + t) * embedding_width];
                    const float* row = &matrix[(h * rows.head_dim + d) * embedding_width];
                    const float sum = std::inner_product(token, token + embedding_width, row, 0.0f);
                    projected.push_back(sum / std::sqrt(float{embedding_width}));
                }
    return projected;
}

// Rotary position embedding: turns (x[i], x[i + head_dim / 2]) by position * 10000^(-2 i / head_dim).
void rotate(const MakeOptions& options, const Rows& rows, std::vector<float>& values) {
    const std::size_t half = rows.head_dim / 2;
    for (std::size_t row = 0; row * rows.head_dim < values.size(); ++row) {
        const std::size_t position = options.tokens() - rows.seqlen + row % rows.seqlen;
        float* x = &values[row * rows.head_dim];
        for (std::size_t i = 0; i < half; ++i) {
            const double share = static_cast<double>(i) / static_cast<double>(half);
            const double angle = static_cast<double>(position) * std::pow(10000.0, -share);
            const auto cosine = static_cast<float>(std::cos(angle));
            const auto sine = static_cast<float>(std::sin(angle));
            const float first = x[i];
            const float second = x[i + half];
            x[i] = first * cosine - second * sine;
            x[i + half] = first * sine + second * cosine;
        }
    }
}

NpyDtype dtype_of(std::string_view text) {
    return text == "f16" ? NpyDtype::float16 : text == "bf16" ? NpyDtype::bfloat16 : NpyDtype::float32;
}

// One row in eight hides all its keys, the others one key in four.
NpyArray make_mask(const MakeOptions& options, Random& random) {
    const std::uint64_t columns = options.mask.back();
    const auto count =
        std::accumulate(options.mask.begin(), options.mask.end(), std::uint64_t{1}, std::multiplies<>());
    const auto happens = [&](float share) {  // uniform() is within the square root of 3
        return random.uniform() < (2 * share - 1) * std::sqrt(3.0f);
    };
    std::vector<float> added(count);
    bool row_hidden = false;
    for (std::size_t i = 0; i < count; ++i) {
        if (i % columns == 0) row_hidden = happens(1 / 8.0f);
        added[i] =
            row_hidden || happens(1 / 4.0f) ? -std::numeric_limits<float>::infinity() : random.uniform();
    }
    if (options.mask_type == "float") return from_float(added, options.mask, dtype_of(options.dtype));
    NpyArray mask{NpyDtype::boolean, false, options.mask, {}};
    for (const float x : added) mask.data.push_back(std::isinf(x) ? std::byte{0} : std::byte{1});
    return mask;
}

// int32; the first is all keys, the others anything from none to all.
NpyArray make_kv_lengths(const MakeOptions& options, std::size_t seqlen_kv, Random& random) {
    NpyArray lengths{NpyDtype::int32, false, {options.batch}, {}};
    for (std::size_t b = 0; b < options.batch; ++b) {
        const double share = b == 0 ? 1 : (random.uniform() / std::sqrt(3.0) + 1) / 2;
        const auto length = static_cast<std::int32_t>(std::lround(share * static_cast<double>(seqlen_kv)));
        const auto bytes = std::as_bytes(std::span(&length, 1));
        lengths.data.insert(lengths.data.end(), bytes.begin(), bytes.end());
    }
    return lengths;
}

int make(MakeOptions options) {
    if (options.heads_q % options.heads_kv != 0) throw UsageError("--heads-q is no multiple of --heads-kv");
    if (options.mask.size() > 4) throw UsageError("--mask: more than 4 extents");
    if (options.seqlen_kv == 0) options.seqlen_kv = options.seqlen;
    if (options.head_dim_v == 0) options.head_dim_v = options.head_dim;
    const Rows q{options.heads_q, options.seqlen, options.head_dim};
    const Rows k{options.heads_kv, options.seqlen_kv, options.head_dim};
    const Rows v{options.heads_kv, options.seqlen_kv, options.head_dim_v};
    Random random(options.seed);
    const std::vector<float> embedded = embed(options, read_text(options.text), random);
    std::vector<float> query = project(options, q, embedded, random);
    std::vector<float> key = project(options, k, embedded, random);
    const std::vector<float> value = project(options, v, embedded, random);
    rotate(options, q, query);
    rotate(options, k, key);

    std::error_code ignored;  // write_npy reports a missing folder
    fs::create_directories(options.folder, ignored);
    const auto write = [&](const char* name, const NpyArray& array) {
        try {
            write_npy(options.folder / name, array);
        } catch (const NpyError& error) {
            throw UsageError(fmt::format("{}: {}", (options.folder / name).string(), error.what()));
        }
    };
    const auto tensor = [&](const Rows& rows, const std::vector<float>& values) {
        return from_float(values, {options.batch, rows.heads, rows.seqlen, rows.head_dim},
                          dtype_of(options.dtype));
    };
    write("q.npy", tensor(q, query));
    write("k.npy", tensor(k, key));
    write("v.npy", tensor(v, value));
    if (!options.mask.empty()) write("mask.npy", make_mask(options, random));
    if (options.kv_lengths) write("kv_lengths.npy", make_kv_lengths(options, options.seqlen_kv, random));
    return 0;
}

// ---- check

struct CheckOptions {
    fs::path query, key, value, out, lse, mask, kv_lengths, query_offsets;
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

// As the device stores it.
std::vector<float> stored_values(std::string_view argument, NpyArray array, NpyDtype storage) {
    try {
        return to_float(convert(std::move(array), storage));
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("{}: {}", argument, error.what()));
    }
}

Tensor read_tensor(std::string_view argument, const fs::path& path, std::string_view layout,
                   NpyDtype storage) {
    NpyArray array = read_argument(argument, path);
    if (array.shape.size() != 4)
        throw UsageError(fmt::format("{}: {} dimensions instead of 4", argument, array.shape.size()));
    Tensor tensor;
    std::copy(array.shape.begin(), array.shape.end(), tensor.shape.begin());
    tensor.values = stored_values(argument, std::move(array), storage);
    if (layout == "bshd") {
        std::swap(tensor.shape[1], tensor.shape[2]);
        tensor.values = swap_heads_and_rows(tensor.values, tensor.shape);
    }
    return tensor;
}

oracle::Mask read_mask(const fs::path& path, NpyDtype storage) {
    NpyArray array = read_argument("--mask", path);
    oracle::Mask mask;
    mask.extents.assign(array.shape.begin(), array.shape.end());
    mask.additive = array.dtype != NpyDtype::boolean;
    if (mask.additive) {
        const std::vector<float> values = stored_values("--mask", std::move(array), storage);
        mask.values.assign(values.begin(), values.end());
    } else {
        for (const std::byte visible : array.data) mask.values.push_back(std::to_integer<int>(visible));
    }
    return mask;
}

std::vector<std::int64_t> read_per_batch(std::string_view argument, const fs::path& path, std::size_t batch) {
    const NpyArray array = read_argument(argument, path);
    if (array.shape != std::vector<std::uint64_t>{batch})
        throw UsageError(fmt::format("{}: the shape is not (batch)", argument));
    try {
        return to_integers(array);
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("{}: {}", argument, error.what()));
    }
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
                           const Shape4& value, NpyDtype storage) {
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
    if (!options.mask.empty()) problem.mask = read_mask(options.mask, storage);
    if (!options.kv_lengths.empty())
        problem.kv_lengths = read_per_batch("--kv-lengths", options.kv_lengths, problem.batch);
    if (!options.query_offsets.empty()) {
        problem.alignment = oracle::Alignment::given;
        problem.query_offset = read_per_batch("--query-offsets", options.query_offsets, problem.batch);
    }
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
    const NpyDtype dtype = read_argument("--out", options.out).dtype;
    const oracle::StorageType storage = storage_of(dtype);
    const Tensor query = read_tensor("--query", options.query, options.layout, dtype);
    const Tensor key = read_tensor("--key", options.key, options.layout, dtype);
    const Tensor value = read_tensor("--value", options.value, options.layout, dtype);
    const Tensor out = read_tensor("--out", options.out, options.layout, dtype);
    const oracle::Problem problem = problem_of(options, query.shape, key.shape, value.shape, dtype);
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
    command.add_option("--seqlen-kv", options.seqlen_kv, "default: as --seqlen")
        ->check(CLI::Range(1, 1 << 24));
    command.add_option("--head-dim", options.head_dim)->capture_default_str()->check(CLI::Range(1, 576));
    command.add_option("--head-dim-v", options.head_dim_v, "default: as --head-dim")
        ->check(CLI::Range(1, 576));
    command.add_option("--dtype", options.dtype)
        ->capture_default_str()
        ->check(CLI::IsMember({"f32", "f16", "bf16"}));
    command.add_option("--mask", options.mask, "extents of a mask.npy to write too, as in 1,8,1024,1024")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 24));
    command.add_option("--mask-type", options.mask_type, "float: of the dtype")
        ->capture_default_str()
        ->check(CLI::IsMember({"bool", "float"}));
    command.add_flag("--kv-lengths", options.kv_lengths, "write kv_lengths.npy too");
    command.add_option("--seed", options.seed)->capture_default_str();
}

void declare_check(CLI::App& command, CheckOptions& options) {
    command
        .add_option("--query", options.query,
                    ".npy file; it and the others are brought to the dtype of --out")
        ->required();
    command.add_option("--key", options.key, ".npy file")->required();
    command.add_option("--value", options.value, ".npy file")->required();
    command.add_option("--out", options.out, "the result to check; its dtype is the storage type")
        ->required();
    command.add_option("--lse", options.lse, "the log-sum-exp to check: (batch, heads, seqlen) float32");
    command.add_option("--layout", options.layout, "of all tensors but lse")
        ->capture_default_str()
        ->check(CLI::IsMember({"bhsd", "bshd"}));
    command.add_option("--mask", options.mask, "bool, or a float type: added");
    command.add_option("--kv-lengths", options.kv_lengths, "int32 or int64, (batch)");
    command.add_option("--query-offsets", options.query_offsets, "int32 or int64, (batch)");
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
