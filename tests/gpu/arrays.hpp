// The arrays that a case may have beside its tensors and its mask: the one place where the GPU tests list them. Runs
// put them into memory, and the tests of the C ABI spoil their addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "cases.hpp"

namespace vkattn::test {

struct OptionalArray {
    const char* name;  // of its address in the args
    VkDeviceAddress VkattnForwardArgs::*forward;
    VkDeviceAddress VkattnBackwardArgs::*backward;       // null: no backward reads it
    std::span<const std::byte> (*content)(const Case&);  // empty: the case has none
    const char* word;  // of a case with 2 batches and 4 heads that has it: see `featured`
};

inline constexpr OptionalArray optional_arrays[] = {
    {"kv_lengths", &VkattnForwardArgs::kv_lengths, &VkattnBackwardArgs::kv_lengths,
     [](const Case& c) { return std::as_bytes(std::span(c.kv_lengths)); }, "lengths=9,3"},
    {"query_offsets", &VkattnForwardArgs::query_offsets, &VkattnBackwardArgs::query_offsets,
     [](const Case& c) { return std::as_bytes(std::span(c.query_offsets)); }, "offsets=4,0"},
};
constexpr uint32_t array_alignment = 4;

// The member of Args for an array; null if Args has none.
template <class Args>
constexpr VkDeviceAddress Args::*address_in(const OptionalArray& array) {
    if constexpr (requires { &Args::dout; })
        return array.backward;
    else
        return array.forward;
}

// add(name, content) puts an array that the case has into memory, and returns its address.
template <class Args, class Add>
void add_arrays(const Case& c, Args& args, const Add& add) {
    for (const OptionalArray& array : optional_arrays)
        if (const auto content = array.content(c); !content.empty() && address_in<Args>(array) != nullptr)
            args.*address_in<Args>(array) = add(array.name, content);
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
        if (address_in<Args>(array) != nullptr) text += std::string(" ") + array.word;
    return text;
}

}  // namespace vkattn::test
