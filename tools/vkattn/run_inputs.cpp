#include "run_inputs.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <utility>

namespace vkattn::tools {
namespace {

// A tensor of a file, with its extents by meaning rather than by position.
struct Tensor {
    NpyArray array;
    uint32_t batch, heads, seqlen, dim;
};

NpyArray read(const std::string& argument, const std::string& path) {
    try {
        return read_npy(path);
    } catch (const NpyError& e) {
        throw UsageError(argument, fmt::format("{}: {}", path, e.what()));
    }
}

// None where it is no storage type.
std::optional<VkattnDtype> storage_dtype(NpyDtype dtype) {
    for (VkattnDtype d : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        if (npy_dtype(d) == dtype) return d;
    return std::nullopt;
}

// Into the storage type that was asked for; without one the file's must be a storage type.
void make_storable(const std::string& argument, const std::optional<NpyDtype>& wanted, NpyArray& array) {
    if (!wanted) {
        if (storage_dtype(array.dtype)) return;
        const bool convertible = array.dtype == NpyDtype::float64;
        throw UsageError(
            argument, fmt::format("dtype {} is not float32, float16 or bfloat16{}", dtype_name(array.dtype),
                                  convertible ? "; --dtype converts it" : ""));
    }
    try {
        array = convert(std::move(array), *wanted);
    } catch (const NpyError& e) {
        throw UsageError(argument, e.what());
    }
}

Tensor read_tensor(const std::string& argument, const std::string& path, bool bshd,
                   const std::optional<NpyDtype>& wanted) {
    Tensor t{read(argument, path), 0, 0, 0, 0};
    const auto& shape = t.array.shape;
    if (shape.size() != 4)
        throw UsageError(argument, fmt::format("has {} dimensions, 4 are needed", shape.size()));
    for (uint64_t extent : shape)
        if (extent > UINT32_MAX)
            throw UsageError(argument, fmt::format("an extent of {} is too large", extent));
    make_storable(argument, wanted, t.array);
    const auto extent = [&](size_t i) { return static_cast<uint32_t>(shape[i]); };
    t.batch = extent(0);
    t.heads = extent(bshd ? 2 : 1);
    t.seqlen = extent(bshd ? 1 : 2);
    t.dim = extent(3);
    return t;
}

void check_dtype(const std::string& argument, const NpyArray& array, NpyDtype query) {
    if (array.dtype != query)
        throw UsageError(argument, fmt::format("dtype {} differs from --query's {}; --dtype converts",
                                               dtype_name(array.dtype), dtype_name(query)));
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
        check_dtype(argument, t->array, q.array.dtype);
    }
    if (q.heads % k.heads != 0)
        throw UsageError("--key", fmt::format("{} heads do not divide --query's {}", k.heads, q.heads));
}

VkattnProblem make_problem(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                           const Tensor& v) {
    VkattnProblem p = problem();
    options.apply(p);
    p.dtype = *storage_dtype(q.array.dtype);
    p.batch = q.batch;
    p.num_heads_q = q.heads;
    p.num_heads_kv = k.heads;
    p.seqlen_q = q.seqlen;
    p.seqlen_kv = k.seqlen;
    p.head_dim_qk = q.dim;
    p.head_dim_v = v.dim;
    set_dense_layout(p, options.bshd());
    return p;
}

void check_mask_extents(const VkattnProblem& p, const std::vector<uint64_t>& shape) {
    constexpr std::array names = {"batch", "heads", "seqlen_q", "seqlen_kv"};
    const std::array<uint64_t, 4> whole = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
    if (shape.empty() || shape.size() > 4)
        throw UsageError("--mask", fmt::format("has {} dimensions, 1 to 4 are possible", shape.size()));
    for (size_t i = 0; i < shape.size(); i++) {
        const size_t axis = 4 - shape.size() + i;
        const bool last = axis == 3;
        if (shape[i] != 1 && shape[i] != whole[axis] && !(last && shape[i] < whole[axis]))
            throw UsageError(
                "--mask", fmt::format("extent {} of dimension {} is neither 1 nor the {} of {}{}", shape[i],
                                      i, names[axis], whole[axis], last ? " nor less" : ""));
    }
}

void read_mask(const std::string& path, const std::optional<NpyDtype>& wanted, RunInputs& in) {
    VkattnProblem& p = in.problem;
    in.mask = read("--mask", path);
    check_mask_extents(p, in.mask.shape);
    p.mask = in.mask.dtype == NpyDtype::boolean ? VKATTN_MASK_BOOL : VKATTN_MASK_FLOAT;
    p.mask_rank = static_cast<uint32_t>(in.mask.shape.size());
    for (size_t i = 0; i < in.mask.shape.size(); i++)
        p.mask_extents[i] = static_cast<uint32_t>(in.mask.shape[i]);
    if (p.mask == VKATTN_MASK_BOOL) return;
    if (in.mask.dtype == NpyDtype::int32 || in.mask.dtype == NpyDtype::int64)
        throw UsageError(
            "--mask", fmt::format("dtype {} is neither bool nor floating point", dtype_name(in.mask.dtype)));
    make_storable("--mask", wanted, in.mask);
    check_dtype("--mask", in.mask, in.query.dtype);
}

// One number a batch, each within least .. most.
std::vector<int32_t> read_per_batch(const std::string& argument, const std::string& path, uint32_t batch,
                                    int32_t least, int32_t most) {
    const NpyArray array = read(argument, path);
    if (array.shape != std::vector<uint64_t>{batch})
        throw UsageError(argument, fmt::format("the shape is not ({},), one number a batch", batch));
    std::vector<int64_t> wide;
    try {
        wide = to_integers(array);
    } catch (const NpyError& e) {
        throw UsageError(argument, e.what());
    }
    std::vector<int32_t> values;
    for (int64_t value : wide) {
        if (value < least || value > most)
            throw UsageError(argument, fmt::format("{} of batch {} is not within {} .. {}", value,
                                                   values.size(), least, most));
        values.push_back(static_cast<int32_t>(value));
    }
    return values;
}

}  // namespace

RunInputs read_inputs(const RunFiles& files, const AttentionOptions& options) {
    const bool bshd = options.bshd();
    std::optional<NpyDtype> wanted;
    if (files.dtype) wanted = npy_dtype(parse_dtype(*files.dtype));
    Tensor q = read_tensor("--query", files.query, bshd, wanted);
    Tensor k = read_tensor("--key", files.key, bshd, wanted);
    Tensor v = read_tensor("--value", files.value, bshd, wanted);
    check_shapes(q, k, v);

    RunInputs in{make_problem(options, q, k, v),
                 std::move(q.array),
                 std::move(k.array),
                 std::move(v.array),
                 {},
                 {},
                 {}};
    using Limits = std::numeric_limits<int32_t>;
    VkattnProblem& p = in.problem;
    if (files.mask) read_mask(*files.mask, wanted, in);
    if (files.kv_lengths) {
        p.kv_lengths = 1;
        in.kv_lengths =
            read_per_batch("--kv-lengths", *files.kv_lengths, p.batch, 0, static_cast<int32_t>(p.seqlen_kv));
    }
    if (files.query_offsets) {
        p.align = VKATTN_ALIGN_OFFSETS;
        in.query_offsets =
            read_per_batch("--query-offsets", *files.query_offsets, p.batch, Limits::min(), Limits::max());
    }
    return in;
}

}  // namespace vkattn::tools
