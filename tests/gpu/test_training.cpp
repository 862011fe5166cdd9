// How to train through vkattn: gradient descent on an attention layer, every step of it (forward, gradient of the loss,
// backward, update) recorded into one command buffer. Between the recordings stand the caller's own dispatches and
// barriers; the host has nothing to do until the last step is done.
//
// The parameters are query, key and value themselves. The loss is 1/2 |out - target|^2, so dout = out - target.
#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "fixture.hpp"
#include "oracle/backward.hpp"
#include "own_work.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace training {
namespace {

constexpr uint32_t steps = 40;
constexpr float rate = 0.2f;

constexpr uint32_t batch = 2, num_heads_q = 4, num_heads_kv = 2, seqlen = 19, head_dim = 8;
constexpr uint32_t rows = batch * num_heads_q * seqlen, query_count = rows * head_dim,
                   out_count = query_count, key_count = batch * num_heads_kv * seqlen * head_dim,
                   parameter_count = query_count + 2 * key_count;

VkattnProblem layer() {
    VkattnProblem p = problem();
    p.batch = batch;
    p.num_heads_q = num_heads_q;
    p.num_heads_kv = num_heads_kv;
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.head_dim_qk = p.head_dim_v = head_dim;
    p.causal = true;
    return p;
}

// --- The training.

class Training {
  public:
    Training(Device& device, std::span<const float> parameters, std::span<const float> target)
        : device_(device) {
        device.runtime().upload(parameters_, std::as_bytes(parameters));
        device.runtime().upload(target_, std::as_bytes(target));
    }

    void record_step(VkCommandBuffer commands, uint32_t step) const {
        const VkDeviceAddress out = outs_.address() + step * out_count * sizeof(float);
        // The parameters are visible: by the last barrier of the step before, or because their upload was waited for.
        forward_.cmd_forward(commands, forward_args_of(out));
        barrier(commands, attention_last, own_first);
        add_scaled_.record(commands, out, -1, target_.address(), dout_.address(), out_count);
        barrier(commands, own_last, attention_first);
        backward_.cmd_backward(commands, backward_args_of(out));
        barrier(commands, attention_last, own_first);
        add_scaled_.record(commands, parameters_.address(), -rate, gradients_.address(),
                           parameters_.address(), parameter_count);
        barrier(commands, own_last, attention_first);  // for the next step
    }

    std::vector<float> outs() const { return read(outs_, steps * out_count); }
    std::vector<float> parameters() const { return read(parameters_, parameter_count); }

  private:
    Buffer floats(uint32_t count) const { return device_.runtime().allocate(count * sizeof(float)); }
    std::vector<float> read(const Buffer& from, uint32_t count) const {
        std::vector<float> to(count);
        device_.runtime().download(from, std::as_writable_bytes(std::span(to)));
        return to;
    }

    // A barrier also orders what came before it against later writes to the same memory: lse, dout, the gradients
    // and scratch are written anew in every step.
    void barrier(VkCommandBuffer commands, const Use& from, const Use& to) const {
        barrier_between(device_, commands, from, to);
    }

    // What forward and backward have in common.
    template <class Args>
    Args with_layer(Args args, VkDeviceAddress out) const {
        args.query = parameters_.address();
        args.key = args.query + query_count * sizeof(float);
        args.value = args.key + key_count * sizeof(float);
        args.out = out;
        args.lse = lse_.address();  // the backward needs it, so a forward that trains has to write it
        args.scratch_buffer = scratch_.handle();
        args.scratch_address = scratch_.address();
        return args;
    }
    VkattnForwardArgs forward_args_of(VkDeviceAddress out) const { return with_layer(forward_args(), out); }
    VkattnBackwardArgs backward_args_of(VkDeviceAddress out) const {
        VkattnBackwardArgs args = with_layer(backward_args(), out);
        args.dout = dout_.address();
        args.dquery = gradients_.address();
        args.dkey = args.dquery + query_count * sizeof(float);
        args.dvalue = args.dkey + key_count * sizeof(float);
        return args;
    }

    Device& device_;
    AddScaled add_scaled_{device_};
    // Plans depend on shapes only: made once, recorded in every step.
    Plan forward_ = device_.runtime().plan(layer());
    Plan backward_ = device_.runtime().backward_plan(layer(), backward());
    // query, key and value behind each other, and their gradients in the same order: one dispatch updates all.
    Buffer parameters_ = floats(parameter_count), gradients_ = floats(parameter_count);
    Buffer outs_ = floats(steps * out_count);  // of every step, for the host to tell the losses afterwards
    Buffer target_ = floats(out_count), dout_ = floats(out_count), lse_ = floats(rows);
    // Forward and backward never overlap, so they can share.
    Buffer scratch_ =
        device_.runtime().allocate(std::max(forward_.scratch().size_bytes, backward_.scratch().size_bytes));
};

// --- The same descent on the host, in float64.

struct Layer {
    std::vector<double> query, key, value;
    explicit Layer(std::span<const double> parameters)
        : query(parameters.begin(), parameters.begin() + query_count),
          key(parameters.begin() + query_count, parameters.end() - key_count),
          value(parameters.end() - key_count, parameters.end()) {}
};

oracle::Problem exact_layer() {
    return {.batch = batch,
            .num_heads_q = num_heads_q,
            .num_heads_kv = num_heads_kv,
            .seqlen_q = seqlen,
            .seqlen_kv = seqlen,
            .head_dim_qk = head_dim,
            .head_dim_v = head_dim,
            .softmax_scale = 1 / std::sqrt(double{head_dim}),
            .causal = true};
}

std::vector<double> exact_out(const Layer& l) {
    return oracle::forward(exact_layer(), l.query, l.key, l.value).out;
}

template <class T>
double loss_of(std::span<const T> out, std::span<const float> target) {
    double sum = 0;
    for (size_t i = 0; i < target.size(); i++) sum += std::pow(double{out[i]} - double{target[i]}, 2);
    return sum / 2;
}

// Takes the parameters a step further and returns the loss that they had.
double exact_step(std::vector<double>& parameters, std::span<const float> target) {
    const Layer l(parameters);
    const std::vector<double> out = exact_out(l);
    std::vector<double> dout(out);
    for (size_t i = 0; i < dout.size(); i++) dout[i] -= double{target[i]};
    const oracle::Gradients g = oracle::backward(exact_layer(), l.query, l.key, l.value, dout, {});
    size_t at = 0;
    for (const auto* gradient : {&g.query, &g.key, &g.value})
        for (const double x : *gradient) parameters[at++] -= double{rate} * x;
    return loss_of<double>(out, target);
}

std::vector<float> random_parameters(uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(parameter_count);
    for (float& value : x) value = normal(engine);
    return x;
}

// The out of another layer: a target that can be reached.
std::vector<float> reachable_target() {
    const std::vector<float> other = random_parameters(2);
    const std::vector<double> out = exact_out(Layer(std::vector<double>(other.begin(), other.end())));
    return {out.begin(), out.end()};
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "gradient descent in one command buffer follows the exact descent") {
    const std::vector<float> start = random_parameters(1), target = reachable_target();
    const Training training(device, start, target);
    runtime.submit([&](VkCommandBuffer commands) {
        for (uint32_t step = 0; step < steps; step++) training.record_step(commands, step);
    });

    // 1e-6, as the error rule has it for one float32 result, is enough for all steps: the rate is well below 0.5, where
    // the descent diverges, so a step damps what those before got wrong. The CPU drivers stay below 1e-7; gradients
    // too large by 1e-5 are seen.
    const double tolerance = 1e-6;
    const std::vector<float> outs = training.outs();
    std::vector<double> exact(start.begin(), start.end()), losses;
    for (uint32_t step = 0; step < steps; step++) {
        CAPTURE(step);
        losses.push_back(loss_of(std::span(outs).subspan(step * out_count, out_count), target));
        CHECK(losses[step] == doctest::Approx(exact_step(exact, target)).epsilon(tolerance).scale(0));
        if (step > 0) CHECK(losses[step] < losses[step - 1]);
    }
    CHECK(losses.back() < 0.5 * losses.front());

    // Every update rounds a parameter by up to 2^-24 of itself.
    const std::vector<float> trained = training.parameters();
    double error = 0, largest = 0;
    for (size_t i = 0; i < trained.size(); i++) {
        error = std::max(error, std::abs(double{trained[i]} - exact[i]));
        largest = std::max(largest, std::abs(exact[i]));
    }
    CHECK(error <= steps * std::ldexp(largest, -24));
}

}  // namespace training
