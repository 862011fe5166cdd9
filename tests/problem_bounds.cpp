#include "problem_bounds.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "plan_cases.hpp"

namespace vkattn::test {
namespace {

using core::Problem;

constexpr int32_t int_min = std::numeric_limits<int32_t>::min(),
                  int_max = std::numeric_limits<int32_t>::max();

// This is the shader's function of the same name, in its 32-bit arithmetic.
int32_t shifted(int32_t bound, int32_t shift) {
    const auto sum = static_cast<int32_t>(static_cast<uint32_t>(bound) + static_cast<uint32_t>(shift));
    if (((bound ^ sum) & (shift ^ sum)) < 0) return bound < 0 ? int_min : int_max;
    return bound == int_min || bound == int_max ? bound : sum;
}

}  // namespace

std::pair<int64_t, int64_t> device_keys(const Problem& p, uint32_t i, int32_t length, int32_t offset,
                                        bool& overflow) {
    const auto q = static_cast<int32_t>(p.seqlen_q), kv = static_cast<int32_t>(p.seqlen_kv);
    int32_t keys = p.kv_lengths != 0 ? std::clamp(length, 0, kv) : kv, shift = 0;
    if (p.kv_lengths != 0 && p.follow_lengths) shift = keys;
    if (p.align == VKATTN_ALIGN_OFFSETS) shift = offset;
    keys = std::min(keys, static_cast<int32_t>(p.key_limit));
    // The shader takes the bounds as they are where batches have nothing of their own, and there is no argument block.
    const bool own = p.kv_lengths != 0 || p.align == VKATTN_ALIGN_OFFSETS;
    const int32_t lo = own ? std::clamp(shifted(p.bound_lo, shift), -q, kv) : p.bound_lo,
                  hi = own ? std::clamp(shifted(p.bound_hi, shift), -q - 1, kv - 1) : p.bound_hi;
    const int64_t begin = int64_t{i} + lo, end = int64_t{i} + hi + 1;
    for (const int64_t x : {begin, end - 1, end}) overflow |= x < int_min || x > int_max;
    return {std::max<int64_t>(0, begin), std::min<int64_t>(keys, end)};
}

namespace {

// Returns the definition's range of keys, for places to compare at. Nothing here comes near the ends of 64 bits.
std::pair<int64_t, int64_t> defined_keys(const VkattnProblem& p, uint32_t i, int64_t keys, int64_t offset) {
    constexpr int64_t far = int64_t{1} << 40;
    if (p.align == VKATTN_ALIGN_BOTTOM_RIGHT) offset = keys - p.seqlen_q;
    if (p.align == VKATTN_ALIGN_TOP_LEFT) offset = 0;
    if (p.align == VKATTN_ALIGN_OFFSET) offset = p.query_offset;
    const int64_t at = i + offset;
    const int64_t left = p.window_left < 0 ? far : std::min(p.window_left, far),
                  right = p.causal != 0        ? 0
                          : p.window_right < 0 ? far
                                               : std::min(p.window_right, far);
    return {std::max<int64_t>(0, at - left), std::min(keys, at + right + 1)};
}

}  // namespace

std::string row_flaw(const VkattnProblem& given, const Problem& p, uint32_t i, int32_t length,
                     int32_t offset) {
    bool overflow = false;
    const auto [begin, end] = device_keys(p, i, length, offset, overflow);
    if (overflow) return "overflow";
    VkattnProblem meant = given;
    if (given.align ==
        VKATTN_ALIGN_OFFSETS) {  // in 32 bits, wider windows cannot be told from unbounded ones
        if (meant.window_left >= int_max) meant.window_left = -1;
        if (meant.window_right >= int_max) meant.window_right = -1;
    }
    const int64_t kv = given.seqlen_kv,
                  keys = given.kv_lengths != 0 ? std::clamp<int64_t>(length, 0, kv) : kv;
    const auto [first, last] = defined_keys(meant, i, keys, offset);
    for (const int64_t edge :
         {int64_t{0}, begin, end, first, last, keys, int64_t{p.key_limit}, kv - 1, kv / 2})
        for (int64_t j = std::max<int64_t>(0, edge - 3); j < std::min(kv, edge + 4); j++) {
            const bool seen = j < p.key_limit && sees(meant, i, j, keys, offset);
            if (seen != (j >= begin && j < end))
                return fmt::format("row {} key {}: {} .. {}", i, j, begin, end);
        }
    return "";
}

}  // namespace vkattn::test
