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
#define ARRAY(name, NAME, present, type, extents, asked, ask, text) name,
#include "interface/arrays.def"
    count
};
constexpr size_t num_arrays = static_cast<size_t>(ArrayName::count);

struct ArrayOption {
    std::string option, help;
    std::string shape;  // in words
    VkDeviceAddress VkattnForwardArgs::*forward;
    VkDeviceAddress VkattnBackwardArgs::*backward;
    std::vector<uint64_t> (*extents)(const VkattnProblem&);
    bool (*asked)(const VkattnProblem&);
    void (*ask)(VkattnProblem&);

    static const std::array<ArrayOption, num_arrays>& all();

    // The member of Args for its address.
    template <class Args>
    VkDeviceAddress& address_in(Args& args) const {
        if constexpr (requires { args.dout; })
            return args.*backward;
        else
            return args.*forward;
    }
};

// One for each of the arrays; empty where the problem has none.
using ArrayFiles = std::array<std::optional<std::string>, num_arrays>;
using ArrayContents = std::array<std::vector<std::byte>, num_arrays>;

// The numbers of an array of integers.
std::span<const int32_t> integers_of(const ArrayContents& contents, ArrayName name);

}  // namespace vkattn::tools
