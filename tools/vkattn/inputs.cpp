#include "inputs.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "numbers.hpp"

namespace vkattn::tools {
namespace {

// A tensor of a file, with its extents by meaning rather than by position.
struct Tensor {
    FileArray file;
    uint32_t batch, heads, seqlen, dim;
};

// Checks that rows are whole blocks, and counts their elements instead of their bytes.
void read_blocks(const std::string& argument, VkattnDtype dtype, Tensor& t) {
    const uint64_t bytes = bytes_of(dtype, block_elements);
    const bool is_int8 = dtype == VKATTN_DTYPE_INT8 && t.file.array.dtype == NpyDtype::int8;
    if (t.file.array.dtype != NpyDtype::uint8 && !is_int8)
        throw UsageError(argument, fmt::format("dtype {} is not uint8, in which {} is given",
                                               dtype_name(t.file.array.dtype), dtype_text(dtype)));
    if (t.dim == 0 || t.dim % bytes != 0)
        throw UsageError(argument,
                         fmt::format("rows of {} bytes are no whole blocks of {}, which have {} each", t.dim,
                                     dtype_text(dtype), bytes));
    t.dim = static_cast<uint32_t>(t.dim / bytes * block_elements);
}

// `stored` is the type that --kv-dtype asks for.
Tensor read_tensor(const std::string& argument, const std::string& path, bool bshd,
                   std::optional<NpyDtype> wanted, std::optional<VkattnDtype> stored = std::nullopt) {
    Tensor t{read_file(argument, path), 0, 0, 0, 0};
    const auto& shape = t.file.array.shape;
    if (shape.size() != 4)
        throw UsageError(argument, fmt::format("has {} dimensions, 4 are needed", shape.size()));
    for (uint64_t extent : shape)
        if (extent > UINT32_MAX)
            throw UsageError(argument, fmt::format("an extent of {} is too large", extent));
    const bool blocks = stored && blocks_of(*stored) != nullptr;
    if (stored && !blocks) wanted = npy_dtype(*stored);
    if (!blocks) make_storable(argument, wanted, t.file);
    const auto extent = [&](size_t i) { return static_cast<uint32_t>(shape[i]); };
    t.batch = extent(0);
    t.heads = extent(bshd ? 2 : 1);
    t.seqlen = extent(bshd ? 1 : 2);
    t.dim = extent(3);
    if (blocks) read_blocks(argument, *stored, t);
    return t;
}

// Reads the value, which has no file of its own if it lies in the key.
Tensor read_value(const InputFiles& files, bool bshd, std::optional<NpyDtype> wanted,
                  std::optional<VkattnDtype> stored, const Tensor& key) {
    if (!files.value_in_key) {
        if (files.value.empty()) throw UsageError("--value", "is needed, or --value-in-key");
        return read_tensor("--value", files.value, bshd, wanted, stored);
    }
    if (*files.value_in_key == 0) throw UsageError("--value-in-key", "0 elements are no value");
    Tensor value{{}, key.batch, key.heads, key.seqlen, *files.value_in_key};
    value.file.array.dtype = key.file.array.dtype;
    return value;
}

// What must agree between the files, said in terms of the files.
void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto same = [](const char* argument, const char* what, uint32_t got, const char* of,
                         uint32_t wanted) {
        if (got != wanted)
            throw UsageError(argument, fmt::format("{} {} differs from {}'s {}", what, got, of, wanted));
    };
    same("--key", "batch", k.batch, "--query", q.batch);
    same("--value", "batch", v.batch, "--query", q.batch);
    same("--key", "head_dim", k.dim, "--query", q.dim);
    same("--value", "number of heads", v.heads, "--key", k.heads);
    same("--value", "seqlen", v.seqlen, "--key", k.seqlen);
    for (auto [argument, t] : {std::pair{"--query", &q}, {"--key", &k}, {"--value", &v}}) {
        if (t->heads == 0 || t->heads > VKATTN_MAX_HEADS)
            throw UsageError(argument,
                             fmt::format("{} heads, 1 .. {} are possible", t->heads, VKATTN_MAX_HEADS));
        if (t->dim == 0 || t->dim > VKATTN_MAX_HEAD_DIM)
            throw UsageError(argument,
                             fmt::format("head_dim {} is not within 1 .. {}", t->dim, VKATTN_MAX_HEAD_DIM));
        if (t->seqlen > VKATTN_MAX_SEQLEN)
            throw UsageError(argument, fmt::format("seqlen {} exceeds {}", t->seqlen, VKATTN_MAX_SEQLEN));
    }
    if (q.heads % k.heads != 0)
        throw UsageError("--key", fmt::format("{} heads do not divide --query's {}", k.heads, q.heads));
}

// True if the files would fit each other with their axes in the other order, which they have in between.
bool fits_turned(Tensor& q, Tensor& k, Tensor& v) {
    const auto turn = [&] {
        for (Tensor* t : {&q, &k, &v}) std::swap(t->heads, t->seqlen);
    };
    bool fits = true;
    turn();
    try {
        check_shapes(q, k, v);
    } catch (const UsageError&) {
        fits = false;
    }
    turn();
    return fits;
}

void check_shapes_aloud(Tensor& q, Tensor& k, Tensor& v, bool bshd) {
    try {
        check_shapes(q, k, v);
    } catch (const UsageError& e) {
        if (!fits_turned(q, k, v)) throw;
        throw UsageError(std::string(e.what()) +
                         (bshd ? "; the files fit as (batch, heads, seqlen, head_dim), without "
                                 "--layout bshd"
                               : "; the files fit as (batch, seqlen, heads, head_dim), which is "
                                 "--layout bshd"));
    }
}

// The types that --kv-dtype asks for; empty where it is not given.
struct KvDtypes {
    std::optional<VkattnDtype> key, value;
};

VkattnProblem make_problem(const AttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v,
                           const KvDtypes& stored, bool value_in_key) {
    VkattnProblem p = problem();
    options.apply(p);
    p.dtype = *storage_dtype(q.file.array.dtype);
    p.key_dtype = stored.key ? *stored.key : *storage_dtype(k.file.array.dtype);
    p.value_dtype = stored.value ? *stored.value : *storage_dtype(v.file.array.dtype);
    p.batch = q.batch;
    p.num_heads_q = q.heads;
    p.num_heads_kv = k.heads;
    p.seqlen_q = q.seqlen;
    p.seqlen_kv = k.seqlen;
    p.head_dim_qk = q.dim;
    p.head_dim_v = v.dim;
    p.value_in_key = value_in_key ? 1 : 0;
    if (value_in_key) check_types_of_key(p);
    set_dense_layout(p, options.bshd());
    return p;
}

// A mask whose first axis does not fit may have been meant for batches, or for heads that share it.
std::string mask_hint(const VkattnProblem& p, const std::vector<uint64_t>& shape) {
    if (shape.size() == 2 && shape[0] == p.batch)
        return "; a mask of keys for each batch has the shape (batch, 1, 1, seqlen_kv)";
    if (shape.size() == 3 && shape[0] == p.batch)
        return "; a mask for each batch has the shape (batch, 1, seqlen_q, seqlen_kv)";
    if (shape.size() == 3 && shape[0] != 0 && p.num_heads_q % shape[0] == 0)
        return "; fewer heads than those of --query are taken from a mask of 4 dimensions";
    return "";
}

// The shape must broadcast as in NumPy. Beside that, seqlen_kv may be less, and heads of a 4-D mask may be shared.
void check_mask_extents(const VkattnProblem& p, const std::vector<uint64_t>& shape) {
    constexpr std::array names = {"batch", "heads", "seqlen_q", "seqlen_kv"};
    const std::array<uint64_t, 4> whole = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
    if (shape.empty() || shape.size() > 4)
        throw UsageError("--mask", fmt::format("has {} dimensions, 1 to 4 are possible", shape.size()));
    for (size_t i = 0; i < shape.size(); i++) {
        const size_t axis = 4 - shape.size() + i;
        const bool last = axis == 3, may_share = axis == 1 && shape.size() == 4;
        if (may_share && shape[i] != 0 && whole[axis] % shape[i] == 0) continue;
        if (shape[i] != 1 && shape[i] != whole[axis] && !(last && shape[i] < whole[axis]))
            throw UsageError(
                "--mask", fmt::format("extent {} of dimension {} is neither 1 nor the {} of {}{}{}", shape[i],
                                      i, names[axis], whole[axis],
                                      last        ? " nor less"
                                      : may_share ? " nor a divisor of that"
                                                  : "",
                                      i == 0 ? mask_hint(p, shape) : ""));
    }
}

// A mask of integers, as tokenizers write it, becomes one of bool.
void make_bool(NpyArray& mask) {
    const std::vector<int64_t> values = to_integers(mask);
    const auto other = std::find_if(values.begin(), values.end(), [](int64_t x) { return x != 0 && x != 1; });
    if (other != values.end())
        throw UsageError(
            "--mask",
            fmt::format("{} at [{}] is neither 0 nor 1; a mask of {} hides where it is 0 and attends where "
                        "it is 1, and "
                        "one that is added to the scores is of a float type",
                        *other,
                        fmt::join(index_of(static_cast<size_t>(other - values.begin()), mask.shape), ", "),
                        dtype_name(mask.dtype)));
    std::vector<std::byte> data(values.size());
    std::transform(values.begin(), values.end(), data.begin(),
                   [](int64_t x) { return static_cast<std::byte>(x); });
    mask = {NpyDtype::boolean, false, std::move(mask.shape), std::move(data)};
}

void read_mask(const std::string& path, const std::optional<NpyDtype>& wanted, Inputs& in) {
    VkattnProblem& p = in.problem;
    in.mask = read_file("--mask", path);
    NpyArray& mask = in.mask.array;
    check_mask_extents(p, mask.shape);
    if (is_integer(mask.dtype)) make_bool(mask);
    p.mask = mask.dtype == NpyDtype::boolean ? VKATTN_MASK_BOOL : VKATTN_MASK_FLOAT;
    p.mask_rank = static_cast<uint32_t>(mask.shape.size());
    for (size_t i = 0; i < mask.shape.size(); i++) p.mask_extents[i] = static_cast<uint32_t>(mask.shape[i]);
    if (p.mask == VKATTN_MASK_BOOL) return;
    make_storable("--mask", wanted, in.mask);
    p.mask_dtype = *storage_dtype(mask.dtype);
}

// Reads integers, each within least .. most, as numbers of type T.
template <class T>
std::vector<std::byte> integers_in(const std::string& argument, const NpyArray& array, int64_t least,
                                   int64_t most) {
    std::vector<int64_t> wide;
    try {
        wide = to_integers(array);
    } catch (const NpyError& e) {
        throw UsageError(argument, e.what());
    }
    std::vector<T> values;
    for (const int64_t value : wide) {
        if (value < least || value > most)
            throw UsageError(argument,
                             fmt::format("{} at [{}] is not within {} .. {}", value,
                                         fmt::join(index_of(values.size(), array.shape), ", "), least, most));
        values.push_back(static_cast<T>(value));
    }
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
}

// Tells the problem what scales of this shape are of.
void set_scales_by_shape(const std::vector<uint64_t>& shape, VkattnScales& scales) {
    const bool is_one = shape.size() == 1 && shape[0] == 1;
    scales = shape.size() != 1 ? VKATTN_SCALES_PER_ROW : is_one ? VKATTN_SCALES_ONE : VKATTN_SCALES_PER_HEAD;
}

// Reads floats. The shape of slopes and scales says what they are of, which the problem is told.
std::vector<std::byte> read_floats(const ArrayOption& array, FileArray file, VkattnProblem& p) {
    const std::vector<uint64_t>& shape = file.array.shape;
    const bool are_slopes = array.option == "--alibi";
    if (are_slopes && shape.size() == 2) p.slopes = VKATTN_SLOPES_PER_BATCH;
    const bool of_keys = array.option == "--key-scales",
               are_scales = of_keys || array.option == "--value-scales";
    if (are_scales) set_scales_by_shape(shape, of_keys ? p.key_scales : p.value_scales);
    std::vector<uint64_t> wanted = array.extents(p);
    if (are_slopes && p.slopes == VKATTN_SLOPES_PER_HEAD) wanted.erase(wanted.begin());
    if (are_scales && shape.size() == 1) wanted = {wanted[1]};
    check_shape(array.option, file.array, wanted, array.shape.c_str());
    make_storable(array.option, NpyDtype::float32, file);
    return std::move(file.array.data);
}

// Reads a block map, whose shape tells of how many batches and heads it is.
std::vector<std::byte> read_map(const ArrayOption& array, const NpyArray& file, VkattnProblem& p) {
    if (file.shape.size() == 4) {
        p.block_map_batches = static_cast<uint32_t>(file.shape[0]);
        p.block_map_heads = static_cast<uint32_t>(file.shape[1]);
    }
    check_shape(array.option, file, array.extents(p), array.shape.c_str());
    if (file.dtype == NpyDtype::boolean) return file.data;
    return integers_in<uint8_t>(array.option, file, 0, UINT8_MAX);
}

// In place of a file's name.
constexpr const char* block_map_from_mask = "from-mask";

// Asks for a block map that the device makes of the mask, with heads and batches as the mask has them.
void ask_for_map_of_mask(VkattnProblem& p) {
    if (p.mask == VKATTN_MASK_NONE) throw UsageError("--block-map", "from-mask: there is no --mask");
    const uint32_t* const extents = p.mask_extents;
    p.block_map_heads = p.mask_rank < 3 ? 1 : extents[p.mask_rank - 3];
    p.block_map_batches = p.mask_rank < 4 ? 1 : extents[0];
}

// Reads an array's file, which must have its shape and type. The library cuts lengths to the keys that there are; in a
// file another number is a mistake.
std::vector<std::byte> read_array(const ArrayOption& array, const std::string& path, VkattnProblem& p) {
    FileArray given = read_file(array.option, path);
    if (array.has_floats) return read_floats(array, std::move(given), p);
    const NpyArray& file = given.array;
    if (array.has_bytes) return read_map(array, file, p);
    check_shape(array.option, file, array.extents(p), array.shape.c_str());
    const bool are_lengths = array.option == "--kv-lengths";
    return integers_in<int32_t>(array.option, file, are_lengths ? 0 : INT32_MIN,
                                are_lengths ? p.seqlen_kv : INT32_MAX);
}

}  // namespace

void InputFiles::add_tensors(CLI::App& app) {
    app.add_option("--query", query, "4-D .npy")->required();
    app.add_option("--key", key, "4-D .npy")->required();
    app.add_option("--value", value, "4-D .npy")->required();
}

void InputFiles::add_features(CLI::App& app, AttentionOptions& options) {
    app.add_option("--dtype", dtype,
                   "f32, f16 or bf16: converts the tensors and a float mask; default: each as in its file");
    app.add_option(
        "--out-dtype", out_dtype,
        "f32, f16 or bf16: what is written, but for lse; default: as the files that it belongs to");
    app.add_option(
        "--mask", mask,
        ".npy of bool, or integers of 0 and 1 (true, 1 = attend), or float (added), of up to 4 dimensions "
        "that "
        "broadcast to (batch, heads, seqlen_q, seqlen_kv) as in NumPy; of 4 dimensions, fewer heads that "
        "divide those of query are shared");
    add_arrays(app, true);
    options.add_to(app);
    app.get_option("--query-offsets")->excludes("--align");
    app.get_option("--alibi-of")->needs("--alibi");
}

void InputFiles::add_arrays(CLI::App& app, bool of_backward) {
    for (size_t i = 0; i < num_arrays; i++)
        if (const ArrayOption& array = ArrayOption::all()[i]; (array.backward != nullptr) == of_backward)
            app.add_option(array.option, arrays[i], array.help);
}

void InputFiles::add_of_forward(CLI::App& app) {
    add_arrays(app, false);  // the scales of key and value
    app.get_option("--value")->required(false);
    add_value_in_key(app, value_in_key)->excludes("--value", "--value-scales");
    app.add_option(
        "--kv-dtype", kv_dtype,
        "Of --key and --value, or of both as in q8_0,f16: f32, f16 and bf16 convert; " + stored_type_names() +
            " are blocks or single bytes, in a file of uint8 (int8 may be of int8) whose last extent is the "
            "bytes of a row");
}

std::optional<NpyDtype> InputFiles::wanted_dtype() const {
    if (!dtype) return std::nullopt;
    return npy_dtype(parse_dtype(*dtype));
}

std::optional<NpyDtype> InputFiles::wanted_out_dtype() const {
    if (!out_dtype) return std::nullopt;
    return npy_dtype(parse_dtype_of("--out-dtype", *out_dtype));
}

std::vector<NamedFile> InputFiles::named() const {
    std::vector<NamedFile> files{{"--query", query}, {"--key", key}};
    if (!value.empty()) files.push_back({"--value", value});
    if (mask) files.push_back({"--mask", *mask});
    for (size_t i = 0; i < num_arrays; i++)
        if (arrays[i] && *arrays[i] != block_map_from_mask)
            files.push_back({ArrayOption::all()[i].option, *arrays[i]});
    return files;
}

std::vector<uint64_t> Inputs::out_shape() const {
    std::vector<uint64_t> shape = query.array.shape;
    shape[3] = problem.head_dim_v;
    return shape;
}

std::vector<uint64_t> Inputs::lse_shape() const {
    return {problem.batch, problem.num_heads_q, problem.seqlen_q};
}

Inputs read_inputs(const InputFiles& files, const AttentionOptions& options) {
    const bool bshd = options.bshd();
    const std::optional<NpyDtype> wanted = files.wanted_dtype();
    Tensor q = read_tensor("--query", files.query, bshd, wanted);
    KvDtypes stored;
    if (files.kv_dtype) std::tie(stored.key, stored.value) = parse_kv_dtypes(*files.kv_dtype);
    Tensor k = read_tensor("--key", files.key, bshd, wanted, stored.key);
    Tensor v = read_value(files, bshd, wanted, stored.value, k);
    check_shapes_aloud(q, k, v, bshd);

    Inputs in{make_problem(options, q, k, v, stored, files.value_in_key.has_value()),
              std::move(q.file),
              std::move(k.file),
              std::move(v.file),
              {},
              {}};
    VkattnProblem& p = in.problem;
    if (files.mask) read_mask(*files.mask, wanted, in);
    for (size_t i = 0; i < num_arrays; i++) {
        if (!files.arrays[i]) continue;
        const ArrayOption& array = ArrayOption::all()[i];
        array.ask(p);
        if (i == static_cast<size_t>(ArrayName::block_map) && *files.arrays[i] == block_map_from_mask) {
            ask_for_map_of_mask(p);
            in.map_from_mask = true;
        } else {
            in.arrays[i] = read_array(array, *files.arrays[i], p);
        }
    }
    return in;
}

}  // namespace vkattn::tools
