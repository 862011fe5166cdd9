#include "commands.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <system_error>

#include "../../tools/vkattn/npy.hpp"

namespace reference {
namespace {

namespace fs = std::filesystem;
using namespace vkattn::tools;

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

}  // namespace

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
    const Rows o{options.heads_q, options.seqlen, options.head_dim_v};
    if (options.grad) write("do.npy", tensor(o, project(options, o, embedded, random)));
    if (options.dlse)
        write("dlse.npy", from_float(random.vector(options.batch * o.heads * o.seqlen),
                                     {options.batch, o.heads, o.seqlen}, NpyDtype::float32));
    return 0;
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
    CLI::Option* grad = command.add_flag("--grad", options.grad, "write do.npy too, the gradient of out");
    command.add_flag("--dlse", options.dlse, "write dlse.npy too, the gradient of lse")->needs(grad);
    command.add_option("--seed", options.seed)->capture_default_str();
}

}  // namespace reference
