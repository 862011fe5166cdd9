#include "problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <span>
#include <system_error>
#include <utility>

namespace reference {

namespace fs = std::filesystem;
using namespace vkattn::tools;

NpyArray read_argument(std::string_view argument, const fs::path& path) {
    try {
        return read_npy(path);
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("{} {}: {}", argument, path.string(), error.what()));
    }
}

namespace {

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

}  // namespace

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

namespace {

oracle::Mask read_mask(const fs::path& path, NpyDtype storage) {
    NpyArray array = read_argument("--mask", path);
    oracle::Mask mask;
    mask.extents.assign(array.shape.begin(), array.shape.end());
    mask.additive = array.dtype != NpyDtype::boolean && !is_integer(array.dtype);
    if (mask.additive) {
        const std::vector<float> values = stored_values("--mask", std::move(array), storage);
        mask.values.assign(values.begin(), values.end());
    } else {
        if (array.dtype == NpyDtype::boolean) array.dtype = NpyDtype::uint8;
        for (const std::int64_t visible : to_integers(array))
            mask.values.push_back(static_cast<double>(visible));
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

// Numbers of each query head or, if they may be, of each batch and query head.
std::vector<double> read_of_heads(std::string_view argument, const fs::path& path, const oracle::Problem& p,
                                  bool may_be_per_batch) {
    const NpyArray array = read_argument(argument, path);
    if (array.shape != std::vector<std::uint64_t>{p.num_heads_q} &&
        !(may_be_per_batch && array.shape == std::vector<std::uint64_t>{p.batch, p.num_heads_q}))
        throw UsageError(fmt::format("{}: the shape is not that of heads", argument));
    if (array.dtype != NpyDtype::float32)
        throw UsageError(fmt::format("{}: the dtype is not float32", argument));
    return widen(to_float(array));
}

std::int64_t parse_integer(std::string_view argument, std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        throw UsageError(fmt::format("{}: '{}' is not a 64-bit integer", argument, text));
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
        constexpr std::int64_t most = std::int64_t{1} << 31;
        if (problem.query_offset[0] < -most || problem.query_offset[0] > most)
            throw UsageError(fmt::format("--align: '{}' is not within -2^31 .. 2^31", text));
    }
}

// Windows from `unbounded` keys on count as unbounded.
void set_window(oracle::Problem& problem, std::string_view text, std::int64_t unbounded) {
    const std::size_t comma = text.find(',');
    if (comma == text.npos) throw UsageError("--window: two numbers are needed, as in 128,0");
    problem.window_left = parse_integer("--window", text.substr(0, comma));
    problem.window_right = parse_integer("--window", text.substr(comma + 1));
    if (problem.window_left < -1 || problem.window_right < -1)
        throw UsageError("--window: -1 (unbounded) is the only negative number");
    for (std::int64_t* const side : {&problem.window_left, &problem.window_right})
        if (*side >= unbounded) *side = -1;
}

// Sizes that do not fit are found by the oracle.
oracle::BlockMap read_map(const ProblemOptions& options) {
    const NpyArray array = read_argument("--block-map", options.block_map);
    if (array.shape.size() != 4) throw UsageError("--block-map: the shape has not 4 dimensions");
    const std::string_view sizes = options.block_size;
    const std::size_t comma = sizes.find(',');
    if (comma == sizes.npos) throw UsageError("--block-size: two numbers are needed, as in 128,128");
    oracle::BlockMap map;
    map.rows = static_cast<std::size_t>(parse_integer("--block-size", sizes.substr(0, comma)));
    map.keys = static_cast<std::size_t>(parse_integer("--block-size", sizes.substr(comma + 1)));
    map.batches = array.shape[0];
    map.heads = array.shape[1];
    if (array.dtype == NpyDtype::boolean)
        for (const std::byte value : array.data) map.values.push_back(static_cast<std::uint8_t>(value));
    else
        for (const std::int64_t value : to_integers(array))
            map.values.push_back(static_cast<std::uint8_t>(value));
    return map;
}

oracle::Problem problem_of(const ProblemOptions& options, const Shape4& query, const Shape4& key,
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
    // With offsets per batch the contract says so; elsewhere no offset and no length reaches as far as 2^40.
    const bool per_batch = !options.query_offsets.empty();
    set_window(problem, options.window, per_batch ? (std::int64_t{1} << 31) - 1 : std::int64_t{1} << 40);
    if (!options.mask.empty()) problem.mask = read_mask(options.mask, storage);
    if (!options.kv_lengths.empty())
        problem.kv_lengths = read_per_batch("--kv-lengths", options.kv_lengths, problem.batch);
    if (!options.query_offsets.empty()) {
        problem.alignment = oracle::Alignment::given;
        problem.query_offset = read_per_batch("--query-offsets", options.query_offsets, problem.batch);
    }
    if (!options.alibi.empty()) problem.head_slopes = read_of_heads("--alibi", options.alibi, problem, true);
    if (!options.sinks.empty()) problem.sinks = read_of_heads("--sinks", options.sinks, problem, false);
    if (!options.block_map.empty()) problem.block_map = read_map(options);
    problem.slopes_of_mask = options.alibi_of == "mask";
    if (problem.slopes_of_mask && (problem.head_slopes.empty() || !problem.mask || !problem.mask->additive))
        throw UsageError("--alibi-of: of the mask needs --alibi and a --mask of floats");
    return problem;
}

}  // namespace

std::vector<double> widen(const std::vector<float>& values) {
    return {values.begin(), values.end()};
}

void require_shape(std::string_view argument, const Shape4& shape, const Shape4& expected,
                   std::string_view otherwise) {
    if (shape != expected) throw UsageError(fmt::format("{}: the shape {}", argument, otherwise));
}

GivenProblem read_problem(const ProblemOptions& options, NpyDtype storage) {
    const Tensor query = read_tensor("--query", options.query, options.layout, storage);
    const Tensor key = read_tensor("--key", options.key, options.layout, storage);
    const Tensor value = read_tensor("--value", options.value, options.layout, storage);
    return {.problem = problem_of(options, query.shape, key.shape, value.shape, storage),
            .query_shape = query.shape,
            .key_shape = key.shape,
            .value_shape = value.shape,
            .out_shape = {query.shape[0], query.shape[1], query.shape[2], value.shape[3]},
            .query = widen(query.values),
            .key = widen(key.values),
            .value = widen(value.values)};
}

oracle::StorageType storage_of(std::string_view argument, NpyDtype dtype) {
    switch (dtype) {
        case NpyDtype::float32:
            return oracle::StorageType::float32;
        case NpyDtype::float16:
            return oracle::StorageType::float16;
        case NpyDtype::bfloat16:
            return oracle::StorageType::bfloat16;
        default:
            throw UsageError(fmt::format("{}: dtype {} is not a storage type", argument, dtype_name(dtype)));
    }
}

std::vector<float> read_rows(std::string_view argument, const fs::path& path,
                             const oracle::Problem& problem) {
    const NpyArray array = read_argument(argument, path);
    if (array.dtype != NpyDtype::float32)
        throw UsageError(fmt::format("{}: the dtype is not float32", argument));
    if (array.shape != std::vector<std::uint64_t>{problem.batch, problem.num_heads_q, problem.seqlen_q})
        throw UsageError(fmt::format("{}: the shape is not (batch, heads, seqlen) of --query", argument));
    return to_float(array);
}

void declare_problem(CLI::App& command, ProblemOptions& options, std::string_view storage_dtype) {
    command
        .add_option("--query", options.query,
                    fmt::format(".npy file; it and the others are brought to the dtype of {}", storage_dtype))
        ->required();
    command.add_option("--key", options.key, ".npy file")->required();
    command.add_option("--value", options.value, ".npy file")->required();
    command.add_option("--layout", options.layout, "of query, key, value, out and their gradients")
        ->capture_default_str()
        ->check(CLI::IsMember({"bhsd", "bshd"}));
    command.add_option("--mask", options.mask, "bool, or a float type: added");
    command.add_option("--kv-lengths", options.kv_lengths, "int32 or int64, (batch)");
    command.add_option("--query-offsets", options.query_offsets, "int32 or int64, (batch)");
    command.add_option("--alibi", options.alibi, "float32, (heads of --query) or (batch, heads)");
    command.add_option("--sinks", options.sinks, "float32, (heads of --query)");
    command.add_option("--block-map", options.block_map, "integers, (batch, heads, blocks of rows, of keys)");
    command.add_option("--block-size", options.block_size, "ROWS,KEYS of a block")->capture_default_str();
    command.add_option("--alibi-of", options.alibi_of, "what the slopes are applied to")
        ->capture_default_str()
        ->check(CLI::IsMember({"distance", "mask"}));
    command.add_option("--scale", options.scale, "default: 1 / sqrt(head dim)");
    command.add_flag("--causal", options.causal);
    command.add_option("--align", options.align, "top-left, bottom-right or the offset of query row 0")
        ->capture_default_str();
    command.add_option("--window", options.window, "LEFT,RIGHT; -1: unbounded")->capture_default_str();
    command.add_option("--softcap", options.softcap, "0: none")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
}

}  // namespace reference
