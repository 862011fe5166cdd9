// The options for arrays that a problem may have beside its tensors and its mask (shaders/interface/arrays.def).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vkattn/vkattn.hpp"

namespace vkattn::tools {

// In the order of ArrayOption::all.
enum class ArrayName : size_t {
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) name,
#include "interface/arrays.def"
    count
};
constexpr size_t num_arrays = static_cast<size_t>(ArrayName::count);

struct ArrayOption {
    std::string option, help;
    std::string shape;           // in words
    bool has_floats, has_bytes;  // else integers of 32 bits
    VkDeviceAddress VkattnForwardArgs::*forward;
    VkDeviceAddress VkattnBackwardArgs::*backward;  // null: no backward has the array
    std::vector<uint64_t> (*extents)(const VkattnProblem&);
    bool (*asked)(const VkattnProblem&);
    void (*ask)(VkattnProblem&);

    static const std::array<ArrayOption, num_arrays>& all();

    // Sets the member of Args for its address, where Args has one.
    template <class Args>
    void set_address(Args& args, VkDeviceAddress address) const {
        if constexpr (!requires { args.dout; })
            args.*forward = address;
        else if (backward != nullptr)
            args.*backward = address;
    }
};

// One for each of the arrays; empty where the problem has none.
using ArrayFiles = std::array<std::optional<std::string>, num_arrays>;
using ArrayContents = std::array<std::vector<std::byte>, num_arrays>;

// The numbers of an array, int32_t or float as it has them.
template <class T>
std::span<const T> numbers_of(const ArrayContents& contents, ArrayName name) {
    const std::vector<std::byte>& bytes = contents[static_cast<size_t>(name)];
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace vkattn::tools
