// Names of files are UTF-8 on every system: a std::string by itself would be of Windows' code page.
#pragma once

#include <filesystem>
#include <string>

namespace vkattn {

inline std::filesystem::path path_of(const std::string& name) {
    return std::u8string(name.begin(), name.end());
}

inline std::string text_of_path(const std::filesystem::path& path) {
    const std::u8string name = path.u8string();
    return {name.begin(), name.end()};
}

}  // namespace vkattn
