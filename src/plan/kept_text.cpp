#include "kept_text.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checksum.hpp"

namespace vkattn::core {

std::string kept_text(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                      std::string_view body) {
    return fmt::format("vkattn {} {} of {}, checksum {:016x}\n{}", version, kind, caps.identity,
                       checksum_of(body), body);
}

std::string_view kept_body(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                           std::string_view text) {
    const size_t first_line = text.find('\n') + 1;  // 0 if there is no line
    const std::string_view body = text.substr(std::min(first_line, text.size()));
    return kept_text(kind, caps, version, body) == text ? body : std::string_view();
}

}  // namespace vkattn::core
