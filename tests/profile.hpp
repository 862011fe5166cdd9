// Devices from text: tests/profiles/*.txt hold what real drivers report, the planner's fixtures.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plan/caps.hpp"

namespace vkattn::test {

struct Profile {
    std::string name;  // the file's, without .txt
    core::DeviceCaps caps;
};

// What the device supports counts as enabled. `file` is for messages: a missing, repeated or malformed key
// throws std::runtime_error with file and key.
core::DeviceCaps parse_profile(std::string_view text, const std::string& file);

Profile load_profile(const std::filesystem::path& path);

// All of a folder, by name. Throws where there is none.
std::vector<Profile> load_profiles(const std::filesystem::path& folder);

}  // namespace vkattn::test
