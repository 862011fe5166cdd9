#include "caps.hpp"

#include <array>
#include <charconv>
#include <string_view>

namespace vkattn::core {

uint32_t mesa_version_in(std::string_view text) {
    constexpr std::string_view mark = "Mesa ";
    const size_t found = text.find(mark);
    if (found == text.npos) return 0;
    std::array<uint32_t, 3> numbers{};
    const char* at = text.data() + found + mark.size();
    const char* const end = text.data() + text.size();
    for (uint32_t& number : numbers) {
        const auto read = std::from_chars(at, end, number);
        if (read.ec != std::errc{}) break;
        at = read.ptr;
        if (at == end || *at != '.') break;
        at++;
    }
    return mesa_number(numbers[0], numbers[1], numbers[2]);
}

}  // namespace vkattn::core
