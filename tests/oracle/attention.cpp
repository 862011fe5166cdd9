#include "attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "internal.hpp"

namespace oracle {
namespace {

using namespace internal;

// All arithmetic in T; `round_weight` is applied to the probabilities, `round` to out.
template <typename T, typename RoundWeight, typename Round>
void attention(const Problem& p, std::span<const T> query, std::span<const T> key, std::span<const T> value,
               std::vector<T>& out, std::vector<T>& lse, RoundWeight round_weight, Round round) {
    validate(p, query.size(), key.size(), value.size());
    const std::size_t rows = p.batch * p.num_heads_q * p.seqlen_q;
    out.assign(rows * p.head_dim_v, 0);
    lse.assign(rows, 0);
    for_each_head(p, [&](std::size_t n) {
        const Head head(p, n);
        const std::vector<T> key_transposed = transpose(head.keys_of(key, p.head_dim_qk), p.head_dim_qk);
        const T* values = head.keys_of(value, p.head_dim_v).data();
        for (std::size_t i = 0; i < p.seqlen_q; i += rows_per_block) {
            const std::size_t last = std::min(i + rows_per_block, p.seqlen_q);
            const std::size_t row = n * p.seqlen_q + i;
            Attended<T> attended =
                attend(p, head, i, last, query.data() + row * p.head_dim_qk, key_transposed.data());
            std::copy(attended.lse.begin(), attended.lse.end(),
                      lse.begin() + static_cast<std::ptrdiff_t>(row));
            for (T& x : attended.probabilities.values) x = round_weight(x);
            add_weighted(attended.probabilities, values, p.head_dim_v, out.data() + row * p.head_dim_v);
        }
        for (T& x : std::span(out).subspan(n * p.seqlen_q * p.head_dim_v, p.seqlen_q * p.head_dim_v))
            x = round(x);
    });
}

// Keeps the upper bits of the pattern; what is cut off rounds to nearest even and carries into the exponent.
float drop_low_bits(float x, int count) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t below_half = (1u << (count - 1)) - 1;
    const std::uint32_t odd = (bits >> count) & 1u;
    return std::bit_cast<float>((bits + below_half + odd) >> count << count);
}

float round_to_float16(float x) {
    const float magnitude = std::fabs(x);
    // float32 values in [0.5, 1) are as far apart as subnormal halves
    const float rounded = magnitude < 0x1p-14f ? (magnitude + 0.5f) - 0.5f : drop_low_bits(magnitude, 13);
    return std::copysign(rounded > 65504 ? std::numeric_limits<float>::infinity() : rounded, x);
}

// Infinities are 0 apart from themselves and infinitely far from everything else, like NaN.
double distance(float x, double expected) {
    if (static_cast<double>(x) == expected) return 0;
    const double error = std::fabs(x - expected);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace

Result forward(const Problem& problem, std::span<const double> query, std::span<const double> key,
               std::span<const double> value) {
    Result result;
    const auto exact = [](double x) { return x; };
    attention<double>(problem, query, key, value, result.out, result.lse, exact, exact);
    return result;
}

NaiveResult naive_forward(const Problem& problem, std::span<const double> query, std::span<const double> key,
                          std::span<const double> value, StorageType storage,
                          std::optional<StorageType> operands) {
    // A mean of values is finite where these are.
    const auto round = [storage, largest = largest_number(storage)](float x) {
        return round_to_storage(std::isfinite(x) ? std::clamp(x, -largest, largest) : x, storage);
    };
    const auto round_operand = [type = operands.value_or(storage)](float x) {
        return round_to_storage(x, type);
    };
    std::vector<float> q = narrow(query), k = narrow(key), v = narrow(value);
    if (operands)  // else they are of the storage type as they are
        for (std::vector<float>* const tensor : {&q, &k, &v})
            std::transform(tensor->begin(), tensor->end(), tensor->begin(), round_operand);
    NaiveResult result;
    attention<float>(problem, q, k, v, result.out, result.lse, round_operand, round);
    return result;
}

double allowed_error(double naive_error, double largest, StorageType storage) {
    const double unit = storage == StorageType::float32 ? 1e-6 * largest : storage_ulp(largest, storage);
    return 2 * naive_error + unit;
}

Bound check(std::span<const float> result, std::span<const double> oracle, std::span<const float> naive,
            StorageType storage) {
    require(result.size() == oracle.size() && naive.size() == oracle.size(), "sizes to compare");
    Bound bound;
    for (std::size_t n = 0; n < oracle.size(); ++n) {
        const double error = distance(result[n], oracle[n]);
        if (error > bound.measured) {
            bound.measured = error;
            bound.worst = n;
        }
        bound.naive_error = std::max(bound.naive_error, distance(naive[n], oracle[n]));
        if (std::isfinite(oracle[n])) bound.largest = std::max(bound.largest, std::fabs(oracle[n]));
    }
    bound.allowed = allowed_error(bound.naive_error, bound.largest, storage);
    bound.ok = std::isfinite(bound.allowed) && bound.measured <= bound.allowed;
    return bound;
}

float largest_number(StorageType storage) {
    return storage == StorageType::float16    ? 65504
           : storage == StorageType::bfloat16 ? 0x1.fep127f
                                              : std::numeric_limits<float>::max();
}

float round_to_storage(float x, StorageType storage) {
    if (storage == StorageType::float32 || std::isnan(x)) return x;
    return storage == StorageType::float16 ? round_to_float16(x) : drop_low_bits(x, 16);
}

double storage_ulp(double x, StorageType storage) {
    int digits = 23;
    int min_exponent = -126;
    if (storage == StorageType::bfloat16) digits = 7;
    if (storage == StorageType::float16) {
        digits = 10;
        min_exponent = -14;
    }
    const int exponent = x == 0 ? min_exponent : std::max(std::ilogb(x), min_exponent);
    return std::ldexp(1.0, exponent - digits);
}

}  // namespace oracle
