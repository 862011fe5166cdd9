// Whole numbers and types as people write them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "vkattn/types.h"

namespace vkattn::tools {

// k stands for 1024 and M for 1024 * 1024, in either case: 4k, 64K, 1M. Nothing where the text is no such number.
std::optional<int64_t> whole_number(std::string_view text);

// For options that count something: the number of 32 bits that such a text stands for.
CLI::Validator count_validator();

// f32, float32, fp32, float, single; f16, float16, fp16, half; bf16, bfloat16: in any case.
std::optional<VkattnDtype> dtype_named(std::string_view text);
// Throws UsageError in the name of the argument.
VkattnDtype parse_dtype_of(const std::string& argument, const std::string& text);

}  // namespace vkattn::tools
