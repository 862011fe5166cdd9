#include "arrays.hpp"

#include <type_traits>

namespace vkattn::tools {
const std::array<ArrayOption, num_arrays>& ArrayOption::all() {
    static const std::array options = {
#define EXTENTS(...) \
    { __VA_ARGS__ }
#define ARRAY(name, NAME, present, type, of, is_asked, set, the_option, the_shape, text)              \
    ArrayOption{the_option,                                                                           \
                std::string(".npy of ") + (std::is_same_v<type, float> ? "floats, " : "integers, ") + \
                    the_shape + ": " + (text),                                                        \
                the_shape,                                                                            \
                std::is_same_v<type, float>,                                                          \
                sizeof(type) == 1,                                                                    \
                &VkattnForwardArgs::name,                                                             \
                &VkattnBackwardArgs::name,                                                            \
                [](const VkattnProblem& p) { return std::vector<uint64_t> EXTENTS of; },              \
                [](const VkattnProblem& p) { return is_asked; },                                      \
                [](VkattnProblem& p) { set; }},
#include "interface/arrays.def"
#undef EXTENTS
    };
    return options;
}

}  // namespace vkattn::tools
