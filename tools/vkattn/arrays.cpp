#include "arrays.hpp"

#include <type_traits>

namespace vkattn::tools {
const std::array<ArrayOption, num_arrays>& ArrayOption::all() {
    static const std::array options = {
#define EXTENTS(...) \
    { __VA_ARGS__ }
#define ARRAY_WITH(of_backward, name, type, of, is_asked, set, the_option, the_shape, text)           \
    ArrayOption{the_option,                                                                           \
                std::string(".npy of ") + (std::is_same_v<type, float> ? "floats, " : "integers, ") + \
                    the_shape + ": " + (text),                                                        \
                the_shape,                                                                            \
                std::is_same_v<type, float>,                                                          \
                sizeof(type) == 1,                                                                    \
                &VkattnForwardArgs::name,                                                             \
                of_backward,                                                                          \
                [](const VkattnProblem& p) { return std::vector<uint64_t> EXTENTS of; },              \
                [](const VkattnProblem& p) { return is_asked; },                                      \
                [](VkattnProblem& p) { set; }},
#define ARRAY(name, NAME, present, type, of, is_asked, set, option, shape, text) \
    ARRAY_WITH(&VkattnBackwardArgs::name, name, type, of, is_asked, set, option, shape, text)
#define FORWARD_ARRAY(name, NAME, present, type, of, is_asked, set, option, shape, text) \
    ARRAY_WITH(nullptr, name, type, of, is_asked, set, option, shape, text)
#include "interface/arrays.def"
#undef ARRAY_WITH
#undef EXTENTS
    };
    return options;
}

}  // namespace vkattn::tools
