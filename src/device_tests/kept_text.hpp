// Texts that callers keep between two starts of a program: what a probe has found, the verdicts of a self-test. The
// first line says what the text is, on which device and driver and by which version of vkattn it was made, and has a
// checksum of the rest. A text that another device, driver or version has made, or that is damaged or cut short, is not
// used.
#pragma once

#include <string>
#include <string_view>

#include "plan/caps.hpp"

namespace vkattn::core {

std::string kept_text(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                      std::string_view body);
// Returns the body of a text that kept_text() would make of it for this device and version; "" of any other text.
std::string_view kept_body(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                           std::string_view text);
// Returns why a caller's text is not used, as the end of a sentence.
const char* why_unused(std::string_view kind, const DeviceCaps& caps, std::string_view version,
                       std::string_view text);

}  // namespace vkattn::core
