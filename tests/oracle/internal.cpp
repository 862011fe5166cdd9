#include "internal.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace oracle::internal {
int block_of_score(const Problem& p, const Head& head, std::size_t i, std::size_t j) {
    if (!p.block_map) return 2;
    const BlockMap& map = *p.block_map;
    const std::size_t across = (p.seqlen_kv + map.keys - 1) / map.keys;
    const std::size_t down = (p.seqlen_q + map.rows - 1) / map.rows;
    const std::size_t batch = map.batches == 1 ? 0 : head.batch, of = head.head / (p.num_heads_q / map.heads);
    return map.values[((batch * map.heads + of) * down + i / map.rows) * across + j / map.keys];
}

namespace {

template <typename T>
constexpr T hidden = -std::numeric_limits<T>::infinity();

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
        const bool heads = axis + 4 - rank == 1 && extent != 0 && dimension % extent == 0;
        require(extent == dimension || extent == 1 || short_last || heads, "mask extents");
        count *= extent;
    }
    require(mask.values.size() == count, "mask values");
}

std::int64_t length_of(const Problem& p, std::size_t batch) {
    return p.kv_lengths.empty() ? static_cast<std::int64_t>(p.seqlen_kv) : p.kv_lengths[batch];
}

// Returns the key position at which query row i stands.
std::int64_t position_of(const Problem& p, std::size_t batch, std::size_t i) {
    std::int64_t offset = 0;
    if (p.alignment == Alignment::bottom_right)
        offset = length_of(p, batch) - static_cast<std::int64_t>(p.seqlen_q);
    if (p.alignment == Alignment::given) offset = p.query_offset[p.query_offset.size() == 1 ? 0 : batch];
    return static_cast<std::int64_t>(i) + offset;
}

// Returns the keys that lengths, causality and the window leave to query row i.
KeyRange visible_range(const Problem& p, std::size_t batch, std::size_t i) {
    const std::int64_t length = length_of(p, batch), position = position_of(p, batch, i);
    std::int64_t begin = 0;
    std::int64_t end = length;
    if (p.causal) end = std::min(end, position + 1);
    if (p.window_right >= 0) end = std::min(end, position + p.window_right + 1);
    if (p.window_left >= 0) begin = std::max(begin, position - p.window_left);
    if (begin >= end) return {};
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

KeyRange visible_to_any(const Problem& p, std::size_t batch, std::size_t first, std::size_t last) {
    KeyRange keys{p.seqlen_kv, 0};
    for (std::size_t i = first; i < last; ++i) {
        const KeyRange range = visible_range(p, batch, i);
        if (range.begin == range.end) continue;
        keys = {std::min(keys.begin, range.begin), std::max(keys.end, range.end)};
    }
    if (keys.begin >= keys.end) return {};
    return keys;
}

template <typename T>
void apply_slope(const Problem& p, const Head& head, std::size_t i, KeyRange range, T* scores) {
    const std::int64_t position = position_of(p, head.batch, i);
    const T slope = static_cast<T>(slope_of(p, head));
    for (std::size_t j = range.begin; j < range.end; ++j)
        scores[j] -= slope * static_cast<T>(std::abs(position - static_cast<std::int64_t>(j)));
}

template <typename T>
void apply_mask(const Problem& p, const Head& head, std::size_t i, KeyRange range, T* scores) {
    const Mask& mask = *p.mask;
    const std::size_t row = mask_row(p, head.batch, head.head, i);
    const std::size_t columns = mask.extents.back();
    for (std::size_t j = range.begin; j < range.end; ++j) {
        double value = mask.additive ? hidden<double> : 0;  // beyond a short last extent
        const std::size_t column = columns == 1 ? 0 : j;
        if (column < columns && block_of_score(p, head, i, j) == 1) continue;
        if (column < columns) value = mask.values[row * columns + column];
        if (!mask.additive) {
            if (value == 0) scores[j] = hidden<T>;
        } else {
            const T slope = p.slopes_of_mask ? static_cast<T>(slope_of(p, head)) : 1;
            scores[j] = value == hidden<double> ? hidden<T> : scores[j] + slope * static_cast<T>(value);
        }
    }
}

// From q.k of the keys `computed` to the final scores; the others of them are hidden. With a softcap, `slopes`
// are what it does to a small change.
template <typename T>
void finish_scores(const Problem& p, const Head& head, std::size_t i, KeyRange computed, T* scores,
                   T* slopes) {
    const KeyRange range = visible_range(p, head.batch, i);
    const T scale = static_cast<T>(p.softmax_scale);
    const T cap = static_cast<T>(p.softcap);
    for (std::size_t j = computed.begin; j < computed.end; ++j) {
        scores[j] *= scale;
        if (cap > 0) {
            const T bent = std::tanh(scores[j] / cap);
            scores[j] = cap * bent;
            slopes[j] = 1 - bent * bent;
        }
        if (!range.contains(j)) scores[j] = hidden<T>;
    }
    if (!p.head_slopes.empty() && !p.slopes_of_mask) apply_slope(p, head, i, range, scores);
    if (p.mask) apply_mask(p, head, i, range, scores);
    for (std::size_t j = range.begin; j < range.end; ++j)
        if (block_of_score(p, head, i, j) == 0) scores[j] = hidden<T>;
}

// Turns the scores into probabilities, 0 for hidden keys, and `sink` into its own; returns lse.
template <typename T>
T softmax(std::span<T> scores, T& sink) {
    const T of_keys = scores.empty() ? hidden<T> : *std::max_element(scores.begin(), scores.end());
    const T row_max = std::max(of_keys, sink), given = sink;
    sink = of_keys == hidden<T> || given == hidden<T> ? 0 : std::exp(given - row_max);
    if (of_keys == hidden<T>) {
        std::fill(scores.begin(), scores.end(), T{0});
        return given;
    }
    T row_sum = sink;
    for (T& score : scores) {
        score = score == hidden<T> ? 0 : std::exp(score - row_max);
        row_sum += score;
    }
    for (T& score : scores) score /= row_sum;
    sink /= row_sum;
    return row_max + std::log(row_sum);
}

}  // namespace

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
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
    const std::size_t slopes = p.head_slopes.size();
    require(slopes == 0 || slopes == p.num_heads_q || slopes == p.batch * p.num_heads_q, "slopes");
    if (p.block_map) {
        const BlockMap& map = *p.block_map;
        require(map.rows != 0 && map.keys != 0 && (map.batches == 1 || map.batches == p.batch), "block map");
        require(map.heads != 0 && p.num_heads_q % map.heads == 0, "heads of the block map");
        require(map.values.size() == map.batches * map.heads * ((p.seqlen_q + map.rows - 1) / map.rows) *
                                         ((p.seqlen_kv + map.keys - 1) / map.keys),
                "blocks of the block map");
    }
    require(p.sinks.empty() || p.sinks.size() == p.num_heads_q, "sinks");
    require(!p.slopes_of_mask || (slopes != 0 && p.mask && p.mask->additive), "slopes of a mask");
}

double slope_of(const Problem& p, const Head& head) {
    return p.head_slopes[p.head_slopes.size() == p.num_heads_q ? head.head
                                                               : head.batch * p.num_heads_q + head.head];
}

std::size_t mask_row(const Problem& p, std::size_t batch, std::size_t head, std::size_t i) {
    const std::vector<std::size_t>& extents = p.mask->extents;
    std::array<std::size_t, 4> index = {batch, head, i, 0};
    const std::size_t rank = extents.size();
    if (rank >= 3) index[1] = head / (p.num_heads_q / extents[rank - 3]);
    std::size_t row = 0;
    for (std::size_t axis = 0; axis + 1 < rank; ++axis)
        row = row * extents[axis] + (extents[axis] == 1 ? 0 : index[axis + 4 - rank]);
    return row;
}

template <typename T>
std::vector<T> transpose(std::span<const T> values, std::size_t columns) {
    const std::size_t rows = columns == 0 ? 0 : values.size() / columns;
    std::vector<T> result(values.size());
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = values[r * columns + c];
    return result;
}

template <typename T>
void multiply(const T* rows, const T* transposed, std::size_t depth, Block<T>& block) {
    for (std::size_t begin = 0; begin < depth; begin += 4)
        for (std::size_t r = 0; r < block.rows; ++r) {
            Accumulator<T> sum(block.row(r) + block.keys.begin, block.keys.size());
            for (std::size_t d = begin; d < std::min(begin + 4, depth); ++d)
                sum.add(rows[r * depth + d], transposed + d * block.row_length + block.keys.begin);
        }
}

template <typename T>
void add_weighted(const Block<T>& block, const T* table, std::size_t width, T* sums) {
    for (std::size_t begin = block.keys.begin; begin < block.keys.end; begin += 4)
        for (std::size_t r = 0; r < block.rows; ++r) {
            Accumulator<T> sum(sums + r * width, width);
            for (std::size_t j = begin; j < std::min(begin + 4, block.keys.end); ++j)
                if (const T weight = block.row(r)[j]; weight != 0) sum.add(weight, table + j * width);
        }
}

template <typename T>
Attended<T> attend(const Problem& p, const Head& head, std::size_t first, std::size_t last, const T* query,
                   const T* key_transposed) {
    const KeyRange keys = visible_to_any(p, head.batch, first, last);
    const std::size_t rows = last - first;
    Attended<T> result{
        Block<T>(rows, p.seqlen_kv, keys), Block<T>(p.softcap > 0 ? rows : 0, p.seqlen_kv, keys),
        std::vector<T>(rows),
        std::vector<T>(rows, p.sinks.empty() ? hidden<T> : static_cast<T>(p.sinks[head.head]))};
    Block<T>& scores = result.probabilities;
    multiply(query, key_transposed, p.head_dim_qk, scores);
    for (std::size_t r = 0; r < rows; ++r) {
        T* slopes = p.softcap > 0 ? result.slopes.row(r) : nullptr;
        finish_scores(p, head, first + r, keys, scores.row(r), slopes);
        result.lse[r] =
            softmax(std::span<T>(scores.row(r) + keys.begin, keys.size()), result.sink_weights[r]);
    }
    return result;
}

std::vector<float> narrow(std::span<const double> values) {
    std::vector<float> result;
    result.reserve(values.size());
    for (const double x : values) result.push_back(static_cast<float>(x));
    return result;
}

// The two arithmetics.
template std::vector<float> transpose(std::span<const float>, std::size_t);
template void multiply(const float*, const float*, std::size_t, Block<float>&);
template void add_weighted(const Block<float>&, const float*, std::size_t, float*);
template Attended<float> attend(const Problem&, const Head&, std::size_t, std::size_t, const float*,
                                const float*);
template std::vector<double> transpose(std::span<const double>, std::size_t);
template void multiply(const double*, const double*, std::size_t, Block<double>&);
template void add_weighted(const Block<double>&, const double*, std::size_t, double*);
template Attended<double> attend(const Problem&, const Head&, std::size_t, std::size_t, const double*,
                                 const double*);

}  // namespace oracle::internal
