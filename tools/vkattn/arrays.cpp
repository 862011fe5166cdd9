#include "arrays.hpp"

#include <algorithm>
#include <string_view>

namespace vkattn::tools {
namespace {

std::string option_of(std::string_view name) {
    std::string option = "--" + std::string(name);
    std::ranges::replace(option, '_', '-');
    return option;
}

// "p.batch, p.num_heads_q" becomes "batch, num_heads_q".
std::string extents_text(std::string_view extents) {
    std::string text(extents);
    for (size_t at = text.find("p."); at != std::string::npos; at = text.find("p.", at)) text.erase(at, 2);
    return text;
}

}  // namespace

const std::array<ArrayOption, num_arrays>& ArrayOption::all() {
    static const std::array options = {
#define EXTENTS(...) \
    { __VA_ARGS__ }
#define ARRAY(name, NAME, present, type, of, is_asked, set, text)                        \
    ArrayOption{option_of(#name),                                                        \
                ".npy of integers, " + extents_text(#of) + ": " + (text),                \
                extents_text(#of),                                                       \
                &VkattnForwardArgs::name,                                                \
                &VkattnBackwardArgs::name,                                               \
                [](const VkattnProblem& p) { return std::vector<uint64_t> EXTENTS of; }, \
                [](const VkattnProblem& p) { return is_asked; },                         \
                [](VkattnProblem& p) { set; }},
#include "interface/arrays.def"
#undef EXTENTS
    };
    return options;
}

std::span<const int32_t> integers_of(const ArrayContents& contents, ArrayName name) {
    const std::vector<std::byte>& bytes = contents[static_cast<size_t>(name)];
    return {reinterpret_cast<const int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t)};
}

}  // namespace vkattn::tools
