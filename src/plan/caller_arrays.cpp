// The arrays whose addresses a recording is given, and what these must be. choice.cpp puts them into a plan, and
// src/vulkan checks addresses against them: record.cpp for null and alignment, aliasing.cpp for memory that two arrays
// share.
#include <algorithm>

#include "build.hpp"
#include "caller_arrays.hpp"

namespace vkattn::core {
namespace {

constexpr uint32_t word_bytes = 4;

Placement run_of(uint64_t bytes) {
    return {0, bytes, {}};
}

// A tensor of a problem. `like` says whose extents it has: 0 .. 3 are query, key, value and out.
Placement tensor_of(const Problem& p, int like, const VkattnStrides& s) {
    const bool of_query = like == 0 || like == 3;
    const Storage storage = p.storage_of(like);
    return {0,
            storage.bytes_of(like < 2 ? p.head_dim_qk : p.head_dim_v),
            {{{p.batch, storage.bytes_of(s.batch)},
              {of_query ? p.num_heads_q : p.num_heads_kv, storage.bytes_of(s.head)},
              {of_query ? p.seqlen_q : p.seqlen_kv, storage.bytes_of(s.seq)}}}};
}

Placement mask_of(const Problem& p) {
    const uint64_t bytes = p.mask_element_bytes();
    Placement at = run_of(p.mask_shape[3] * bytes);
    const uint64_t strides[] = {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
    for (size_t i = 0; i < 3; i++) at.dims[i] = {p.mask_shape[i], strides[i] * bytes};
    return at;
}

bool is_empty(const Placement& at) {
    return at.run_bytes == 0 ||
           std::ranges::any_of(at.dims, [](const Placement::Dim& dim) { return dim.count == 0; });
}

bool has_queries(const Problem& p) {
    return p.batch != 0 && p.seqlen_q != 0;
}

// Collects arrays that have elements.
struct Arrays {
    const Problem& p;
    std::vector<CallerArray> all{};

    // `is_used`: some element is read, so that the address has to be right.
    void add(Region region, uint32_t alignment_bytes, const Placement& at, bool is_used = true) {
        if (!is_empty(at)) all.push_back({region, alignment_bytes, false, is_used, false, at});
    }
    void add_given(Region region, uint32_t alignment_bytes, const Placement& at) {
        add(region, alignment_bytes, at);
    }
    void add_written(Region region, uint32_t alignment_bytes, const Placement& at) {
        if (!is_empty(at)) all.push_back({region, alignment_bytes, false, true, true, at});
    }
    void add_if_given(Region region, uint32_t alignment_bytes, const Placement& at) {
        all.push_back({region, alignment_bytes, true, true, false, at});
    }
    void add_if_wanted(Region region, uint32_t alignment_bytes, const Placement& at) {
        all.push_back({region, alignment_bytes, true, true, true, at});
    }
    void add_inputs() {
        const bool used = has_queries(p);
        add(Region::query, p.alignment_of(0), tensor_of(p, 0, p.query_strides));
        add(Region::key, p.alignment_of(1), tensor_of(p, 1, p.key_strides), used);
        if (p.value_in_key == 0)
            add(Region::value, p.alignment_of(2), tensor_of(p, 2, p.value_strides), used);
    }
    // A mask needs an address as soon as one key of it is read.
    void add_arrays(bool used) {
        if (p.mask != VKATTN_MASK_NONE)
            add(Region::mask, p.mask_element_bytes(), mask_of(p), !p.empty_output() && p.key_limit != 0);
        for (const OptionalArray& array : optional_arrays(p))
            if (array.given) add(array.region, array.element_bytes, run_of(array.size_bytes), used);
    }
};

Placement statistics_of(const Problem& p) {
    return run_of(word_bytes * rows_of(p));
}

}  // namespace

std::vector<CallerArray> caller_arrays_of(const Problem& p) {
    Arrays arrays{p};
    arrays.add_inputs();
    arrays.add_written(Region::out, p.alignment_of(3), tensor_of(p, 3, p.out_strides));
    arrays.add_if_wanted(Region::lse, word_bytes, statistics_of(p));
    arrays.add_arrays(has_queries(p));
    return arrays.all;
}

std::vector<CallerArray> caller_arrays_of(const Problem& p, const Backward& b) {
    Arrays arrays{p};
    const auto like = [&](int tensor) { return p.alignment_of(Backward::like(tensor)); };
    arrays.add_inputs();
    arrays.add(Region::out, p.alignment_of(3), tensor_of(p, 3, p.out_strides));
    arrays.add(Region::lse, word_bytes, statistics_of(p));
    arrays.add(Region::dout, like(0), tensor_of(p, 3, b.dout_strides));
    arrays.add_written(Region::dquery, like(1), tensor_of(p, 0, b.dquery_strides));
    arrays.add_written(Region::dkey, like(2), tensor_of(p, 1, b.dkey_strides));
    arrays.add_written(Region::dvalue, like(3), tensor_of(p, 2, b.dvalue_strides));
#define BACKWARD_ARRAY(name, role, bytes, count, asked) \
    if (asked) arrays.add_##role(Region::name, bytes, run_of(uint64_t{bytes} * (count)));
#include "interface/arrays.def"
    arrays.add_arrays(true);
    return arrays.all;
}

std::vector<CallerArray> caller_arrays_of(const Combine& c) {
    const Problem none{};
    Arrays arrays{none};
    const uint64_t rows = uint64_t{c.batch} * c.num_heads * c.seqlen_q, part_bytes = c.parts_element_bytes;
    const auto tensor = [&](const VkattnStrides& s, uint64_t bytes, uint64_t parts, uint64_t part_stride) {
        return Placement{0,
                         c.head_dim_v * bytes,
                         {{{parts, part_stride * bytes},
                           {c.batch, s.batch * bytes},
                           {c.num_heads, s.head * bytes},
                           {c.seqlen_q, s.seq * bytes}}}};
    };
    Placement parts_lse = run_of(word_bytes * rows);
    parts_lse.dims[0] = {c.num_parts, word_bytes * rows};
    arrays.add(Region::parts, std::max(c.alignment_bytes, c.parts_element_bytes),
               tensor(c.parts_strides, part_bytes, c.num_parts, c.part_stride));
    arrays.add(Region::parts_lse, word_bytes, parts_lse);
    arrays.add_written(Region::out, c.alignment_bytes, tensor(c.out_strides, c.element_bytes, 1, 0));
    arrays.add_if_wanted(Region::lse, word_bytes, run_of(word_bytes * rows));
    arrays.add_if_given(Region::sinks, word_bytes, run_of(uint64_t{word_bytes} * c.num_heads));
    return arrays.all;
}

std::vector<CallerArray> block_map_arrays_of(const Problem& p) {
    Arrays arrays{p};
    for (const OptionalArray& array : optional_arrays(p))
        if (array.region == Region::block_map && array.given) {
            arrays.add(Region::mask, p.mask_element_bytes(), mask_of(p), p.key_limit != 0);
            arrays.add_written(Region::block_map, array.element_bytes, run_of(array.size_bytes));
        }
    return arrays.all;
}

}  // namespace vkattn::core
