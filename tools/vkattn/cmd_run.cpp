// vkattn run: attention from .npy to .npy.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "common.hpp"
#include "npy.hpp"

namespace vkattn::tools {
namespace {

struct Run {
    AttentionOptions attention;
    std::string query, key, value, out, lse, layout = "bhsd";
};

// A tensor of a file, with its extents by meaning rather than by position.
struct Tensor {
    NpyArray array;
    uint32_t batch, heads, seqlen, dim;
};

Tensor read_tensor(const std::string& argument, const std::string& path, bool bshd) {
    Tensor t{};
    try {
        t.array = read_npy(path);
    } catch (const NpyError& e) {
        throw UsageError(argument, fmt::format("{}: {}", path, e.what()));
    }
    const auto& shape = t.array.shape;
    if (shape.size() != 4)
        throw UsageError(argument, fmt::format("has {} dimensions, 4 are needed", shape.size()));
    for (uint64_t extent : shape)
        if (extent > UINT32_MAX)
            throw UsageError(argument, fmt::format("an extent of {} is too large", extent));
    const auto dtype = t.array.dtype;
    if (dtype != NpyDtype::float32 && dtype != NpyDtype::float16 && dtype != NpyDtype::bfloat16)
        throw UsageError(argument,
                         fmt::format("dtype {} is not float32, float16 or bfloat16", dtype_name(dtype)));
    const auto extent = [&](size_t i) { return static_cast<uint32_t>(shape[i]); };
    t.batch = extent(0);
    t.heads = extent(bshd ? 2 : 1);
    t.seqlen = extent(bshd ? 1 : 2);
    t.dim = extent(3);
    return t;
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
        if (t->array.dtype != q.array.dtype)
            throw UsageError(argument, fmt::format("dtype {} differs from --query's {}",
                                                   dtype_name(t->array.dtype), dtype_name(q.array.dtype)));
    }
    if (q.heads % k.heads != 0)
        throw UsageError("--key", fmt::format("{} heads do not divide --query's {}", k.heads, q.heads));
}

VkattnStrides strides(uint32_t heads, uint32_t seqlen, uint32_t dim, bool bshd) {
    const uint64_t whole = uint64_t{heads} * seqlen * dim;
    return bshd ? VkattnStrides{whole, dim, uint64_t{heads} * dim}
                : VkattnStrides{whole, uint64_t{seqlen} * dim, dim};
}

VkattnProblem make_problem(const Run& run, const Tensor& q, const Tensor& k, const Tensor& v) {
    const bool bshd = run.layout == "bshd";
    VkattnProblem p = problem();
    run.attention.apply(p);
    p.batch = q.batch;
    p.num_heads_q = q.heads;
    p.num_heads_kv = k.heads;
    p.seqlen_q = q.seqlen;
    p.seqlen_kv = k.seqlen;
    p.head_dim_qk = q.dim;
    p.head_dim_v = v.dim;
    p.query_strides = strides(q.heads, q.seqlen, q.dim, bshd);
    p.key_strides = strides(k.heads, k.seqlen, k.dim, bshd);
    p.value_strides = strides(v.heads, v.seqlen, v.dim, bshd);
    p.out_strides = strides(q.heads, q.seqlen, v.dim, bshd);
    set_dense_alignment(p);
    return p;
}

Buffer upload(Runtime& runtime, const Tensor& t) {
    const std::vector<float> values = to_float(t.array);
    Buffer buffer = runtime.allocate(values.size() * sizeof(float));
    runtime.upload(buffer, std::as_bytes(std::span(values)));
    return buffer;
}

std::vector<float> download(Runtime& runtime, const Buffer& buffer) {
    std::vector<float> values(buffer.size_bytes() / sizeof(float));
    runtime.download(buffer, std::as_writable_bytes(std::span(values)));
    return values;
}

void write(const std::string& argument, const std::string& path, const NpyArray& array) {
    try {
        write_npy(path, array);
    } catch (const NpyError& e) {
        throw UsageError(argument, fmt::format("{}: {}", path, e.what()));
    }
}

struct Done {
    double plan_us = 0, record_us = 0, time_ms = 0;
    uint64_t tensor_bytes = 0, matrix_bytes = 0;
};

void print(const Run& run, const Runtime& runtime, const VkattnProblem& p, const Json& plan,
           const Done& done) {
    const DeviceInfo& d = runtime.device();
    if (run.attention.json) {
        const Json out{{"device", d.name},
                       {"driver", d.driver},
                       {"kernel", plan["kernel"]},
                       {"tuning_row", plan["tuning_row"]},
                       {"tiles", plan["tiles"]},
                       {"dispatches", plan["dispatches"].size()},
                       {"scratch_bytes", plan["scratch_bytes"]},
                       {"tensor_bytes", done.tensor_bytes},
                       {"matrix_bytes", done.matrix_bytes},
                       {"time_ms", done.time_ms},
                       {"record_us", done.record_us},
                       {"plan_us", done.plan_us}};
        fmt::print("{}\n", out.dump());
        return;
    }
    fmt::print("problem   batch {}, heads {}/{}, {} queries x {} keys, head_dim {}/{}\n", p.batch,
               p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim_qk, p.head_dim_v);
    fmt::print("device    {} ({})\n", d.name, d.driver);
    fmt::print("kernel    {}, tiles of {} query rows x {} keys ({})\n", plan["kernel"].get<std::string>(),
               plan["tiles"]["tile_q"].get<int>(), plan["tiles"]["tile_kv"].get<int>(),
               plan["tuning_row"].get<std::string>());
    fmt::print(
        "time      {:.3f} ms on the device in {} dispatches; planned in {:.0f} us, recorded in {:.0f} us\n",
        done.time_ms, plan["dispatches"].size(), done.plan_us, done.record_us);
    fmt::print("memory    {} of tensors, {} of scratch; the score matrices would take {}\n",
               bytes_text(static_cast<double>(done.tensor_bytes)),
               bytes_text(plan["scratch_bytes"].get<double>()),
               bytes_text(static_cast<double>(done.matrix_bytes)));
}

void execute(const Run& run) {
    if (run.layout != "bhsd" && run.layout != "bshd")
        throw UsageError("--layout", fmt::format("'{}' is not bhsd or bshd", run.layout));
    if (run.lse == run.out) throw UsageError("--lse", "is the same file as --out");
    const bool bshd = run.layout == "bshd";
    const Tensor q = read_tensor("--query", run.query, bshd), k = read_tensor("--key", run.key, bshd),
                 v = read_tensor("--value", run.value, bshd);
    check_shapes(q, k, v);
    const VkattnProblem p = make_problem(run, q, k, v);

    Runtime runtime(run.attention.runtime_options());
    Done done;
    const auto start = std::chrono::steady_clock::now();
    Plan plan;
    try {
        plan = runtime.plan(p, run.attention.plan_options());
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
    done.plan_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();

    const Buffer query = upload(runtime, q), key = upload(runtime, k), value = upload(runtime, v);
    const Buffer out = runtime.allocate(element_count(q.batch, q.heads, q.seqlen, v.dim) * sizeof(float));
    const Buffer lse = runtime.allocate(element_count(q.batch, q.heads, q.seqlen, 1) * sizeof(float));
    const Buffer scratch = runtime.allocate(plan.scratch().size_bytes);
    VkattnForwardArgs args = forward_args();
    args.query = query.address();
    args.key = key.address();
    args.value = value.address();
    args.out = out.address();
    args.lse = run.lse.empty() ? 0 : lse.address();
    args.scratch_buffer = scratch.handle();
    args.scratch_address = scratch.address();
    done.time_ms = runtime.submit([&](VkCommandBuffer c) { plan.cmd_forward(c, args); }, &done.record_us);
    done.tensor_bytes =
        query.size_bytes() + key.size_bytes() + value.size_bytes() + out.size_bytes() + lse.size_bytes();
    done.matrix_bytes = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1) * p.seqlen_kv * sizeof(float);

    std::vector<uint64_t> shape = q.array.shape;
    shape[3] = v.dim;
    write("--out", run.out, from_float(download(runtime, out), shape, q.array.dtype, q.array.big_endian));
    if (run.lse.empty()) return print(run, runtime, p, Json::parse(plan.describe()), done);
    try {
        write("--lse", run.lse,
              from_float(download(runtime, lse), {q.batch, q.heads, q.seqlen}, NpyDtype::float32));
    } catch (const UsageError&) {  // both or none
        std::error_code ignored;
        std::filesystem::remove(run.out, ignored);
        throw;
    }
    print(run, runtime, p, Json::parse(plan.describe()), done);
}

}  // namespace

void add_run(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("run", "Attention from .npy to .npy");
    auto run = std::make_shared<Run>();
    sub->add_option("--query", run->query, "4-D .npy")->required();
    sub->add_option("--key", run->key, "4-D .npy")->required();
    sub->add_option("--value", run->value, "4-D .npy")->required();
    sub->add_option("--out", run->out, "Written in the query file's type and layout")->required();
    sub->add_option("--lse", run->lse, "Written as float32, (batch, heads, seqlen_q)");
    sub->add_option("--layout", run->layout, "Order of the files' axes: bhsd (default) or bshd");
    run->attention.add_to(*sub);
    sub->callback([run] { execute(*run); });
}

}  // namespace vkattn::tools
