// vkattn grad: gradients from .npy to .npy. Without the forward's results it runs the forward first.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "device_work.hpp"
#include "modules.hpp"

namespace vkattn::tools {
namespace {

struct Grad {
    AttentionOptions attention;
    InputFiles files;
    std::string dout, dq, dk, dv;
    std::optional<std::string> dlse, out, lse, dbias, dsinks;
};

// Files of the forward's results and their gradients; empty arrays where there is none.
struct GradInputs {
    Inputs problem;
    FileArray dout, dlse, out, lse;
};

FileArray read_like_out(const char* argument, const std::string& path, const Grad& grad, const Inputs& in) {
    FileArray file = read_file(argument, path);
    check_shape(argument, file.array, in.out_shape(), "that of attention's result");
    make_storable(argument, grad.files.wanted_dtype(), file);
    check_dtype(argument, file.array, in.query.array.dtype);
    return file;
}

FileArray read_like_lse(const char* argument, const std::string& path, const Inputs& in) {
    FileArray file = read_file(argument, path);
    check_shape(argument, file.array, in.lse_shape(), "(batch, heads, seqlen_q)");
    if (file.array.dtype != NpyDtype::float32)
        throw UsageError(argument, fmt::format("dtype {} is not float32", dtype_name(file.array.dtype)));
    return file;
}

GradInputs read_grad_inputs(const Grad& grad) {
    GradInputs in{read_inputs(grad.files, grad.attention), {}, {}, {}, {}};
    if (grad.dbias && in.problem.problem.mask != VKATTN_MASK_FLOAT)
        throw UsageError("--dbias", "is the gradient of a float mask, and --mask is bool");
    in.dout = read_like_out("--dout", grad.dout, grad, in.problem);
    if (grad.dlse) in.dlse = read_like_lse("--dlse", *grad.dlse, in.problem);
    if (grad.out) in.out = read_like_out("--out", *grad.out, grad, in.problem);
    if (grad.lse) in.lse = read_like_lse("--lse", *grad.lse, in.problem);
    if (grad.out && grad.attention.num_splits != 0)
        throw UsageError("--num-splits", "is for the forward, which --out and --lse make needless");
    return in;
}

std::vector<OutputFile> outputs_of(const Grad& grad) {
    std::vector<OutputFile> outputs{{"--dq", grad.dq, {}}, {"--dk", grad.dk, {}}, {"--dv", grad.dv, {}}};
    if (grad.dbias) outputs.push_back({"--dbias", *grad.dbias, {}});
    if (grad.dsinks) outputs.push_back({"--dsinks", *grad.dsinks, {}});
    std::vector<NamedFile> inputs = grad.files.named();
    inputs.push_back({"--dout", grad.dout});
    if (grad.dlse) inputs.push_back({"--dlse", *grad.dlse});
    if (grad.out) inputs.push_back({"--out", *grad.out});
    if (grad.lse) inputs.push_back({"--lse", *grad.lse});
    check_outputs(outputs, inputs, grad.attention.pipeline_cache);
    return outputs;
}

// The forward's results on the device, from their files or computed.
struct Forward {
    std::optional<Work> work;
    Buffer out, lse;
};

// --kernel and --tuning are the backward's.
VkattnOptions forward_options(const Grad& grad) {
    VkattnOptions o = grad.attention.plan_options();
    o.kernel = o.tuning = nullptr;
    return o;
}

VkattnOptions backward_options(const Grad& grad) {
    VkattnOptions o = grad.attention.plan_options();
    o.num_splits = 0;
    return o;
}

Forward make_forward(const Grad& grad, Runtime& runtime, const GradInputs& in, const DeviceInputs& inputs) {
    Forward f;
    if (grad.out) {
        f.out = upload(runtime, in.out.array.data);
        f.lse = upload(runtime, in.lse.array.data);
        return f;
    }
    const VkattnProblem& p = in.problem.problem;
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1);
    f.out = runtime.allocate(rows * p.head_dim_v * element_bytes(p.dtype));
    f.lse = runtime.allocate(rows * sizeof(float));
    VkattnForwardArgs args = forward_args();
    inputs.fill(args);
    args.out = f.out.address();
    args.lse = f.lse.address();
    f.work.emplace("forward", runtime, p, forward_options(grad));
    f.work->run(runtime, args);
    return f;
}

// This says what a gradient is shaped and stored like, and where its address goes.
struct Gradient {
    const FileArray* like;
    VkDeviceAddress* address;
};

// Fills outputs' arrays. Returns the bytes of dout, dlse and the gradients.
uint64_t make_gradients(const Grad& grad, Runtime& runtime, const GradInputs& in, VkattnBackwardArgs args,
                        Work& work, std::vector<OutputFile>& outputs) {
    const Inputs& p = in.problem;
    FileArray sinks;
    sinks.array = {
        NpyDtype::float32, false, {p.problem.num_heads_q}, p.arrays[static_cast<size_t>(ArrayName::sinks)]};
    std::vector<Gradient> wanted = {{&p.query, &args.dquery}, {&p.key, &args.dkey}, {&p.value, &args.dvalue}};
    if (grad.dbias) wanted.push_back({&p.mask, &args.dbias});
    if (grad.dsinks) wanted.push_back({&sinks, &args.dsinks});
    const Buffer dout = upload(runtime, in.dout.array.data), dlse = upload(runtime, in.dlse.array.data);
    args.dout = dout.address();
    args.dlse = dlse.address();
    uint64_t bytes = dout.size_bytes() + dlse.size_bytes();
    std::vector<Buffer> gradients;
    for (size_t i = 0; i < outputs.size(); i++) {
        gradients.push_back(runtime.allocate(wanted[i].like->array.data.size()));
        *wanted[i].address = gradients[i].address();
        bytes += gradients[i].size_bytes();
    }
    work.run(runtime, args);
    for (size_t i = 0; i < outputs.size(); i++) {
        const NpyArray& tensor = wanted[i].like->array;
        const auto dtype = wanted[i].like == &sinks ? std::nullopt : grad.files.wanted_out_dtype();
        outputs[i].array =
            like_file(outputs[i].argument, download(runtime, gradients[i], tensor.dtype, tensor.shape),
                      *wanted[i].like, dtype);
    }
    return bytes;
}

void execute(const Grad& grad) {
    std::vector<OutputFile> outputs = outputs_of(grad);
    grad.files.wanted_out_dtype();  // refuses what is no type before files are read
    GradInputs in = read_grad_inputs(grad);
    const VkattnProblem& p = in.problem.problem;
    Runtime runtime = open_runtime(grad.attention);
    add_modules(runtime, grad.attention.modules);
    require_execution(runtime);
    make_block_map(runtime, in.problem, grad.dbias.has_value());
    VkattnBackward b = dense_backward(p);
    b.dlse = grad.dlse.has_value();
    b.dbias = grad.dbias.has_value();
    b.dsinks = grad.dsinks.has_value();
    Work work("backward", runtime, p, b, backward_options(grad));

    const DeviceInputs inputs(runtime, in.problem);
    const Forward forward = make_forward(grad, runtime, in, inputs);
    VkattnBackwardArgs args = backward_args();
    inputs.fill(args);
    args.out = forward.out.address();
    args.lse = forward.lse.address();
    uint64_t bytes = inputs.tensor_bytes() + forward.out.size_bytes() + forward.lse.size_bytes();
    bytes += make_gradients(grad, runtime, in, args, work, outputs);
    write_all(outputs);
    print_report(grad.attention, runtime, in.problem, work, bytes, forward.work ? &*forward.work : nullptr);
}

}  // namespace

void add_grad(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("grad", "Gradients of attention from .npy to .npy");
    auto g = std::make_shared<Grad>();
    g->files.add_tensors(*sub);
    sub->add_option("--dout", g->dout, "The gradient of attention's result, in its shape")->required();
    sub->add_option("--dlse", g->dlse, "The gradient of its lse, float32; default: none comes in");
    CLI::Option* out = sub->add_option("--out", g->out, "What run has written, read; default: computed");
    CLI::Option* lse = sub->add_option("--lse", g->lse, "What run has written, read; goes with --out");
    out->needs(lse);
    lse->needs(out);
    sub->add_option("--dq", g->dq, "Written in the type, shape and layout of --query")->required();
    sub->add_option("--dk", g->dk, "Written as --key")->required();
    sub->add_option("--dv", g->dv, "Written as --value")->required();
    CLI::Option* dbias = sub->add_option("--dbias", g->dbias, "Written as --mask, which is float then");
    CLI::Option* dsinks = sub->add_option("--dsinks", g->dsinks, "Written as --sinks, float32");
    g->files.add_features(*sub, g->attention);
    dbias->needs("--mask");
    dsinks->needs("--sinks");
    sub->get_option("--kernel")
        ->description("auto, or the backward's kernel: matrix, matrix_khr, tiles_dot, tiles, materialized");
    sub->get_option("--tuning")->description("Numbers over the backward's tuning row, as in cols=8");
    sub->get_option("--num-splits")
        ->description("Parts that the forward's keys are split into; 0 = the planner decides (default)");
    sub->callback([g] { execute(*g); });
}

}  // namespace vkattn::tools
