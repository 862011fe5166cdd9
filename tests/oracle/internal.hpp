// What the oracle's forward and backward share. Nobody else includes it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "attention.hpp"

namespace oracle::internal {

// Rows computed together, so that keys and values are streamed from memory once for all of them.
constexpr std::size_t rows_per_block = 8;

void require(bool condition, const char* what);  // std::invalid_argument
void validate(const Problem& p, std::size_t query, std::size_t key, std::size_t value);

// Which row of the mask, flattened to (.., last extent), query row i reads.
std::size_t mask_row(const Problem& problem, std::size_t batch, std::size_t head, std::size_t i);

// Keys [begin, end).
struct KeyRange {
    std::size_t begin = 0;
    std::size_t end = 0;

    bool contains(std::size_t key) const { return begin <= key && key < end; }
    std::size_t size() const { return end - begin; }
};

// A query head, and where its keys are.
struct Head {
    std::size_t batch;
    std::size_t head;
    std::size_t first_key;
    std::size_t seqlen_kv;

    Head(const Problem& p, std::size_t n) : batch(n / p.num_heads_q), head(n % p.num_heads_q) {
        const std::size_t head_kv = head / (p.num_heads_q / p.num_heads_kv);
        first_key = (batch * p.num_heads_kv + head_kv) * p.seqlen_kv;
        seqlen_kv = p.seqlen_kv;
    }

    template <typename T>
    std::span<const T> keys_of(std::span<const T> tensor, std::size_t head_dim) const {
        return tensor.subspan(first_key * head_dim, seqlen_kv * head_dim);
    }
};

double slope_of(const Problem& problem, const Head& head);

// What the block map says of a score; 2 without one.
int block_of_score(const Problem& p, const Head& head, std::size_t i, std::size_t j);

// A number for each key of some query rows. Only those of `keys` are meant.
template <typename T>
struct Block {
    std::size_t rows;
    std::size_t row_length;
    KeyRange keys;
    std::vector<T> values;

    Block(std::size_t count, std::size_t length, KeyRange range)
        : rows(count), row_length(length), keys(range), values(count * length) {}

    T* row(std::size_t r) { return values.data() + r * row_length; }
    const T* row(std::size_t r) const { return values.data() + r * row_length; }
};

// Of query rows [first, last): probabilities, 0 for hidden keys. What is hidden may hold anything.
template <typename T>
struct Attended {
    Block<T> probabilities;
    Block<T> slopes;  // of the softcap; no rows without one
    std::vector<T> lse;
    std::vector<T> sink_weights;  // 0 for rows that see no key
};
template <typename T>
Attended<T> attend(const Problem& p, const Head& head, std::size_t first, std::size_t last, const T* query,
                   const T* key_transposed);  // query: from row `first` on

// block += rows (block.rows x depth) * transposed (depth x block.row_length)
template <typename T>
void multiply(const T* rows, const T* transposed, std::size_t depth, Block<T>& block);

// sums (block.rows x width) += block * table (block.row_length x width); what has weight 0 is not touched.
template <typename T>
void add_weighted(const Block<T>& block, const T* table, std::size_t width, T* sums);

// So that the loop over keys is contiguous.
template <typename T>
std::vector<T> transpose(std::span<const T> values, std::size_t columns);

// sum += weight * row for each add, in their order. Four at a time load and store the sum once.
template <typename T>
class Accumulator {
  public:
    Accumulator(T* sum, std::size_t width) : sum_(sum), width_(width) {}
    Accumulator(const Accumulator&) = delete;
    Accumulator& operator=(const Accumulator&) = delete;
    ~Accumulator() {
        for (std::size_t n = 0; n < count_; ++n)
            for (std::size_t i = 0; i < width_; ++i) sum_[i] += weights_[n] * rows_[n][i];
    }

    void add(T weight, const T* row) {
        weights_[count_] = weight;
        rows_[count_] = row;
        if (++count_ == 4) add_four();
    }

  private:
    void add_four() {
        const auto [w0, w1, w2, w3] = weights_;
        const auto [x0, x1, x2, x3] = rows_;
        T* __restrict sum = sum_;
        for (std::size_t i = 0; i < width_; ++i)
            sum[i] = sum[i] + w0 * x0[i] + w1 * x1[i] + w2 * x2[i] + w3 * x3[i];
        count_ = 0;
    }

    T* sum_;
    std::size_t width_;
    std::size_t count_ = 0;
    std::array<T, 4> weights_{};
    std::array<const T*, 4> rows_{};
};

std::vector<float> narrow(std::span<const double> values);

// Each of `count` query heads on some thread. Threads cost more than small problems do.
template <typename Work>
void for_each_head(const Problem& p, Work work) {
    const std::size_t count = p.batch * p.num_heads_q;
    std::atomic<std::size_t> next = 0;
    const auto run = [&] {
        for (std::size_t n = next++; n < count; n = next++) work(n);
    };
    std::vector<std::thread> threads;
    const bool small = count * p.seqlen_q * p.seqlen_kv * (p.head_dim_qk + p.head_dim_v) < 100'000;
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    for (std::size_t t = 1; t < (small ? 1 : std::min(count, cores)); ++t) threads.emplace_back(run);
    run();
    for (std::thread& thread : threads) thread.join();
}

}  // namespace oracle::internal
