// A transformer's attention layer that learns: attention in vkattn with 16-bit operands, the dense layers in the test's
// own shaders, forward, loss gradient, backward and update of all steps in one command buffer. The task: every token
// gives the content of the token before it, which only attention by position can find.
//
//   q, k, v = x Wq, x Wk, x Wv;  out = attention(q, k, v), causal, 2 heads
//   error = out Wo - wanted;  loss = |error|^2 / (2 tokens)
//
// The reference is the same descent on the host in float64, with the oracle's attention.
#include <cmath>
#include <random>
#include <span>

#include <fmt/format.h>

#include "fixture.hpp"
#include "oracle/backward.hpp"
#include "own_work.hpp"
#include "skip.hpp"
#include "storage.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace transformer {
namespace {

constexpr uint32_t batch = 4, seqlen = 16, num_heads = 2, head_dim = 16;
constexpr uint32_t tokens = batch * seqlen, content = 8, embedding = 16, width = num_heads * head_dim;
constexpr uint32_t steps = 200;
constexpr float rate = 0.3f;

// Weights lie behind each other.
struct Weight {
    uint32_t rows, columns, first;
};
constexpr Weight wq{embedding, width, 0}, wk{embedding, width, wq.first + embedding*width},
    wv{embedding, width, wk.first + embedding*width}, wo{width, embedding, wv.first + embedding*width};
constexpr uint32_t weight_count = wo.first + width * embedding;

// The problem in heads: tensors are (tokens, width) as the dense layers make them, a view of (batch, heads, seq, dim).
constexpr VkattnStrides by_token{uint64_t{seqlen} * width, head_dim, width};

VkattnProblem attention(VkattnDtype dtype) {
    VkattnProblem p = problem();
    p.dtype = dtype;
    p.batch = batch;
    p.num_heads_q = p.num_heads_kv = num_heads;
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.head_dim_qk = p.head_dim_v = head_dim;
    p.causal = true;
    p.query_strides = p.key_strides = p.value_strides = p.out_strides = by_token;
    return p;
}

// --- On the device.

struct ProductPush {  // as in product.comp
    VkDeviceAddress a, b, c, plus;
    uint32_t rows, columns, inner, a_row, a_inner, b_inner, b_column;
    float scale;
};
struct ConvertPush {  // as in convert.comp
    VkDeviceAddress floats, words;
    uint32_t pairs, bfloat16, widen;
};

// A matrix, or its transpose.
struct Matrix {
    VkDeviceAddress address;
    uint32_t rows, columns, row_stride, column_stride;
};
Matrix transposed(const Matrix& m) {
    return {m.address, m.columns, m.rows, m.column_stride, m.row_stride};
}

VkattnBackward backward_of_layer() {
    VkattnBackward b = backward();
    b.dout_strides = b.dquery_strides = b.dkey_strides = b.dvalue_strides = by_token;
    return b;
}

class Layer {
  public:
    Layer(Device& device, VkattnDtype dtype, const VkattnOptions& options, std::span<const float> x,
          std::span<const float> minus_wanted, std::span<const float> weights)
        : device_(device),
          dtype_(dtype),
          forward_(device.runtime().plan(attention(dtype), options)),
          backward_(device.runtime().backward_plan(attention(dtype), backward_of_layer(), options)) {
        device.runtime().upload(x_, std::as_bytes(x));
        device.runtime().upload(minus_wanted_, std::as_bytes(minus_wanted));
        device.runtime().upload(weights_, std::as_bytes(weights));
    }

    // Every piece of own work is followed by a barrier; attention stands between two.
    void record_step(VkCommandBuffer commands, uint32_t step) const {
        const Matrix x = tokens_by(x_, embedding), out = tokens_by(out_, width),
                     wo_now = matrix(weights_, wo);
        Matrix error = tokens_by(errors_, embedding);
        error.address += uint64_t{step} * tokens * embedding * sizeof(float);
        for (const auto& [weight, at] : {std::pair{wq, 0u}, {wk, 1u}, {wv, 2u}}) {
            multiply(commands, x, matrix(weights_, weight), wide_.address());
            convert(commands, wide_, half_[at], false);
        }
        barrier_between(device_, commands, own_last, attention_first);
        forward_.cmd_forward(commands, args(forward_args()));
        barrier_between(device_, commands, attention_last, own_first);
        convert(commands, out_, half_[3], true);
        multiply(commands, out, wo_now, error.address, minus_wanted_.address());
        multiply(commands, error, transposed(wo_now), wide_.address());
        descend(commands, out, error, wo);
        convert(commands, wide_, half_[4], false);
        barrier_between(device_, commands, own_last, attention_first);
        backward_.cmd_backward(commands, backward_arguments());
        barrier_between(device_, commands, attention_last, own_first);
        for (const auto& [weight, at] : {std::pair{wq, 5u}, {wk, 6u}, {wv, 7u}}) {
            convert(commands, wide_, half_[at], true);
            descend(commands, x, tokens_by(wide_, width), weight);
        }
    }

    std::vector<float> errors() const {
        std::vector<float> all(size_t{steps} * tokens * embedding);
        device_.runtime().download(errors_, std::as_writable_bytes(std::span(all)));
        return all;
    }

  private:
    Buffer floats(uint32_t count) const {
        return device_.runtime().allocate(uint64_t{count} * sizeof(float));
    }
    Buffer halves() const { return device_.runtime().allocate(uint64_t{tokens} * width * 2); }
    static Matrix tokens_by(const Buffer& buffer, uint32_t columns) {
        return {buffer.address(), tokens, columns, columns, 1};
    }
    static Matrix matrix(const Buffer& buffer, const Weight& w) {
        return {buffer.address() + w.first * sizeof(float), w.rows, w.columns, w.columns, 1};
    }

    // c = scale a b + plus, which may be c
    void multiply(VkCommandBuffer commands, const Matrix& a, const Matrix& b, VkDeviceAddress c,
                  VkDeviceAddress plus = 0, float scale = 1) const {
        REQUIRE(a.columns == b.rows);
        const ProductPush push{a.address,    b.address,       c,
                               plus,         a.rows,          b.columns,
                               a.columns,    a.row_stride,    a.column_stride,
                               b.row_stride, b.column_stride, scale};
        product_.record(commands, push, (a.rows * b.columns + 63) / 64);
        barrier_between(device_, commands, own_last, own_first);
    }
    // Takes a weight a step down its gradient: the product of what went in and the gradient of what came out.
    void descend(VkCommandBuffer commands, const Matrix& in, const Matrix& of_out,
                 const Weight& weight) const {
        const VkDeviceAddress at = matrix(weights_, weight).address;
        multiply(commands, transposed(in), of_out, at, at, -rate / tokens);
    }
    void convert(VkCommandBuffer commands, const Buffer& wide, const Buffer& half, bool widen) const {
        const uint32_t pairs = tokens * width / 2;
        const ConvertPush push{wide.address(), half.address(), pairs, dtype_ == VKATTN_DTYPE_BFLOAT16, widen};
        convert_.record(commands, push, (pairs + 63) / 64);
        barrier_between(device_, commands, own_last, own_first);
    }

    template <class Args>
    Args args(Args args) const {
        args.query = half_[0].address();
        args.key = half_[1].address();
        args.value = half_[2].address();
        args.out = half_[3].address();
        args.lse = lse_.address();
        args.scratch_buffer = scratch_.handle();
        args.scratch_address = scratch_.address();
        return args;
    }
    VkattnBackwardArgs backward_arguments() const {
        VkattnBackwardArgs b = args(backward_args());
        b.dout = half_[4].address();
        b.dquery = half_[5].address();
        b.dkey = half_[6].address();
        b.dvalue = half_[7].address();
        return b;
    }

    Device& device_;
    VkattnDtype dtype_;
    OwnShader product_{device_, "product", sizeof(ProductPush)};
    OwnShader convert_{device_, "convert", sizeof(ConvertPush)};
    Plan forward_, backward_;
    Buffer x_ = floats(tokens * embedding), minus_wanted_ = floats(tokens * embedding);
    Buffer weights_ = floats(weight_count);
    Buffer wide_ = floats(tokens * width), out_ = floats(tokens * width), lse_ = floats(tokens * num_heads);
    // It has the errors of every step, from which the host computes the losses afterwards.
    Buffer errors_ = floats(steps * tokens * embedding);
    Buffer half_[8] = {halves(), halves(), halves(), halves(), halves(), halves(), halves(), halves()};
    Buffer scratch_ =
        device_.runtime().allocate(std::max(forward_.scratch().size_bytes, backward_.scratch().size_bytes));
};

// --- On the host, in float64.

using Numbers = std::vector<double>;

// a (rows, inner) times b (inner, columns); `ta`, `tb`: of what lies transposed.
Numbers times(const Numbers& a, const Numbers& b, uint32_t rows, uint32_t inner, uint32_t columns,
              bool ta = false, bool tb = false) {
    Numbers c(size_t{rows} * columns);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < columns; j++)
            for (uint32_t k = 0; k < inner; k++)
                c[i * columns + j] +=
                    a[ta ? k * rows + i : i * inner + k] * b[tb ? j * inner + k : k * columns + j];
    return c;
}

Numbers plus(Numbers a, const Numbers& b, double scale = 1) {
    for (size_t i = 0; i < a.size(); i++) a[i] += scale * b[i];
    return a;
}

// Between (tokens, width) and (batch, heads, seq, dim).
Numbers reordered(const Numbers& from, bool to_heads) {
    Numbers to(from.size());
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t h = 0; h < num_heads; h++)
            for (uint32_t n = 0; n < seqlen; n++)
                for (uint32_t d = 0; d < head_dim; d++) {
                    const size_t by_head = ((b * num_heads + h) * seqlen + n) * head_dim + d;
                    const size_t by_row = (b * seqlen + n) * width + h * head_dim + d;
                    if (to_heads)
                        to[by_head] = from[by_row];
                    else
                        to[by_row] = from[by_head];
                }
    return to;
}

Numbers weight_of(const Numbers& weights, const Weight& w) {
    return {weights.begin() + w.first, weights.begin() + w.first + ptrdiff_t{w.rows} * w.columns};
}

template <class T>
double loss_of(std::span<const T> error) {
    double sum = 0;
    for (const T x : error) sum += std::pow(double{x}, 2);
    return sum / (2 * tokens);
}

// Takes the weights a step further and returns the loss that they had.
double exact_step(Numbers& weights, const Numbers& x, const Numbers& minus_wanted) {
    const oracle::Problem p{.batch = batch,
                            .num_heads_q = num_heads,
                            .num_heads_kv = num_heads,
                            .seqlen_q = seqlen,
                            .seqlen_kv = seqlen,
                            .head_dim_qk = head_dim,
                            .head_dim_v = head_dim,
                            .softmax_scale = 1 / std::sqrt(double{head_dim}),
                            .causal = true};
    const auto w = [&](const Weight& which) { return weight_of(weights, which); };
    const auto heads = [&](const Weight& which) {
        return reordered(times(x, w(which), tokens, embedding, width), true);
    };
    const Numbers q = heads(wq), k = heads(wk), v = heads(wv);
    const Numbers out = reordered(oracle::forward(p, q, k, v).out, false);
    const Numbers error = plus(times(out, w(wo), tokens, width, embedding), minus_wanted);
    const Numbers dout = reordered(times(error, w(wo), tokens, embedding, width, false, true), true);
    const oracle::Gradients g = oracle::backward(p, q, k, v, dout, {});
    Numbers gradient;
    const auto append = [&](const Numbers& of) { gradient.insert(gradient.end(), of.begin(), of.end()); };
    for (const Numbers* of_head : {&g.query, &g.key, &g.value})
        append(times(x, reordered(*of_head, false), embedding, tokens, width, true));
    append(times(out, error, width, tokens, embedding, true));
    weights = plus(weights, gradient, -double{rate} / tokens);
    return loss_of<double>(error);
}

// --- The task.

struct Task {
    std::vector<float> x, minus_wanted, weights;
};

// A token is its content, random, and its position as sines.
Task make_task() {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    Task t;
    for (uint32_t row = 0; row < tokens; row++) {
        for (uint32_t i = 0; i < content; i++) t.x.push_back(normal(engine));
        for (uint32_t i = 0; i < embedding - content; i++) {
            const float angle = float(row % seqlen) / float(1u << (i / 2));
            t.x.push_back(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
        }
    }
    t.minus_wanted.assign(t.x.size(), 0);
    for (uint32_t row = 0; row < tokens; row++)
        for (uint32_t i = 0; i < content && row % seqlen != 0; i++)
            t.minus_wanted[row * embedding + i] = -t.x[(row - 1) * embedding + i];
    for (const Weight& w : {wq, wk, wv, wo}) {
        const bool last = w.first == wo.first;
        for (uint32_t i = 0; i < w.rows * w.columns; i++)
            t.weights.push_back((last ? 0.25f : 0.5f) * normal(engine) / std::sqrt(float(w.rows)));
    }
    return t;
}

std::vector<double> exact_losses(const Task& task) {
    Numbers weights(task.weights.begin(), task.weights.end());
    const Numbers x(task.x.begin(), task.x.end()),
        minus_wanted(task.minus_wanted.begin(), task.minus_wanted.end());
    std::vector<double> losses;
    for (uint32_t step = 0; step < steps; step++) losses.push_back(exact_step(weights, x, minus_wanted));
    return losses;
}

// Trains with one kernel; `tolerance` bounds how far a loss may be from the exact one, relatively.
void train(Device& device, VkattnDtype dtype, const char* kernel, double tolerance) {
    const Task task = make_task();
    const std::vector<double> exact = exact_losses(task);
    VkattnOptions options = vkattn::options();
    options.kernel = kernel;
    const Layer layer(device, dtype, options, task.x, task.minus_wanted, task.weights);
    device.runtime().submit([&](VkCommandBuffer commands) {
        for (uint32_t step = 0; step < steps; step++) layer.record_step(commands, step);
    });
    const std::vector<float> errors = layer.errors();
    for (uint32_t step = 0; step < steps; step++) {
        CAPTURE(step);
        const size_t count = size_t{tokens} * embedding;
        const double loss = loss_of<float>(std::span(errors).subspan(step * count, count));
        CHECK(loss == doctest::Approx(exact[step]).epsilon(tolerance).scale(0));
    }
    CHECK(exact.back() < 0.25 * exact.front());
}

}  // namespace

// A step of 16-bit attention is off by its rounding, and later steps neither damp nor feed that much at this rate.
TEST_CASE_FIXTURE(OnDevice, "an attention layer learns in 16 bits as it does in float64") {
    for (const auto& [dtype, tolerance] :
         {std::pair{VKATTN_DTYPE_FLOAT16, 5e-3}, {VKATTN_DTYPE_BFLOAT16, 2e-2}})
        train(device, dtype, nullptr, tolerance);
}

TEST_CASE_FIXTURE(OnDevice, "an attention layer learns in 16 bits on matrix units") {
    for (const auto& [dtype, tolerance] :
         {std::pair{VKATTN_DTYPE_FLOAT16, 5e-3}, {VKATTN_DTYPE_BFLOAT16, 2e-2}})
        if (device.has_matrix_unit(dtype))
            train(device, dtype, "matrix", tolerance);
        else
            skip(fmt::format("no matrix unit for {}", name_of(dtype)));
}

}  // namespace transformer
