// What a problem has beside its tensors, and how kernels are told of it: optional arrays, terms of the scores
// (shaders/lib/scores.glsl), and what the argument block says of both. The planners include it by way of kernel.hpp. A
// new array or term is named here, in regions.def and in shaders/shared/kernels.h, but nowhere else in src/plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "plan.hpp"

namespace vkattn::core {

// An array of words that a problem may have beside its tensors. Kernels find it through the argument block. A new one
// is a line of optional_arrays, a region of the name that it has in the args, and a bit and a member of
// ForwardArguments.
struct OptionalArray {
    const char* name;  // for messages
    Region region;
    size_t at;  // bytes from the beginning of ForwardArguments to its address
    uint32_t present_bit;
    bool asked;  // the problem has it
    bool given;  // the problem has it, and its batch is not empty: it may be read
};
inline auto optional_arrays(const Problem& p) {
    using Arguments = shared::ForwardArguments;
    const auto array = [&](const char* name, Region region, size_t at, uint32_t present_bit, bool asked) {
        return OptionalArray{name, region, at, present_bit, asked, asked && p.batch != 0};
    };
    return std::array{
        array("kv lengths", Region::kv_lengths, offsetof(Arguments, kv_lengths), PRESENT_KV_LENGTHS,
              p.kv_lengths != 0),
        array("offsets per batch", Region::query_offsets, offsetof(Arguments, query_offsets),
              PRESENT_QUERY_OFFSETS, p.align == VKATTN_ALIGN_OFFSETS),
    };
}

constexpr uint32_t mask_kind_of(const Problem& p) {
    return p.mask == VKATTN_MASK_BOOL ? MASK_BOOL : p.mask == VKATTN_MASK_FLOAT ? MASK_FLOAT : MASK_NONE;
}

// True if a term changes every score: FINISHES_ALL_TILES of shaders/lib/scores.glsl.
constexpr bool finishes_all_tiles(const Problem& p) {
    return p.softcap > 0;
}

// True if some row of a head may see a key that another row of it may not. kv lengths hide keys from all rows alike.
constexpr bool hides_from_some_rows(const Problem& p) {
    const int64_t rows = p.seqlen_q, keys = p.seqlen_kv;
    const bool below = p.dynamic_bounds ? p.bound_lo != INT32_MIN : p.bound_lo > 1 - rows;
    const bool above = p.dynamic_bounds ? p.bound_hi != INT32_MAX : p.bound_hi < keys - 1;
    return p.mask != VKATTN_MASK_NONE || (rows > 1 && (below || above));
}

// The constants that say which terms a score has.
template <class Constants>
void set_term_constants(Constants& c, const Problem& p) {
    c.has_softcap = p.softcap > 0;
    c.mask_kind = mask_kind_of(p);
}

// Sets the members of the argument block for the mask and for the offset of query rows among the keys.
inline void set_term_arguments(shared::ForwardArguments& a, const Problem& p) {
    const VkattnStrides& mask = p.mask_strides;
    std::ranges::copy(std::array{mask.batch, mask.head, mask.seq}, a.mask_stride);
    a.mask_group_size = p.mask_group_size;
    a.key_limit = p.key_limit;
    a.mask_key_step = p.mask_per_key;
    a.follow_lengths = p.follow_lengths;
}

}  // namespace vkattn::core
