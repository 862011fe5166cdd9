#include "cache_file.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <system_error>

#include <fmt/format.h>

namespace vkattn::runtime {
namespace {

struct Header {
    char magic[8] = {'v', 'k', 'a', 't', 't', 'n', 'p', '1'};
    uint64_t size = 0;
    uint64_t checksum = 0;
};

// FNV-1a: against accidents, not against intent.
uint64_t checksum_of(std::span<const uint8_t> data) {
    uint64_t hash = 14695981039346656037u;
    for (const uint8_t byte : data) hash = (hash ^ byte) * 1099511628211u;
    return hash;
}

}  // namespace

std::vector<char> read_cache_file(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return {};
    std::ifstream file(path, std::ios::binary);
    Header expected, found;
    if (!file.read(reinterpret_cast<char*>(&found), sizeof found)) return {};
    std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
    expected.size = data.size();
    expected.checksum = checksum_of({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
    if (std::memcmp(&found, &expected, sizeof found) != 0) data.clear();
    return data;
}

void write_cache_file(const std::string& path, std::span<const uint8_t> data) {
    namespace fs = std::filesystem;
    if (fs::exists(path) && !fs::is_regular_file(path)) return;
    const std::string temporary = fmt::format("{}.{:08x}", path, std::random_device()());
    Header header;
    header.size = data.size();
    header.checksum = checksum_of(data);
    std::ofstream file(temporary, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
    file.close();
    std::error_code failed;
    if (file) fs::rename(temporary, path, failed);
    if (!file || failed) fs::remove(temporary, failed);
}

}  // namespace vkattn::runtime
