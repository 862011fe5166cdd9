// The arrays that a case may have beside its tensors and its mask: the one place where the GPU tests list them. Lines
// of cases name them, runs put them into memory, and the tests of the C ABI spoil their addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "oracle/attention.hpp"
#include "vkattn/vkattn.hpp"

namespace vkattn::test {

// Empty: the case has none.
struct CaseArrays {
    std::vector<int32_t> kv_lengths, query_offsets;
    std::vector<float> slopes, sinks, key_scales, value_scales;
    std::vector<uint8_t> block_map;
};

struct OptionalArray {
    const char* name;  // of its address in the args
    VkDeviceAddress VkattnForwardArgs::*forward;
    VkDeviceAddress VkattnBackwardArgs::*backward;  // null: no backward reads it
    const char* word;                               // that gives a case its values
    const char* example;  // of values, for 2 batches and 4 heads; null: not with operands of one type
    uint64_t (*count)(const VkattnProblem&);  // of values
    std::variant<std::vector<int32_t> CaseArrays::*, std::vector<float> CaseArrays::*,
                 std::vector<uint8_t> CaseArrays::*>
        values;
    void (*ask)(VkattnProblem&);  // sets what the problem says of it
    void (*tell)(const CaseArrays&, const VkattnProblem&, oracle::Problem&);
};
inline uint64_t batches(const VkattnProblem& p) {
    return p.batch;
}
inline uint64_t scales_of(const VkattnProblem& p, VkattnScales kind) {
    return kind == VKATTN_SCALES_NONE       ? 0
           : kind == VKATTN_SCALES_ONE      ? 1
           : kind == VKATTN_SCALES_PER_HEAD ? p.num_heads_kv
                                            : uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv;
}
inline const OptionalArray optional_arrays[] = {
    {"kv_lengths", &VkattnForwardArgs::kv_lengths, &VkattnBackwardArgs::kv_lengths, "lengths", "9,3",
     &batches, &CaseArrays::kv_lengths, [](VkattnProblem& p) { p.kv_lengths = 1; },
     [](const CaseArrays& c, const VkattnProblem& p, oracle::Problem& o) {
         for (const int32_t length : c.kv_lengths)  // the oracle takes no lengths that need clamping
             o.kv_lengths.push_back(std::clamp<int64_t>(length, 0, p.seqlen_kv));
     }},
    {"query_offsets", &VkattnForwardArgs::query_offsets, &VkattnBackwardArgs::query_offsets, "offsets", "4,0",
     &batches, &CaseArrays::query_offsets, [](VkattnProblem& p) { p.align = VKATTN_ALIGN_OFFSETS; },
     [](const CaseArrays& c, const VkattnProblem& p, oracle::Problem& o) {
         if (p.align == VKATTN_ALIGN_OFFSETS)
             o.query_offset.assign(c.query_offsets.begin(), c.query_offsets.end());
     }},
    {"slopes", &VkattnForwardArgs::slopes, &VkattnBackwardArgs::slopes, "slopes", "0.5,0.25,-1,0",
     [](const VkattnProblem& p) {
         return uint64_t{p.slopes == VKATTN_SLOPES_PER_BATCH ? p.batch : 1} * p.num_heads_q;
     },
     &CaseArrays::slopes,
     [](VkattnProblem& p) {
         if (p.slopes == VKATTN_SLOPES_NONE) p.slopes = VKATTN_SLOPES_PER_HEAD;
     },
     [](const CaseArrays& c, const VkattnProblem& p, oracle::Problem& o) {
         o.head_slopes.assign(c.slopes.begin(), c.slopes.end());
         o.slopes_of_mask = !c.slopes.empty() && p.slopes_apply == VKATTN_SLOPES_APPLY_MASK;
     }},
    {"sinks", &VkattnForwardArgs::sinks, &VkattnBackwardArgs::sinks, "sinks", "0.5,-1,3,-inf",
     [](const VkattnProblem& p) { return uint64_t{p.num_heads_q}; }, &CaseArrays::sinks,
     [](VkattnProblem& p) { p.sinks = 1; },
     [](const CaseArrays& c, const VkattnProblem&, oracle::Problem& o) {
         o.sinks.assign(c.sinks.begin(), c.sinks.end());
     }},
    {"block_map", &VkattnForwardArgs::block_map, &VkattnBackwardArgs::block_map, "map", "2",
     [](const VkattnProblem& p) {
         return p.block_map_batches * p.block_map_heads * vkattn_blocks(p.seqlen_q, p.block_rows) *
                vkattn_blocks(p.seqlen_kv, p.block_keys);
     },
     &CaseArrays::block_map, [](VkattnProblem& p) { p.block_map = 1; },
     [](const CaseArrays& c, const VkattnProblem& p, oracle::Problem& o) {
         if (!c.block_map.empty())
             o.block_map = {p.block_rows, p.block_keys, p.block_map_batches, p.block_map_heads, c.block_map};
     }},
    // The oracle is given keys and values that are multiplied already (Tensor::scales).
    {"key_scales", &VkattnForwardArgs::key_scales, nullptr, "key_scales", nullptr,
     [](const VkattnProblem& p) { return scales_of(p, p.key_scales); }, &CaseArrays::key_scales,
     [](VkattnProblem& p) { p.key_scales = VKATTN_SCALES_ONE; },
     [](const CaseArrays&, const VkattnProblem&, oracle::Problem&) {}},
    {"value_scales", &VkattnForwardArgs::value_scales, nullptr, "value_scales", nullptr,
     [](const VkattnProblem& p) { return scales_of(p, p.value_scales); }, &CaseArrays::value_scales,
     [](VkattnProblem& p) { p.value_scales = VKATTN_SCALES_ONE; },
     [](const CaseArrays&, const VkattnProblem&, oracle::Problem&) {}},
};
// Of the array's address.
inline uint32_t alignment_of(const OptionalArray& array) {
    return std::holds_alternative<std::vector<uint8_t> CaseArrays::*>(array.values) ? 1 : 4;
}

inline std::span<const std::byte> content_of(const CaseArrays& c, const OptionalArray& array) {
    return std::visit([&](auto at) { return std::as_bytes(std::span(c.*at)); }, array.values);
}
inline size_t count_of(const CaseArrays& c, const OptionalArray& array) {
    return std::visit([&](auto at) { return (c.*at).size(); }, array.values);
}

// The member of Args for an array; null if Args has none.
template <class Args>
VkDeviceAddress Args::*address_in(const OptionalArray& array) {
    if constexpr (requires { &Args::dout; })
        return array.backward;
    else
        return array.forward;
}

// add(name, content, alignment) puts an array that the case has into memory, and returns its address.
template <class Args, class Add>
void add_arrays(const CaseArrays& c, Args& args, const Add& add) {
    for (const OptionalArray& array : optional_arrays)
        if (const auto content = content_of(c, array); !content.empty() && address_in<Args>(array) != nullptr)
            args.*address_in<Args>(array) = add(array.name, content, alignment_of(array));
}

template <class Args>
void set_array_addresses(Args& args, VkDeviceAddress address) {
    for (const OptionalArray& array : optional_arrays)
        if (address_in<Args>(array) != nullptr) args.*address_in<Args>(array) = address;
}

// The text of a case with everything that Args can give beside the tensors, every element of which has 16 bits.
template <class Args>
std::string featured() {
    std::string text = "b=2 hq=4 hkv=2 sq=5 skv=9 dtype=f16 mask=float mask_shape=5,9 causal";
    for (const OptionalArray& array : optional_arrays)
        if (address_in<Args>(array) != nullptr && array.example != nullptr)
            text += std::string(" ") + array.word + "=" + array.example;
    return text;
}

}  // namespace vkattn::test
