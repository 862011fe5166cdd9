#include "overlap.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace vkattn::core {
namespace {

// A byte of both is a way to choose an index in each dimension of both tensors so that
//     sum of a's index * stride - sum of b's index * stride = b.address - a.address + (byte in b's run - byte in a's).
// So the question is whether some sum of terms, each a multiple of its stride, lies within a window.
struct Term {
    int64_t stride, low, high;  // low .. high: the factors that the stride may have
};
struct Window {
    int64_t low, high;  // both belong to it
};

// No memory is that large, and sums of a few of these do not overflow.
constexpr uint64_t largest_span = uint64_t{1} << 59;
// Steps of a search, of about 10 ns each. Layouts that frameworks make need fewer than ten.
constexpr int most_steps = 4096;

// The bytes from a tensor's address to its end; 0 if there are none, or if no memory could hold them.
uint64_t span_of(const Placement& p) {
    uint64_t span = p.run_bytes;
    for (const auto& [count, stride] : p.dims) {
        if (count == 0) return 0;
        if (stride != 0 && count - 1 > largest_span / stride) return 0;
        span += (count - 1) * stride;
        if (p.run_bytes == 0 || span > largest_span) return 0;
    }
    return p.address > UINT64_MAX - span ? 0 : span;
}

int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
}

// The terms of both tensors, with the smallest stride first. Equal strides of both make one term.
std::vector<Term> terms_of(const Placement& a, const Placement& b) {
    std::vector<Term> all;
    const auto add = [&](const Placement::Dim& dim, int64_t sign) {
        if (dim.count <= 1 || dim.stride_bytes == 0) return;
        const int64_t last = sign * static_cast<int64_t>(dim.count - 1),
                      stride = static_cast<int64_t>(dim.stride_bytes);
        const auto same =
            std::find_if(all.begin(), all.end(), [&](const Term& t) { return t.stride == stride; });
        Term& term = same != all.end() ? *same : all.emplace_back(Term{stride, 0, 0});
        (sign < 0 ? term.low : term.high) += last;
    };
    for (const auto& dim : a.dims) add(dim, 1);
    for (const auto& dim : b.dims) add(dim, -1);
    std::sort(all.begin(), all.end(), [](const Term& x, const Term& y) { return x.stride < y.stride; });
    return all;
}

// True if some sum of the terms lies within the window. Only factors are tried for which the smaller strides can make
// up for the rest.
bool reaches(std::span<const Term> terms, Window window, int& steps_left) {
    if (window.low <= 0 && window.high >= 0) return true;  // every factor may be 0
    if (terms.empty()) return false;
    const auto smaller = terms.first(terms.size() - 1);
    int64_t least = 0, most = 0;
    for (const Term& t : smaller) {
        least += t.low * t.stride;
        most += t.high * t.stride;
    }
    const Term& t = terms.back();
    const int64_t first = std::max(t.low, -floor_div(most - window.low, t.stride)),
                  last = std::min(t.high, floor_div(window.high - least, t.stride));
    if (smaller.empty()) return first <= last;
    for (int64_t factor = first; factor <= last; factor++) {
        if (steps_left-- <= 0) return false;
        const int64_t moved = factor * t.stride;
        if (reaches(smaller, {window.low - moved, window.high - moved}, steps_left)) return true;
    }
    return false;
}

}  // namespace

bool overlap(const Placement& a, const Placement& b) {
    const uint64_t span_a = span_of(a), span_b = span_of(b);
    if (span_a == 0 || span_b == 0) return false;
    if (a.address >= b.address + span_b || b.address >= a.address + span_a) return false;
    const auto distance = static_cast<int64_t>(b.address - a.address);
    Window window{distance - static_cast<int64_t>(a.run_bytes - 1),
                  distance + static_cast<int64_t>(b.run_bytes - 1)};
    const std::vector<Term> all = terms_of(a, b);
    std::span<const Term> terms = all;
    // Multiples of a stride that is no longer than the window leave no gap: they widen it. So a dense tensor becomes
    // one run, and the heads of a packed one do too.
    while (!terms.empty() && terms.front().stride <= window.high - window.low + 1) {
        const Term& t = terms.front();
        window = {window.low - t.high * t.stride, window.high - t.low * t.stride};
        terms = terms.subspan(1);
    }
    int steps_left = most_steps;
    return reaches(terms, window, steps_left);
}

}  // namespace vkattn::core
