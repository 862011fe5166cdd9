#include "numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "common.hpp"

namespace vkattn::tools {

std::optional<int64_t> whole_number(std::string_view text) {
    static const std::map<std::string_view, int64_t> factors = {
        {"", 1}, {"k", 1 << 10}, {"K", 1 << 10}, {"m", 1 << 20}, {"M", 1 << 20}};
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) return std::nullopt;
    const auto factor = factors.find(text.substr(static_cast<size_t>(end - text.data())));
    if (factor == factors.end()) return std::nullopt;
    const int64_t most = std::numeric_limits<int64_t>::max() / factor->second;
    if (factor->second > 1 && (value > most || value < -most)) return std::nullopt;
    return value * factor->second;
}

CLI::Validator count_validator() {
    const auto replace = [](std::string& text) -> std::string {
        const std::optional<int64_t> value = whole_number(text);
        if (!value || !std::in_range<uint32_t>(*value))
            return fmt::format("'{}' is not a whole number of 0 .. 2^32 - 1; 4k is 4096, 1M is 1048576",
                               text);
        text = std::to_string(*value);
        return {};
    };
    return CLI::Validator(replace, "");
}

std::optional<VkattnDtype> dtype_named(std::string_view text) {
    static const std::map<std::string_view, VkattnDtype> names = {
        {"f32", VKATTN_DTYPE_FLOAT32},     {"float32", VKATTN_DTYPE_FLOAT32},  {"fp32", VKATTN_DTYPE_FLOAT32},
        {"float", VKATTN_DTYPE_FLOAT32},   {"single", VKATTN_DTYPE_FLOAT32},   {"f16", VKATTN_DTYPE_FLOAT16},
        {"float16", VKATTN_DTYPE_FLOAT16}, {"fp16", VKATTN_DTYPE_FLOAT16},     {"half", VKATTN_DTYPE_FLOAT16},
        {"bf16", VKATTN_DTYPE_BFLOAT16},   {"bfloat16", VKATTN_DTYPE_BFLOAT16}};
    const auto found = names.find(CLI::detail::to_lower(std::string(text)));
    return found == names.end() ? std::nullopt : std::optional(found->second);
}

VkattnDtype parse_dtype_of(const std::string& argument, const std::string& text) {
    const std::optional<VkattnDtype> dtype = dtype_named(text);
    if (!dtype) throw UsageError(argument, fmt::format("'{}' is not f32, f16 or bf16", text));
    return *dtype;
}

}  // namespace vkattn::tools
