// A pipeline cache in a file. Vulkan trusts the data that it is given, so a checksum tells what was written here from
// what was cut off or altered since.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vkattn::runtime {

// Empty if there is no such file, or its content is not to be trusted.
std::vector<char> read_cache_file(const std::string& path);

// In one step, through a temporary file beside it. What is no regular file, a device for instance, stays as it is.
void write_cache_file(const std::string& path, std::span<const uint8_t> data);

}  // namespace vkattn::runtime
