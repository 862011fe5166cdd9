// This file makes the inputs of the self-test and the results that its kernels should find, in float64, by the
// definition of attention, one row at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "self_test.hpp"

namespace vkattn::core {
namespace {

using Shape = SelfTestShape;

constexpr double scale = 0.125;  // 1 / sqrt(64)
static_assert(Shape::head_dim == 64);

// Whole numbers from -range to range, divided by 16. Up to 127 a number has at most 7 bits, which bfloat16 holds.
class Numbers {
  public:
    double next(uint32_t range) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
        const auto drawn = static_cast<double>((state_ >> 33) % (2 * range + 1));
        return (drawn - range) / 16;
    }

  private:
    uint64_t state_ = 1;
};

std::vector<double> draw(Numbers& numbers, size_t elements, uint32_t range) {
    std::vector<double> x(elements);
    for (double& element : x) element = numbers.next(range);
    return x;
}

// Causal, aligned bottom right.
uint32_t visible_keys(uint32_t row) {
    return row + 1 + Shape::keys - Shape::rows;
}

double dot(const double* a, const double* b) {
    double sum = 0;
    for (uint32_t d = 0; d < Shape::head_dim; d++) sum += a[d] * b[d];
    return sum;
}

void add(double* to, double weight, const double* from) {
    for (uint32_t d = 0; d < Shape::head_dim; d++) to[d] += weight * from[d];
}

// One row of the forward, whose weights stay in `weights`, and of the backward.
struct Row {
    const SelfTestInputs& in;
    SelfTestReference& out;
    size_t row;     // of all heads
    uint32_t keys;  // that it sees

    void forward(std::vector<double>& weights) const {
        const double* q = &in.query[row * Shape::head_dim];
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (uint32_t j = 0; j < keys; j++) {
            weights[j] = scale * dot(q, &in.key[size_t{j} * Shape::head_dim]);
            most = std::max(most, weights[j]);
        }
        for (uint32_t j = 0; j < keys; j++) sum += weights[j] = std::exp(weights[j] - most);
        out.lse[row] = most + std::log(sum);
        for (uint32_t j = 0; j < keys; j++) {
            weights[j] /= sum;
            add(&out.out[row * Shape::head_dim], weights[j], &in.value[size_t{j} * Shape::head_dim]);
        }
    }

    void backward(const std::vector<double>& weights) const {
        const size_t at = row * Shape::head_dim;
        const double* dout = &in.dout[at];
        const double delta = dot(dout, &out.out[at]);
        for (uint32_t j = 0; j < keys; j++) {
            const size_t key = size_t{j} * Shape::head_dim;
            const double dscore = scale * weights[j] * (dot(dout, &in.value[key]) - delta);
            add(&out.dquery[at], dscore, &in.key[key]);
            add(&out.dkey[key], dscore, &in.query[at]);
            add(&out.dvalue[key], weights[j], dout);
        }
    }
};

// Head dim 0 multiplies a subnormal element of the first key, head dim 1 one of the query, both by 2^14, which is 0.08
// and 0.06 of its score and so of lse. Head dim 2 makes that score 11.1, and the weights of the other keys about
// 2^-16. All of it is a multiple of 2^-20 of at most 8 bits, and less than 2^-14 where it is subnormal in float16.
SelfTestInputs subnormal_inputs() {
    Numbers numbers;
    SelfTestInputs in;
    in.query = draw(numbers, Shape::query_elements, 20);
    in.key = draw(numbers, Shape::key_elements, 4);
    in.value = draw(numbers, Shape::key_elements, 40);
    in.dout = draw(numbers, Shape::query_elements, 20);
    for (size_t row = 0; row < Shape::lse_elements; row++) {
        double* const q = &in.query[row * Shape::head_dim];
        q[0] = 0x1p14;
        q[1] = 33 * 0x1p-20;
        q[2] = 8;
    }
    for (size_t j = 0; j < Shape::keys; j++) std::fill_n(&in.key[j * Shape::head_dim], 3, 0.0);
    in.key[0] = 40 * 0x1p-20;
    in.key[1] = 0x1p14;
    in.key[2] = 177 / 16.0;
    for (uint32_t d = 0; d < Shape::head_dim; d++)
        in.value[d] *= 0x1p-16;  // sixteenths become multiples of 2^-20
    return in;
}

}  // namespace

SelfTestInputs self_test_inputs(SelfTestNumbers kind) {
    if (kind == SelfTestNumbers::subnormal) return subnormal_inputs();
    Numbers numbers;
    SelfTestInputs in;
    in.query = draw(numbers, Shape::query_elements, 20);
    for (uint32_t j = 0; j < Shape::keys; j++) {
        const std::vector<double> key = draw(numbers, Shape::head_dim, 4 + j / 10);
        in.key.insert(in.key.end(), key.begin(), key.end());
    }
    in.value = draw(numbers, Shape::key_elements, 40);
    in.dout = draw(numbers, Shape::query_elements, 20);
    return in;
}

SelfTestReference self_test_reference(const SelfTestInputs& in) {
    const auto zeros = [](size_t elements) { return std::vector<double>(elements); };
    SelfTestReference out{zeros(Shape::query_elements), zeros(Shape::lse_elements),
                          zeros(Shape::query_elements), zeros(Shape::key_elements),
                          zeros(Shape::key_elements)};
    std::vector<double> weights(Shape::keys);
    for (size_t row = 0; row < Shape::lse_elements; row++) {
        const Row one{in, out, row, visible_keys(static_cast<uint32_t>(row % Shape::rows))};
        one.forward(weights);
        one.backward(weights);
    }
    return out;
}

}  // namespace vkattn::core
