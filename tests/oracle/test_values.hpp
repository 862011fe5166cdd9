// What the tests of the oracle share: numbers to compute with, and how close results must come.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention.hpp"

namespace oracle::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;

// Multiples of 1/64 in [-2, 2): exact in every storage type.
inline Values random_values(std::size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    Values result(count);
    for (double& x : result) x = static_cast<double>(generator() % 256) / 64 - 2;
    return result;
}

inline void check_close(const Values& a, const Values& b, double tolerance = 1e-13) {
    REQUIRE(a.size() == b.size());
    for (std::size_t n = 0; n < a.size(); ++n) {
        CAPTURE(n);
        if (std::isinf(b[n]))
            CHECK(a[n] == b[n]);
        else
            CHECK(std::fabs(a[n] - b[n]) <= tolerance * (1 + std::fabs(b[n])));
    }
}

// A mask of these extents; one element in five is -inf, or 0 in a bool mask.
inline Mask patchy_mask(bool additive, std::vector<std::size_t> extents) {
    std::size_t count = 1;
    for (const std::size_t extent : extents) count *= extent;
    Mask mask{additive, std::move(extents), random_values(count, 99)};
    for (std::size_t n = 0; n < count; ++n) {
        if (!additive) mask.values[n] = n % 5 != 3;
        if (additive && n % 5 == 3) mask.values[n] = -infinity;
    }
    return mask;
}

// Changes a problem by a word, "causal" or "window=1,-1". A mask is "mask=EXTENTS" or, added to the scores,
// "bias=EXTENTS": a patchy one, or behind a colon a digit for each element.
inline void change(Problem& p, const std::string& word) {
    const std::size_t equals = std::min(word.find('='), word.size()), colon = word.find(':');
    const std::string name = word.substr(0, equals);
    std::vector<double> n;
    std::istringstream numbers(word.substr(0, colon).substr(std::min(equals + 1, word.size())));
    for (double x; numbers >> x; numbers.ignore()) n.push_back(x);
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(n.at(i)); };
    const auto integers = [&] { return std::vector<std::int64_t>(n.begin(), n.end()); };
    if (name == "batch") {
        p.batch = at(0);
    } else if (name == "heads") {
        p.num_heads_q = at(0), p.num_heads_kv = at(1);
    } else if (name == "rows") {
        p.seqlen_q = at(0);
    } else if (name == "keys") {
        p.seqlen_kv = at(0);
    } else if (name == "dims") {
        p.head_dim_qk = at(0), p.head_dim_v = at(1);
    } else if (name == "scale") {
        p.softmax_scale = n.at(0);
    } else if (name == "softcap") {
        p.softcap = n.at(0);
    } else if (name == "window") {
        p.window_left = integers().at(0), p.window_right = integers().at(1);
    } else if (name == "offset") {
        p.alignment = Alignment::given, p.query_offset = integers();
    } else if (name == "lengths") {
        p.kv_lengths = integers();
    } else if (name == "causal") {
        p.causal = true;
    } else if (name == "top-left") {
        p.alignment = Alignment::top_left;
    } else if (name == "no-mask") {
        p.mask.reset();
    } else {
        REQUIRE_MESSAGE((name == "mask" || name == "bias"), word);
        p.mask = patchy_mask(name == "bias", {n.begin(), n.end()});
        for (std::size_t i = 0; colon != word.npos && i < p.mask->values.size(); ++i)
            p.mask->values[i] = word.at(colon + 1 + i) - '0';
    }
}

inline void change_by_words(Problem& p, const std::string& line) {
    std::istringstream words(line);
    for (std::string word; words >> word;) change(p, word);
}

// Without other words one batch, one head, one row, one key and head dims of 1, so that a score is q * k.
inline Problem problem(const std::string& words) {
    Problem p;
    change_by_words(p, words);
    return p;
}

}  // namespace oracle::test
