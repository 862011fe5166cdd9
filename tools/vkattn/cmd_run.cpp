// vkattn run: attention from .npy to .npy.
#include <memory>

#include "device_work.hpp"
#include "modules.hpp"

namespace vkattn::tools {
namespace {

struct Run {
    AttentionOptions attention;
    InputFiles files;
    std::string out, lse;
};

void execute(const Run& run) {
    std::vector<OutputFile> outputs{{"--out", run.out, {}}};
    if (!run.lse.empty()) outputs.push_back({"--lse", run.lse, {}});
    check_outputs(outputs, run.files.named(), run.attention.pipeline_cache);
    const std::optional<NpyDtype> out_dtype = run.files.wanted_out_dtype();
    Inputs in = read_inputs(run.files, run.attention);
    const VkattnProblem& p = in.problem;
    Runtime runtime = open_runtime(run.attention);
    add_modules(runtime, run.attention.modules);
    require_execution(runtime);
    make_block_map(runtime, in, false);
    Work work("kernel", runtime, p, run.attention.plan_options());

    const DeviceInputs inputs(runtime, in);
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1);
    const Buffer out = runtime.allocate(rows * p.head_dim_v * element_bytes(p.dtype));
    const Buffer lse = runtime.allocate(run.lse.empty() ? 0 : rows * sizeof(float));
    VkattnForwardArgs args = forward_args();
    inputs.fill(args);
    args.out = out.address();
    args.lse = lse.address();
    work.run(runtime, args);

    outputs[0].array =
        like_file("--out", download(runtime, out, in.query.array.dtype, in.out_shape()), in.query, out_dtype);
    if (!run.lse.empty()) outputs[1].array = download(runtime, lse, NpyDtype::float32, in.lse_shape());
    write_all(outputs);
    print_report(run.attention, runtime, in, work,
                 inputs.tensor_bytes() + out.size_bytes() + lse.size_bytes());
}

}  // namespace

void add_run(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("run", "Attention from .npy to .npy");
    auto run = std::make_shared<Run>();
    run->files.add_tensors(*sub);
    sub->add_option("--out", run->out, "Written in the type and layout of --query")->required();
    sub->add_option("--lse", run->lse, "Written as float32, (batch, heads, seqlen_q)");
    run->files.add_of_forward(*sub);
    run->files.add_features(*sub, run->attention);
    sub->callback([run] { execute(*run); });
}

}  // namespace vkattn::tools
