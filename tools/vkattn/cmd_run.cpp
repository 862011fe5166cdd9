// vkattn run: attention from .npy to .npy.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>

#include "common.hpp"
#include "run_inputs.hpp"
#include "submission.hpp"

namespace vkattn::tools {
namespace {

struct Run {
    AttentionOptions attention;
    RunFiles files;
    std::string out, lse;
};

Buffer upload(Runtime& runtime, std::span<const std::byte> data) {
    Buffer buffer = runtime.allocate(data.size());
    runtime.upload(buffer, data);
    return buffer;
}

NpyArray download(Runtime& runtime, const Buffer& buffer, NpyDtype dtype, std::vector<uint64_t> shape) {
    NpyArray array{dtype, false, std::move(shape), std::vector<std::byte>(buffer.size_bytes())};
    runtime.download(buffer, array.data);
    return array;
}

// What `action` says of the file, said of the argument.
template <class Action>
auto with_argument(const std::string& argument, const std::string& path, Action action) {
    try {
        return action();
    } catch (const NpyError& e) {
        throw UsageError(argument, fmt::format("{}: {}", path, e.what()));
    }
}

// Both or none.
void write(const Run& run, const NpyArray& out, const NpyArray& lse) {
    const auto prepare = [](const char* argument, const std::string& path, const NpyArray& array) {
        return with_argument(argument, path, [&] { return std::make_unique<PendingNpy>(path, array); });
    };
    const auto pending_out = prepare("--out", run.out, out);
    const auto pending_lse = run.lse.empty() ? nullptr : prepare("--lse", run.lse, lse);
    if (pending_lse) with_argument("--lse", run.lse, [&] { pending_lse->commit(); });
    with_argument("--out", run.out, [&] { pending_out->commit(); });
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

struct Done {
    double plan_us = 0, record_us = 0, time_ms = 0;
    uint32_t segments = 0, submissions = 0;
    uint64_t tensor_bytes = 0, matrix_bytes = 0;
};

void print(const Run& run, const Runtime& runtime, const VkattnProblem& p, const Json& plan,
           const Done& done) {
    const DeviceInfo& d = runtime.device();
    if (run.attention.json) {
        const Json out{{"device", d.name},
                       {"driver", d.driver},
                       {"dtype", dtype_text(p.dtype)},
                       {"kernel", plan["kernel"]},
                       {"tuning_row", plan["tuning_row"]},
                       {"tiles", plan["tiles"]},
                       {"dispatches", plan["dispatches"].size()},
                       {"segments", done.segments},
                       {"submissions", done.submissions},
                       {"scratch_bytes", plan["scratch_bytes"]},
                       {"tensor_bytes", done.tensor_bytes},
                       {"matrix_bytes", done.matrix_bytes},
                       {"time_ms", done.time_ms},
                       {"record_us", done.record_us},
                       {"plan_us", done.plan_us}};
        fmt::print("{}\n", out.dump());
        return;
    }
    fmt::print("problem   {}, batch {}, heads {}/{}, {} queries x {} keys, head_dim {}/{}\n",
               dtype_text(p.dtype), p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv,
               p.head_dim_qk, p.head_dim_v);
    fmt::print("device    {} ({})\n", d.name, d.driver);
    fmt::print("kernel    {}, tiles of {} query rows x {} keys ({})\n", plan["kernel"].get<std::string>(),
               plan["tiles"]["tile_q"].get<int>(), plan["tiles"]["tile_kv"].get<int>(),
               plan["tuning_row"].get<std::string>());
    fmt::print(
        "time      {:.3f} ms on the device in {} dispatches, {} submissions; planned in {:.0f} us, recorded "
        "in {:.0f} us\n",
        done.time_ms, plan["dispatches"].size(), done.submissions, done.plan_us, done.record_us);
    fmt::print("memory    {} of tensors, {} of scratch; the score matrices would take {}\n",
               bytes_text(static_cast<double>(done.tensor_bytes)),
               bytes_text(plan["scratch_bytes"].get<double>()),
               bytes_text(static_cast<double>(done.matrix_bytes)));
}

Plan make_plan(const Run& run, const Runtime& runtime, const VkattnProblem& p) {
    try {
        return runtime.plan(p, run.attention.plan_options());
    } catch (const Error& error) {
        rethrow_as_usage(error, Shapes::of_files);
    }
}

struct Results {
    NpyArray out, lse;
};

Results compute(Runtime& runtime, const Plan& plan, const RunInputs& in, bool lse_wanted, Done& done) {
    const VkattnProblem& p = in.problem;
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1);
    const Buffer query = upload(runtime, in.query.data), key = upload(runtime, in.key.data),
                 value = upload(runtime, in.value.data), mask = upload(runtime, in.mask.data),
                 kv_lengths = upload(runtime, std::as_bytes(std::span(in.kv_lengths))),
                 query_offsets = upload(runtime, std::as_bytes(std::span(in.query_offsets)));
    const Buffer out = runtime.allocate(rows * p.head_dim_v * element_bytes(p.dtype));
    const Buffer lse = runtime.allocate(rows * sizeof(float));
    const Buffer scratch = runtime.allocate(plan.scratch().size_bytes);
    VkattnForwardArgs args = forward_args();
    args.query = query.address();
    args.key = key.address();
    args.value = value.address();
    args.out = out.address();
    args.lse = lse_wanted ? lse.address() : 0;
    args.mask = mask.address();
    args.kv_lengths = kv_lengths.address();
    args.query_offsets = query_offsets.address();
    args.scratch_buffer = scratch.handle();
    args.scratch_address = scratch.address();

    Submitter submitter(runtime);
    done.time_ms = submitter.run(plan, args);
    done.record_us = submitter.record_us();
    done.submissions = submitter.submissions();
    done.segments = plan.segments();
    for (const Buffer* b : {&query, &key, &value, &mask, &out, &lse}) done.tensor_bytes += b->size_bytes();
    done.matrix_bytes = rows * p.seqlen_kv * sizeof(float);

    std::vector<uint64_t> shape = in.query.shape;
    shape[3] = p.head_dim_v;
    Results results{download(runtime, out, in.query.dtype, std::move(shape)), {}};
    results.out.big_endian = in.query.big_endian;
    if (lse_wanted)
        results.lse = download(runtime, lse, NpyDtype::float32, {p.batch, p.num_heads_q, p.seqlen_q});
    return results;
}

void execute(const Run& run) {
    if (run.out.empty()) throw UsageError("--out", "is empty");
    if (!run.lse.empty() && same_file(run.lse, run.out))
        throw UsageError("--lse", "is the same file as --out");
    const RunInputs in = read_inputs(run.files, run.attention);
    Runtime runtime(run.attention.runtime_options());
    Done done;
    const auto start = std::chrono::steady_clock::now();
    const Plan plan = make_plan(run, runtime, in.problem);
    done.plan_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    const Results results = compute(runtime, plan, in, !run.lse.empty(), done);

    write(run, results.out, results.lse);
    print(run, runtime, in.problem, Json::parse(plan.describe()), done);
}

}  // namespace

void add_run(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("run", "Attention from .npy to .npy");
    auto run = std::make_shared<Run>();
    RunFiles& files = run->files;
    sub->add_option("--query", files.query, "4-D .npy")->required();
    sub->add_option("--key", files.key, "4-D .npy")->required();
    sub->add_option("--value", files.value, "4-D .npy")->required();
    sub->add_option("--out", run->out, "Written in the query's type and layout")->required();
    sub->add_option("--lse", run->lse, "Written as float32, (batch, heads, seqlen_q)");
    sub->add_option(
        "--dtype", files.dtype,
        "f32, f16 or bf16: converts query, key, value and a float mask; default: the files' type");
    sub->add_option("--mask", files.mask,
                    ".npy, bool (true = attend) or float (added), of up to 4 dimensions that broadcast to "
                    "(batch, heads, seqlen_q, seqlen_kv)");
    sub->add_option("--kv-lengths", files.kv_lengths, ".npy of int32 or int64, (batch): each batch's keys");
    CLI::Option* offsets = sub->add_option("--query-offsets", files.query_offsets,
                                           ".npy of int32 or int64, (batch): --align of each batch");
    run->attention.add_to(*sub);
    offsets->excludes("--align");
    sub->callback([run] { execute(*run); });
}

}  // namespace vkattn::tools
