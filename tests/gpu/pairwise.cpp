#include "pairwise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

namespace vkattn::test {
namespace {

class Generator {
  public:
    Generator(const std::vector<size_t>& counts, const Compatible& compatible, const Cost& cost)
        : counts_(counts), compatible_(compatible), cost_(cost) {
        for (const size_t count : counts) {
            first_.push_back(total_);
            total_ += count;
        }
        open_.assign(total_ * total_, false);
        each_pair([&](Level a, Level b) { open(a, b) = compatible_(a, b); });
    }

    std::vector<Row> rows() {
        std::vector<Row> all;
        while (const auto pair = next_open()) {
            all.push_back(best_row(all, pair->first, pair->second));
            each_pair_of(all.back(), [&](Level a, Level b) { open(a, b) = false; });
        }
        return all;
    }

  private:
    using Draft = std::vector<std::optional<size_t>>;

    std::vector<bool>::reference open(Level a, Level b) {
        if (a.factor > b.factor) std::swap(a, b);
        return open_[(first_[a.factor] + a.level) * total_ + first_[b.factor] + b.level];
    }

    template <class Body>
    void each_pair(Body body) const {
        for (size_t a = 0; a < counts_.size(); a++)
            for (size_t b = a + 1; b < counts_.size(); b++)
                for (size_t x = 0; x < counts_[a]; x++)
                    for (size_t y = 0; y < counts_[b]; y++) body(Level{a, x}, Level{b, y});
    }

    std::optional<std::pair<Level, Level>> next_open() {
        std::optional<std::pair<Level, Level>> found;
        each_pair([&](Level a, Level b) {
            if (!found && open(a, b)) found = {a, b};
        });
        return found;
    }

    // How many open pairs a level closes beside what is chosen; none if it may not stand there.
    std::optional<size_t> gain(const Draft& row, Level level) {
        size_t closed = 0;
        for (size_t f = 0; f < row.size(); f++) {
            if (!row[f]) continue;
            if (!compatible_({f, *row[f]}, level)) return std::nullopt;
            closed += open({f, *row[f]}, level) ? 1 : 0;
        }
        return closed;
    }

    size_t best_level(const Draft& row, size_t factor) {
        std::optional<size_t> best, most;
        const size_t start = random_() % counts_[factor];  // ties go to another level each time
        for (size_t n = 0; n < counts_[factor]; n++) {
            const size_t level = (start + n) % counts_[factor];
            const auto closed = gain(row, {factor, level});
            if (!closed || (most && *closed <= *most)) continue;
            most = closed;
            best = level;
        }
        if (!best) throw std::logic_error("a factor without a compatible level");
        return *best;
    }

    // Greedy: factors in a random order, each at the level that closes most.
    Row row_with(Level a, Level b) {
        Draft row(counts_.size());
        row[a.factor] = a.level;
        row[b.factor] = b.level;
        std::vector<size_t> order(counts_.size());
        std::iota(order.begin(), order.end(), size_t{0});
        for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_() % i]);
        for (const size_t factor : order)
            if (!row[factor]) row[factor] = best_level(row, factor);
        Row levels;
        for (const auto& level : row) levels.push_back(*level);
        return levels;
    }

    template <class Body>
    static void each_pair_of(const Row& row, Body body) {
        for (size_t a = 0; a < row.size(); a++)
            for (size_t b = a + 1; b < row.size(); b++) body(Level{a, row[a]}, Level{b, row[b]});
    }

    // The best of some rows with this pair.
    Row best_row(const std::vector<Row>& others, Level a, Level b) {
        Row best;
        std::ptrdiff_t most = 0;
        for (int tries = 0; tries < 40; tries++) {
            Row row = row_with(a, b);
            std::ptrdiff_t worth = -static_cast<std::ptrdiff_t>(cost_(others, row));
            each_pair_of(row, [&](Level x, Level y) { worth += open(x, y) ? 1 : 0; });
            if (!best.empty() && worth <= most) continue;
            most = worth;
            best = std::move(row);
        }
        return best;
    }

    std::vector<size_t> counts_, first_;
    size_t total_ = 0;
    Compatible compatible_;
    Cost cost_;
    std::vector<bool> open_;  // pairs that no row holds yet
    std::mt19937 random_;     // the same numbers everywhere
};

}  // namespace

std::vector<Row> all_pairs(const std::vector<size_t>& levels_of_factor, const Compatible& compatible,
                           const Cost& cost) {
    return Generator(levels_of_factor, compatible, cost).rows();
}

// One number a batch, in turn: none, all, part of what there is.
std::string lengths_of(const VkattnProblem& p, size_t row) {
    const uint32_t n = p.seqlen_kv;
    const uint32_t choices[] = {n, n / 2 + 1, n - n / 3, 0, n / 3 + 1};
    std::string text;
    for (uint32_t b = 0; b < p.batch; b++)
        text += fmt::format("{}{}", b == 0 ? " lengths=" : ",", choices[(row + b) % std::size(choices)]);
    return text;
}

std::string offsets_of(const VkattnProblem& p, size_t row) {
    const int64_t n = p.seqlen_kv, m = p.seqlen_q;
    const int64_t choices[] = {0, n - m, -3, n / 2, -m / 2, n - 5};
    std::string text;
    for (uint32_t b = 0; b < p.batch; b++)
        text += fmt::format("{}{}", b == 0 ? " offsets=" : ",", choices[(row + b) % std::size(choices)]);
    return text;
}

// A fifth of the whole in a dispatch, but a few tiles at least.
std::string cut_of(const VkattnProblem& p) {
    const uint64_t per_key = 2 * (uint64_t{p.head_dim_qk} + p.head_dim_v);
    const uint64_t whole = per_key * p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv;
    return fmt::format(" max_flops={}", std::max(whole / 5, per_key * 32 * 32));
}

}  // namespace vkattn::test
