// What the runtime keeps between two runs of a program, in one file: sections of bytes by name, for one device, driver
// and version of vkattn. Vulkan trusts the pipeline cache that it is given, so nothing is taken from a file that has
// been cut off or altered, or that another driver or another vkattn has written.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vkattn::runtime {

// Whose content it is. What was kept under another key is of no use.
struct CacheKey {
    uint32_t vendor_id = 0, device_id = 0, driver_version = 0;
    uint32_t api_version = 0;  // of the device
    std::array<uint8_t, 16> pipeline_cache_uuid{};
    std::string vkattn_version;
};

using CacheSections = std::map<std::string, std::vector<char>>;

// Files past this size are neither read nor written.
constexpr uint64_t largest_cache_bytes = uint64_t{1} << 30;

// All sections, or none: if there is no such file, if its content is not to be trusted, or if it has another key. Where
// a file with content is not used, why_unused becomes the end of a sentence that says why.
CacheSections read_cache_file(const std::string& path, const CacheKey& key,
                              std::string* why_unused = nullptr);

// True if somebody else may have written the file: it has content, which does not begin as that of write_cache_file, or
// cannot be read.
bool is_foreign_file(const std::string& path);

// Writes in one step, through a temporary file beside it. Returns "", or why the file could not be written: it is as it
// was then. A file without write permission is not replaced. What is neither a regular file nor a folder, /dev/null for
// instance, is left alone without a reason.
std::string write_cache_file(const std::string& path, const CacheKey& key, const CacheSections& sections);

}  // namespace vkattn::runtime
