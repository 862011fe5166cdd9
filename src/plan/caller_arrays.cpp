// The arrays whose addresses a recording is given, and what these must be. plan.cpp puts them into a plan, and
// src/vulkan/record.cpp checks addresses against them.
#include <algorithm>

#include "kernel.hpp"

namespace vkattn::core {
namespace {

// Collects arrays that are not empty.
struct Arrays {
    std::vector<CallerArray> all;
    void add(Region region, uint32_t alignment_bytes, bool has_elements) {
        if (has_elements) all.push_back({region, alignment_bytes, false});
    }
    void add_if_wanted(Region region, uint32_t alignment_bytes) {
        all.push_back({region, alignment_bytes, true});
    }
};

constexpr uint32_t word_bytes = 4;

bool has_queries(const Problem& p) {
    return p.batch != 0 && p.seqlen_q != 0;
}

void add_tensors(const Problem& p, Arrays& to) {
    const bool keys = has_keys(p) && p.seqlen_q != 0;
    to.add(Region::query, p.alignment_of(0), has_queries(p));
    to.add(Region::key, p.alignment_of(1), keys);
    to.add(Region::value, p.alignment_of(2), keys);
    to.add(Region::out, p.alignment_of(3), has_queries(p));
}

// A mask needs an address as soon as one key of it is read.
void add_arrays(const Problem& p, bool needed, Arrays& to) {
    to.add(Region::mask, p.mask_element_bytes(),
           p.mask != VKATTN_MASK_NONE && !p.empty_output() && p.key_limit != 0);
    for (const OptionalArray& array : optional_arrays(p))
        to.add(array.region, word_bytes, array.given && needed);
}

}  // namespace

std::vector<CallerArray> caller_arrays_of(const Problem& p) {
    Arrays arrays;
    add_tensors(p, arrays);
    arrays.add_if_wanted(Region::lse, word_bytes);
    add_arrays(p, has_queries(p), arrays);
    return arrays.all;
}

std::vector<CallerArray> caller_arrays_of(const Problem& p, const Backward& b) {
    Arrays arrays;
    const auto like = [&](int tensor) { return p.alignment_of(Backward::like(tensor)); };
    add_tensors(p, arrays);
    arrays.add(Region::lse, word_bytes, has_queries(p));
    arrays.add(Region::dout, like(0), has_queries(p));
    arrays.add(Region::dlse, word_bytes, b.dlse != 0 && has_queries(p));
    arrays.add(Region::dquery, like(1), has_queries(p));
    arrays.add(Region::dkey, like(2), has_keys(p));
    arrays.add(Region::dvalue, like(3), has_keys(p));
    arrays.add(Region::dbias, p.dbias_element_bytes(), b.has_bias());
    add_arrays(p, true, arrays);
    return arrays.all;
}

std::vector<CallerArray> caller_arrays_of(const Combine& c) {
    Arrays arrays;
    const bool rows = uint64_t{c.batch} * c.num_heads * c.seqlen_q != 0;
    arrays.add(Region::parts, std::max(c.alignment_bytes, c.parts_element_bytes), rows);
    arrays.add(Region::parts_lse, word_bytes, rows);
    arrays.add(Region::out, c.alignment_bytes, rows);
    arrays.add_if_wanted(Region::lse, word_bytes);
    return arrays.all;
}

}  // namespace vkattn::core
