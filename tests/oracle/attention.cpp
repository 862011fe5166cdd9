#include "attention.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

namespace oracle {
namespace {

// Rows computed together, so that keys and values are streamed from memory once for all of them.
constexpr std::size_t rows_per_block = 8;

template <typename T>
constexpr T hidden = -std::numeric_limits<T>::infinity();

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

std::array<std::size_t, 4> mask_dimensions(const Problem& p) {
    return {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
}

void validate(const Mask& mask, const Problem& p) {
    const std::size_t rank = mask.extents.size();
    require(rank >= 1 && rank <= 4, "mask rank");
    std::size_t count = 1;
    for (std::size_t axis = 0; axis < rank; ++axis) {
        const std::size_t extent = mask.extents[axis];
        const std::size_t dimension = mask_dimensions(p)[axis + 4 - rank];
        const bool short_last = axis + 1 == rank && extent < dimension;
        require(extent == dimension || extent == 1 || short_last, "mask extents");
        count *= extent;
    }
    require(mask.values.size() == count, "mask values");
}

void validate(const Problem& p, std::size_t query, std::size_t key, std::size_t value) {
    require(p.num_heads_kv > 0 && p.num_heads_q % p.num_heads_kv == 0, "num_heads_q / num_heads_kv");
    require(query == p.batch * p.num_heads_q * p.seqlen_q * p.head_dim_qk, "query size");
    require(key == p.batch * p.num_heads_kv * p.seqlen_kv * p.head_dim_qk, "key size");
    require(value == p.batch * p.num_heads_kv * p.seqlen_kv * p.head_dim_v, "value size");
    if (p.alignment == Alignment::given)
        require(p.query_offset.size() == 1 || p.query_offset.size() == p.batch, "query_offset");
    require(p.kv_lengths.empty() || p.kv_lengths.size() == p.batch, "kv_lengths");
    for (const std::int64_t length : p.kv_lengths)
        require(length >= 0 && length <= static_cast<std::int64_t>(p.seqlen_kv), "kv_lengths");
    if (p.mask) validate(*p.mask, p);
}

// Keys [begin, end).
struct KeyRange {
    std::size_t begin = 0;
    std::size_t end = 0;

    bool contains(std::size_t key) const { return begin <= key && key < end; }
};

// What lengths, causality and the window leave of the keys of query row i.
KeyRange visible_range(const Problem& p, std::size_t batch, std::size_t i) {
    const auto length = p.kv_lengths.empty() ? static_cast<std::int64_t>(p.seqlen_kv) : p.kv_lengths[batch];
    std::int64_t offset = 0;
    if (p.alignment == Alignment::bottom_right) offset = length - static_cast<std::int64_t>(p.seqlen_q);
    if (p.alignment == Alignment::given) offset = p.query_offset[p.query_offset.size() == 1 ? 0 : batch];
    const std::int64_t position = static_cast<std::int64_t>(i) + offset;

    std::int64_t begin = 0;
    std::int64_t end = length;
    if (p.causal) end = std::min(end, position + 1);
    if (p.window_right >= 0) end = std::min(end, position + p.window_right + 1);
    if (p.window_left >= 0) begin = std::max(begin, position - p.window_left);
    if (begin >= end) return {};
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

template <typename T>
void apply_mask(const Problem& p, std::size_t batch, std::size_t head, std::size_t i, KeyRange range,
                T* scores) {
    const Mask& mask = *p.mask;
    const std::array<std::size_t, 4> index = {batch, head, i, 0};
    const std::size_t rank = mask.extents.size();
    std::size_t row = 0;
    for (std::size_t axis = 0; axis + 1 < rank; ++axis)
        row = row * mask.extents[axis] + (mask.extents[axis] == 1 ? 0 : index[axis + 4 - rank]);

    const std::size_t columns = mask.extents.back();
    for (std::size_t j = range.begin; j < range.end; ++j) {
        double value = mask.additive ? hidden<double> : 0;  // beyond a short last extent
        const std::size_t column = columns == 1 ? 0 : j;
        if (column < columns) value = mask.values[row * columns + column];
        if (!mask.additive) {
            if (value == 0) scores[j] = hidden<T>;
        } else {
            scores[j] = value == hidden<double> ? hidden<T> : scores[j] + static_cast<T>(value);
        }
    }
}

// From q.k of the keys `computed` to the final scores; the others of them are hidden.
template <typename T>
void finish_scores(const Problem& p, std::size_t batch, std::size_t head, std::size_t i, KeyRange computed,
                   T* scores) {
    const KeyRange range = visible_range(p, batch, i);
    const T scale = static_cast<T>(p.softmax_scale);
    const T cap = static_cast<T>(p.softcap);
    for (std::size_t j = computed.begin; j < computed.end; ++j) {
        scores[j] *= scale;
        if (cap > 0) scores[j] = cap * std::tanh(scores[j] / cap);
        if (!range.contains(j)) scores[j] = hidden<T>;
    }
    if (p.mask) apply_mask(p, batch, head, i, range, scores);
}

// Turns the scores into probabilities, 0 for hidden keys, and returns lse.
template <typename T>
T softmax(std::span<T> scores) {
    const T row_max = scores.empty() ? hidden<T> : *std::max_element(scores.begin(), scores.end());
    T row_sum = 0;
    for (T& score : scores) {
        score = score == hidden<T> ? 0 : std::exp(score - row_max);
        row_sum += score;
    }
    if (row_sum == 0) return hidden<T>;
    for (T& score : scores) score /= row_sum;
    return row_max + std::log(row_sum);
}

template <typename T>
void add_scaled(T factor, const T* __restrict x, T* __restrict sum, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += factor * x[i];
}

// One query head: pointers to its rows.
template <typename T>
struct Head {
    std::size_t batch;
    std::size_t head;
    const T* query;
    std::vector<T> key_transposed;  // head_dim_qk x seqlen_kv, so that the loop over keys is contiguous
    const T* value;
    T* out;
    T* lse;
};

// Query rows [first, last) of a head. Content of keys that no row sees may be anything.
template <typename T, typename Round>
void attend(const Problem& p, const Head<T>& head, std::size_t first, std::size_t last, Round round) {
    KeyRange computed{p.seqlen_kv, 0};  // the union over the rows
    for (std::size_t i = first; i < last; ++i) {
        const KeyRange range = visible_range(p, head.batch, i);
        if (range.begin == range.end) continue;
        computed = {std::min(computed.begin, range.begin), std::max(computed.end, range.end)};
    }
    if (computed.begin >= computed.end) computed = {};
    const std::size_t count = computed.end - computed.begin;

    std::vector<T> scores((last - first) * p.seqlen_kv);
    const auto row_of = [&](std::size_t i) { return scores.data() + (i - first) * p.seqlen_kv; };
    for (std::size_t d = 0; d < p.head_dim_qk; ++d)
        for (std::size_t i = first; i < last; ++i)
            add_scaled(head.query[i * p.head_dim_qk + d],
                       head.key_transposed.data() + d * p.seqlen_kv + computed.begin,
                       row_of(i) + computed.begin, count);

    for (std::size_t i = first; i < last; ++i) {
        finish_scores(p, head.batch, head.head, i, computed, row_of(i));
        head.lse[i] = softmax(std::span<T>(row_of(i) + computed.begin, count));
    }
    for (std::size_t j = computed.begin; j < computed.end; ++j)
        for (std::size_t i = first; i < last; ++i)
            if (const T probability = round(row_of(i)[j]); probability != 0)
                add_scaled(probability, head.value + j * p.head_dim_v, head.out + i * p.head_dim_v,
                           p.head_dim_v);
    for (std::size_t n = first * p.head_dim_v; n < last * p.head_dim_v; ++n) head.out[n] = round(head.out[n]);
}

template <typename Work>
void run_parallel(std::size_t count, Work work) {
    std::atomic<std::size_t> next = 0;
    const auto run = [&] {
        for (std::size_t n = next++; n < count; n = next++) work(n);
    };
    std::vector<std::thread> threads;
    const std::size_t helpers =
        std::min<std::size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
    for (std::size_t t = 1; t < helpers; ++t) threads.emplace_back(run);
    run();
    for (std::thread& thread : threads) thread.join();
}

// All arithmetic in T; `round` is applied to the probabilities and to out.
template <typename T, typename Round>
void attention(const Problem& p, std::span<const T> query, std::span<const T> key, std::span<const T> value,
               std::vector<T>& out, std::vector<T>& lse, Round round) {
    validate(p, query.size(), key.size(), value.size());
    const std::size_t rows = p.batch * p.num_heads_q * p.seqlen_q;
    out.assign(rows * p.head_dim_v, 0);
    lse.assign(rows, 0);
    run_parallel(p.batch * p.num_heads_q, [&](std::size_t n) {
        const std::size_t batch = n / p.num_heads_q;
        const std::size_t head_q = n % p.num_heads_q;
        const std::size_t head_kv = head_q / (p.num_heads_q / p.num_heads_kv);
        const std::size_t first_key = (batch * p.num_heads_kv + head_kv) * p.seqlen_kv;
        const std::size_t first_row = n * p.seqlen_q;

        std::vector<T> key_transposed(p.head_dim_qk * p.seqlen_kv);
        for (std::size_t j = 0; j < p.seqlen_kv; ++j)
            for (std::size_t d = 0; d < p.head_dim_qk; ++d)
                key_transposed[d * p.seqlen_kv + j] = key[(first_key + j) * p.head_dim_qk + d];
        const Head<T> head{batch,
                           head_q,
                           query.data() + first_row * p.head_dim_qk,
                           std::move(key_transposed),
                           value.data() + first_key * p.head_dim_v,
                           out.data() + first_row * p.head_dim_v,
                           lse.data() + first_row};
        for (std::size_t i = 0; i < p.seqlen_q; i += rows_per_block)
            attend(p, head, i, std::min(i + rows_per_block, p.seqlen_q), round);
    });
}

std::vector<float> narrow(std::span<const double> values) {
    std::vector<float> result;
    result.reserve(values.size());
    for (const double x : values) result.push_back(static_cast<float>(x));
    return result;
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
    attention<double>(problem, query, key, value, result.out, result.lse, [](double x) { return x; });
    return result;
}

NaiveResult naive_forward(const Problem& problem, std::span<const double> query, std::span<const double> key,
                          std::span<const double> value, StorageType storage) {
    const std::vector<float> q = narrow(query), k = narrow(key), v = narrow(value);
    NaiveResult result;
    attention<float>(problem, q, k, v, result.out, result.lse,
                     [storage](float x) { return round_to_storage(x, storage); });
    return result;
}

Bound check(std::span<const float> result, std::span<const double> oracle, std::span<const float> naive,
            StorageType storage) {
    require(result.size() == oracle.size() && naive.size() == oracle.size(), "sizes to compare");
    Bound bound;
    double naive_error = 0;
    double largest = 0;
    for (std::size_t n = 0; n < oracle.size(); ++n) {
        const double error = distance(result[n], oracle[n]);
        if (error > bound.measured) {
            bound.measured = error;
            bound.worst = n;
        }
        naive_error = std::max(naive_error, distance(naive[n], oracle[n]));
        if (std::isfinite(oracle[n])) largest = std::max(largest, std::fabs(oracle[n]));
    }
    const double unit = storage == StorageType::float32 ? 1e-6 * largest : storage_ulp(largest, storage);
    bound.allowed = 2 * naive_error + unit;
    bound.ok = std::isfinite(bound.allowed) && bound.measured <= bound.allowed;
    return bound;
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
