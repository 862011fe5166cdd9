// Modules of the application: what a context takes, and that plans compute with them (vkattn_context_add_module).
#include <cmath>
#include <random>

#include "api_calls.hpp"
#include "variant/modules.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace modules {
namespace {

constexpr uint32_t rows = 37, keys = 53, dim = 20;
constexpr float cap = 1.5f, scale = 0.25f;
constexpr const char* rational_cap = "a rational cap";

VkattnProblem capped() {
    VkattnProblem p = problem();
    p.seqlen_q = rows;
    p.seqlen_kv = keys;
    p.head_dim_qk = p.head_dim_v = dim;
    p.softcap = cap;
    p.softmax_scale = scale;
    return p;
}

VkattnOptions by_tiles(const char* variant) {
    VkattnOptions o = options();
    o.kernel = VKATTN_KERNEL_TILES;
    o.variant = variant;
    return o;
}

void add_all(const Context& context) {
    for (const auto& [name, words] : variant_modules()) {
        VkattnModule m = module_info();
        m.variant = rational_cap;
        m.module = name.c_str();
        m.code = words.data();
        m.code_bytes = words.size() * sizeof(uint32_t);
        context.add_module(m);
    }
}

using Matrix = std::vector<double>;

struct Result {
    Matrix out, dquery;
};

// In float64, with c * s / (c + |s|) as the score.
Result expected(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                const std::vector<float>& dout) {
    Result r{Matrix(rows * dim), Matrix(rows * dim)};
    for (size_t i = 0; i < rows; i++) {
        std::vector<double> weights(keys), slopes(keys);
        double sum = 0;
        for (size_t j = 0; j < keys; j++) {
            double s = 0;
            for (size_t d = 0; d < dim; d++) s += double{q[i * dim + d]} * k[j * dim + d] * scale;
            const double part = cap / (cap + std::abs(s));
            slopes[j] = part * part;
            sum += weights[j] = std::exp(s * part);
        }
        double delta = 0;
        for (size_t d = 0; d < dim; d++) {
            double& out = r.out[i * dim + d];
            for (size_t j = 0; j < keys; j++) out += weights[j] / sum * v[j * dim + d];
            delta += out * dout[i * dim + d];
        }
        for (size_t j = 0; j < keys; j++) {
            double dp = 0;
            for (size_t d = 0; d < dim; d++) dp += double{dout[i * dim + d]} * v[j * dim + d];
            const double ds = weights[j] / sum * (dp - delta) * slopes[j] * scale;
            for (size_t d = 0; d < dim; d++) r.dquery[i * dim + d] += ds * k[j * dim + d];
        }
    }
    return r;
}

double difference(const std::vector<float>& a, const Matrix& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
}

struct Tensors {
    explicit Tensors(Runtime& device) : runtime(device) {
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        for (std::vector<float>* t : {&query, &key, &value, &dout}) {
            for (float& x : *t) x = normal(random);
            buffers.push_back(runtime.allocate(t->size() * sizeof(float)));
            runtime.upload(buffers.back(), std::as_bytes(std::span(*t)));
        }
        for (const size_t count : {rows * dim, rows, rows * dim, keys * dim, keys * dim})
            buffers.push_back(runtime.allocate(count * sizeof(float)));
    }
    template <class Args>
    Args args(Args a, const Buffer& scratch) const {
        a.query = buffers[0].address();
        a.key = buffers[1].address();
        a.value = buffers[2].address();
        a.out = buffers[4].address();
        a.lse = buffers[5].address();
        a.scratch_buffer = scratch.handle();
        a.scratch_address = scratch.address();
        return a;
    }
    // Runs a forward of these options, then a backward, and returns out and dquery.
    std::pair<std::vector<float>, std::vector<float>> run(VkattnContext* context, const VkattnOptions& o) {
        const Plan forward(context, capped(), o), backward(context, capped(), vkattn::backward(), o);
        const Buffer scratch =
            runtime.allocate(std::max(forward.scratch().size_bytes, backward.scratch().size_bytes));
        VkattnBackwardArgs gradients = args(backward_args(), scratch);
        gradients.dout = buffers[3].address();
        gradients.dquery = buffers[6].address();
        gradients.dkey = buffers[7].address();
        gradients.dvalue = buffers[8].address();
        runtime.submit(
            [&](VkCommandBuffer commands) { forward.cmd_forward(commands, args(forward_args(), scratch)); });
        runtime.submit([&](VkCommandBuffer commands) { backward.cmd_backward(commands, gradients); });
        std::pair found{std::vector<float>(rows * dim), std::vector<float>(rows * dim)};
        runtime.download(buffers[4], std::as_writable_bytes(std::span(found.first)));
        runtime.download(buffers[6], std::as_writable_bytes(std::span(found.second)));
        return found;
    }
    Runtime& runtime;
    std::vector<float> query = std::vector<float>(rows * dim), key = std::vector<float>(keys * dim),
                       value = std::vector<float>(keys * dim), dout = std::vector<float>(rows * dim);
    std::vector<Buffer> buffers;
};

}  // namespace
}  // namespace modules

using namespace modules;

TEST_CASE_FIXTURE(OnDevice, "a plan computes with modules of the application, where it asks for them") {
    const AllFeatures all(device);
    const Context context(all.info);
    add_all(context);
    Tensors tensors(runtime);
    const Result wanted = expected(tensors.query, tensors.key, tensors.value, tensors.dout);
    const auto own = tensors.run(context.get(), by_tiles(rational_cap));
    CHECK(difference(own.first, wanted.out) < 1e-5);
    CHECK(difference(own.second, wanted.dquery) < 1e-5);
    // The library's modules stay what they are, whose cap is another one.
    const auto plain = tensors.run(context.get(), by_tiles(nullptr));
    CHECK(difference(plain.first, wanted.out) > 1e-3);
    CHECK(difference(plain.second, wanted.dquery) > 1e-3);

    // Plans take what the context has, and say what they would take.
    const VkattnOptions unknown = by_tiles("another");
    check_invalid(create_with(context.get(), capped(), &unknown), "options.variant");
    VkattnProblem half = capped();
    half.dtype = VKATTN_DTYPE_FLOAT16;
    const VkattnOptions o = by_tiles(rational_cap);
    const Seen seen = create_with(context.get(), half, &o);
    CHECK(seen.returned == VKATTN_UNSUPPORTED);
    CHECK(seen.field() == "options.variant");
    CHECK(std::string(seen.error.message).find("forward_tiles_f16") != std::string::npos);
    half.seqlen_q = 0;  // a plan that dispatches nothing needs no module
    CHECK(create_with(context.get(), half, &o).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(OnDevice, "a context refuses modules that are none, and names the argument") {
    const AllFeatures all(device);
    const Context context(all.info);
    const std::vector<uint32_t> words = variant_modules().at("forward_tiles_f32");
    VkattnModule good = module_info();
    good.variant = rational_cap;
    good.module = "forward_tiles_f32";
    good.code = words.data();
    good.code_bytes = words.size() * sizeof(uint32_t);
    const auto add = [&](const VkattnModule& m) {
        return call(vkattn_context_add_module, context.get(), &m);
    };
    const std::pair<const char*, void (*)(VkattnModule&)> faults[] = {
        {"module.struct_size", [](VkattnModule& m) { m.struct_size = 8; }},
        {"module.variant", [](VkattnModule& m) { m.variant = nullptr; }},
        {"module.variant", [](VkattnModule& m) { m.variant = ""; }},
        {"module.module", [](VkattnModule& m) { m.module = nullptr; }},
        {"module.module", [](VkattnModule& m) { m.module = "forward_tiles"; }},
        {"module.module", [](VkattnModule& m) { m.module = ""; }},
        {"module.code", [](VkattnModule& m) { m.code = nullptr; }},
        {"module.code", [](VkattnModule& m) { m.code_bytes = 0; }},
        {"module.code", [](VkattnModule& m) { m.code_bytes = 16; }},
        {"module.code", [](VkattnModule& m) { m.code_bytes = 24; }},
        {"module.code", [](VkattnModule& m) { m.module = "combine_f32"; }},  // it has fewer constants
        {"module.code_bytes", [](VkattnModule& m) { m.code_bytes--; }},
    };
    for (const auto& [field, spoil] : faults) {
        VkattnModule m = good;
        spoil(m);
        check_invalid(add(m), field);
    }
    check_invalid(call(vkattn_context_add_module, static_cast<VkattnContext*>(nullptr), &good), "context");
    check_invalid(call(vkattn_context_add_module, context.get(), static_cast<VkattnModule*>(nullptr)),
                  "module");

    // Every word changed to one that makes an instruction too long, too short, or another one. Nothing reads beyond.
    for (size_t at = 0; at < words.size(); at += at < 400 ? 1 : 97)
        for (const uint32_t word : {0u, 0xffffffffu, words[at] & 0xffff, words[at] | 0xffff0000}) {
            std::vector<uint32_t> spoilt = words;
            spoilt[at] = word;
            if (core::why_no_module(spoilt, core::info_of(core::Kernel::forward_tiles)).empty())
                core::constants_read(core::preserving_nonfinite(spoilt));
        }

    context.add_module(good);
    check_invalid(add(good), "module.module");  // of this variant it is there
    good.variant = "another";
    context.add_module(good);
}
