#include "numbers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "common.hpp"

namespace vkattn::tools {

WholeNumber whole_number(std::string_view text, int64_t least, int64_t most, std::string_view kind) {
    static const std::map<std::string_view, int64_t> factors = {
        {"", 1}, {"k", 1 << 10}, {"K", 1 << 10}, {"m", 1 << 20}, {"M", 1 << 20}};
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto factor = factors.find(text.substr(static_cast<size_t>(end - text.data())));
    if (error == std::errc::invalid_argument || factor == factors.end())
        return {0, fmt::format("'{}' is not {}", text, kind)};
    const bool beyond = error == std::errc::result_out_of_range;  // of 64 bits
    if (beyond ? text.starts_with('-') : value < least / factor->second)
        return {0, fmt::format("'{}' is too small: the least is {}", text, least)};
    if (beyond || value > most / factor->second)
        return {0, fmt::format("'{}' is too large: the most is {}", text, most)};
    return {value * factor->second, {}};
}

CLI::Validator count_validator(int64_t most) {
    const auto replace = [most](std::string& text) -> std::string {
        const WholeNumber number = whole_number(text, 0, most, "a whole number; 4k is 4096, 1M is 1048576");
        text = std::to_string(number.value);
        return number.wrong;
    };
    return CLI::Validator(replace, "");
}

template <class T>
std::string wrong_real(const std::string& text, T most) {
    T value{};
    const bool has_plus = text.starts_with('+') && !text.starts_with("+-");
    const char* const begin = text.c_str() + (has_plus ? 1 : 0);
    const auto [end, error] = std::from_chars(begin, text.c_str() + text.size(), value);
    if (error == std::errc::invalid_argument || end != text.c_str() + text.size())
        return fmt::format("'{}' is not a number", text);
    const bool beyond = error == std::errc::result_out_of_range;
    if (beyond && std::abs(std::strtold(text.c_str(), nullptr)) < 1)
        return fmt::format("'{}' is too small: what is not 0 is at least {:.3g}", text,
                           std::numeric_limits<T>::min());
    if (!beyond && !std::isfinite(value)) return fmt::format("'{}' is not finite", text);
    const bool is_low = beyond ? text.starts_with('-') : value < -most;
    if (is_low) return fmt::format("'{}' is too small: the least is {:.3g}", text, -most);
    return beyond || value > most ? fmt::format("'{}' is too large: the most is {:.3g}", text, most)
                                  : std::string();
}
template std::string wrong_real(const std::string&, float);
template std::string wrong_real(const std::string&, double);

std::optional<VkattnDtype> dtype_named(std::string_view text) {
    static const std::map<std::string_view, VkattnDtype> names = {
        {"f32", VKATTN_DTYPE_FLOAT32},     {"float32", VKATTN_DTYPE_FLOAT32},  {"fp32", VKATTN_DTYPE_FLOAT32},
        {"float", VKATTN_DTYPE_FLOAT32},   {"single", VKATTN_DTYPE_FLOAT32},   {"f16", VKATTN_DTYPE_FLOAT16},
        {"float16", VKATTN_DTYPE_FLOAT16}, {"fp16", VKATTN_DTYPE_FLOAT16},     {"half", VKATTN_DTYPE_FLOAT16},
        {"bf16", VKATTN_DTYPE_BFLOAT16},   {"bfloat16", VKATTN_DTYPE_BFLOAT16}};
    const auto found = names.find(CLI::detail::to_lower(std::string(text)));
    return found == names.end() ? std::nullopt : std::optional(found->second);
}

namespace {

VkattnDtype parse_kv_dtype(const std::string& text) {
    for (int type = VKATTN_DTYPE_Q8_0; type <= VKATTN_DTYPE_FLOAT8_E5M2; type++)
        if (CLI::detail::to_lower(text) == dtype_text(static_cast<VkattnDtype>(type)))
            return static_cast<VkattnDtype>(type);
    if (const auto dtype = dtype_named(text)) return *dtype;
    throw UsageError("--kv-dtype", fmt::format("'{}' is not f32, f16, bf16, {}", text, stored_type_names()));
}

}  // namespace

std::string stored_type_names() {
    std::vector<std::string_view> names;
    for (const oracle::BlockType& type : oracle::block_types()) names.push_back(type.name);
    const std::string_view last = names.back();
    names.pop_back();
    return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

std::pair<VkattnDtype, VkattnDtype> parse_kv_dtypes(const std::string& text) {
    const size_t comma = std::min(text.find(','), text.size());
    const VkattnDtype key = parse_kv_dtype(text.substr(0, comma));
    return {key, comma == text.size() ? key : parse_kv_dtype(text.substr(comma + 1))};
}

VkattnDtype parse_dtype_of(const std::string& argument, const std::string& text) {
    const std::optional<VkattnDtype> dtype = dtype_named(text);
    if (!dtype) throw UsageError(argument, fmt::format("'{}' is not f32, f16 or bf16", text));
    return *dtype;
}

}  // namespace vkattn::tools
