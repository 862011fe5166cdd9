// What a problem has beside its tensors, and how kernels are told of it: optional arrays, terms of the scores
// (shaders/lib/scores.glsl), and what the argument block says of both. The planners include it by way of build.hpp. A
// new term is named here and nowhere else in src/plan; a new array is a line of shaders/interface/arrays.def.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <optional>

#include "plan.hpp"

namespace vkattn::core {

// An array that a problem may have beside its tensors and its mask (shaders/interface/arrays.def). Kernels find it
// through the argument block.
struct OptionalArray {
    const char* name;
    Region region;
    // Bytes from the beginning of ForwardArguments to its address; none if that is a push constant.
    std::optional<size_t> at;
    uint32_t present_bit;
    uint32_t element_bytes;
    uint64_t size_bytes;
    bool asked;  // the problem has it
    bool given;  // the problem has it, and neither its batch nor the array is empty: it may be read
};
inline auto optional_arrays(const Problem& p) {
    const auto product = [](std::initializer_list<uint64_t> extents) {
        return std::accumulate(extents.begin(), extents.end(), uint64_t{1}, std::multiplies{});
    };
    return std::array{
#define EXTENTS(...) \
    { __VA_ARGS__ }
#define ARRAY_AT(place, name, present, type, extents, asked)             \
    OptionalArray{#name,        Region::name,                            \
                  place,        present,                                 \
                  sizeof(type), sizeof(type) * product(EXTENTS extents), \
                  asked,        (asked) && p.batch != 0 && product(EXTENTS extents) != 0},
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    ARRAY_AT(offsetof(shared::ForwardArguments, name), name, present, type, extents, asked)
#define FORWARD_ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    ARRAY_AT(std::nullopt, name, present, type, extents, asked)
#include "interface/arrays.def"
#undef ARRAY_AT
#undef EXTENTS
    };
}

constexpr bool bits_differ() {
    uint32_t all = shared::PRESENT_CLASSES;
    bool differ = true;
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    differ = differ && (all & shared::PRESENT_##NAME) == 0;                        \
    all |= shared::PRESENT_##NAME;
#define FORWARD_ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text)
#include "interface/arrays.def"
    return differ;
}
static_assert(bits_differ(), "each array has a bit of its own");

constexpr uint32_t mask_kind_of(const Problem& p) {
    return p.mask == VKATTN_MASK_BOOL ? MASK_BOOL : p.mask == VKATTN_MASK_FLOAT ? MASK_FLOAT : MASK_NONE;
}

// True if a term hides tiles or keys, whatever the bounds say: SKIPS_TILES of shaders/lib/score_facts.glsl.
constexpr bool hides_keys(const Problem& p) {
    return p.mask != VKATTN_MASK_NONE || p.block_map != 0;
}

// True if all of the mask counts: no block map leaves out some of it.
constexpr bool reads_whole_mask(const Problem& p) {
    return p.mask != VKATTN_MASK_NONE && p.block_map == 0;
}

constexpr uint32_t slopes_kind_of(const Problem& p) {
    if (p.slopes == VKATTN_SLOPES_NONE) return SLOPES_NONE;
    return p.slopes_apply == VKATTN_SLOPES_APPLY_MASK ? SLOPES_MASK : SLOPES_DISTANCE;
}

// True if the matrix kernel's loop with stale offsets finishes every tile where it knows the layout of accumulators:
// FINISHES_ALL_TILES of shaders/lib/score_facts.glsl. Packed heads are left out: their tiles are few.
constexpr bool finishes_all_tiles(const Problem& p) {
    const bool begins_as_slopes = !hides_keys(p) && p.softcap == 0;
    return slopes_kind_of(p) == SLOPES_MASK || (slopes_kind_of(p) == SLOPES_DISTANCE && !begins_as_slopes);
}

// True if scores are natural numbers, not in base 2, and if a row's are relative to a number of the row: NATURAL_SCORES
// and SHIFTS_ROWS of shaders/lib/score_facts.glsl.
constexpr bool has_natural_scores(const Problem& p) {
    return p.mask == VKATTN_MASK_FLOAT;
}
constexpr bool shifts_rows(const Problem& p) {
    return slopes_kind_of(p) == SLOPES_DISTANCE;
}

// True if some row of a head may see a key that another row of it may not. kv lengths hide keys from all rows alike.
constexpr bool hides_from_some_rows(const Problem& p) {
    const int64_t rows = p.seqlen_q, keys = p.seqlen_kv;
    const bool below = p.dynamic_bounds ? p.bound_lo != INT32_MIN : p.bound_lo > 1 - rows;
    const bool above = p.dynamic_bounds ? p.bound_hi != INT32_MAX : p.bound_hi < keys - 1;
    return hides_keys(p) || (rows > 1 && (below || above));
}

// The constants that say which terms a score has. An array's is has_NAME, where the kernels have such a constant.
template <class Constants>
void set_term_constants(Constants& c, const Problem& p) {
    c.has_softcap = p.softcap > 0;
    c.mask_kind = mask_kind_of(p);
    c.slopes = slopes_kind_of(p);
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    if constexpr (requires { c.has_##name; }) c.has_##name = asked;
#include "interface/arrays.def"
}

// Sets the members of the argument block for the mask and for the offset of query rows among the keys.
inline void set_term_arguments(shared::ForwardArguments& a, const Problem& p) {
    const VkattnStrides& mask = p.mask_strides;
    std::ranges::copy(std::array{mask.batch, mask.head, mask.seq}, a.mask_stride);
    a.mask_group_size = p.mask_group_size;
    a.key_limit = p.key_limit;
    a.mask_key_step = p.mask_per_key;
    a.follow_lengths = p.follow_lengths;
    a.position = p.position;
    a.slopes_per_batch = p.slopes == VKATTN_SLOPES_PER_BATCH;
    a.block_rows = p.block_rows;
    a.block_keys = p.block_keys;
    a.maps = p.block_map_heads | (p.block_map_batches == 1 ? 0u : 1u << 16);
}

}  // namespace vkattn::core
