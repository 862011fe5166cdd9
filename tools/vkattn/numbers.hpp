// Whole numbers and types as people write them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "vkattn/types.h"

namespace vkattn::tools {

// A whole number within least .. most, of which 0 is one. k stands for 1024 and M for 1024 * 1024, in either case: 4k,
// 64K, 1M. Otherwise says what is wrong with the text: it is not `kind`, or too small or too large, with the bound.
struct WholeNumber {
    int64_t value = 0;
    std::string wrong;  // "" if nothing is
};
WholeNumber whole_number(std::string_view text, int64_t least, int64_t most, std::string_view kind);

// Options that count something take it: it puts the number, of 32 bits by default, in place of such a text.
CLI::Validator count_validator(int64_t most = std::numeric_limits<uint32_t>::max());

// Returns what keeps a text from being a finite number of the type, of at most `most`; "" if nothing does. A number
// that would become 0 is too small.
template <class T>
std::string wrong_real(const std::string& text, T most);

// Options that are such a number take it.
template <class T>
CLI::Validator real_validator(T most = std::numeric_limits<T>::max()) {
    return CLI::Validator([most](std::string& text) { return wrong_real<T>(text, most); }, "");
}

// f32, float32, fp32, float, single; f16, float16, fp16, half; bf16, bfloat16: in any case.
std::optional<VkattnDtype> dtype_named(std::string_view text);
// "q8_0", or "q8_0,f16" for key and value: types as above, or of blocks. Throws UsageError.
std::pair<VkattnDtype, VkattnDtype> parse_kv_dtypes(const std::string& text);
// Returns the names of the types of blocks and single bytes, as in "a, b or c".
std::string stored_type_names();
// Throws UsageError in the name of the argument.
VkattnDtype parse_dtype_of(const std::string& argument, const std::string& text);

}  // namespace vkattn::tools
