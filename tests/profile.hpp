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

// The same device with its matrix units, of which parse_profile says nothing: most tests are of the portable kernels.
void add_matrix_units(core::DeviceCaps& caps, std::string_view text);
core::DeviceCaps load_with_matrix_units(const std::filesystem::path& path);

Profile load_profile(const std::filesystem::path& path);

// All of a folder, by name. Throws where there is none.
std::vector<Profile> load_profiles(const std::filesystem::path& folder);

}  // namespace vkattn::test
