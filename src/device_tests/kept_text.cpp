#include "kept_text.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checksum.hpp"

namespace vkattn::core {

namespace {

// The first line up to the checksum.
std::string owner_of(std::string_view kind, const DeviceCaps& caps, std::string_view version) {
    return fmt::format("vkattn {} {} of {}, checksum ", version, kind, caps.identity);
}

}  // namespace

std::string kept_text(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                      std::string_view body) {
    return fmt::format("{}{:016x}\n{}", owner_of(kind, caps, version), checksum_of(body), body);
}

std::string_view kept_body(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                           std::string_view text) {
    const size_t first_line = text.find('\n') + 1;  // 0 if there is no line
    const std::string_view body = text.substr(std::min(first_line, text.size()));
    return kept_text(kind, caps, version, body) == text ? body : std::string_view();
}

const char* why_unused(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                       std::string_view text) {
    if (!text.starts_with(owner_of(kind, caps, version)))
        return "is not of this device, driver and version of vkattn";
    if (kept_body(kind, caps, version, text).empty()) return "is damaged or cut short";
    return "was made with other features";
}

}  // namespace vkattn::core
