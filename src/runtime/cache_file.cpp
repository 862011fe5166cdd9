#include "cache_file.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "checksum.hpp"
#include "paths.hpp"

namespace vkattn::runtime {
namespace {

namespace fs = std::filesystem;

// Returns a number that two writers at once hardly share: it is made of the time and of where the stack lies.
// std::random_device of libstdc++ 12 would need glibc 2.36.
uint32_t number_of_writer() {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    const auto stack = reinterpret_cast<uintptr_t>(&now);
    return static_cast<uint32_t>(now) ^ static_cast<uint32_t>(stack >> 4);
}

// A file is this and `size` bytes more: the key, then name and content of each section. Each of them is a text, which
// is its length in 8 bytes and then its bytes. Numbers are in the host's order: a file is of no use on another machine.
struct Header {
    std::array<char, 8> magic{'v', 'k', 'a', 't', 't', 'n', 'c', '1'};
    uint64_t size = 0;
    uint64_t checksum = 0;
};

Header header_of(std::string_view body) {
    Header header;
    header.size = body.size();
    header.checksum = core::checksum_of(body);
    return header;
}

template <class T>
void append_bytes(std::string& to, const T& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& to, std::string_view text) {
    append_bytes(to, uint64_t{text.size()});
    to += text;
}

// Takes a text from the front of `from`; nothing if it is not all there.
bool take_text(std::string_view& from, std::string_view& text) {
    uint64_t length = 0;
    if (from.size() < sizeof length) return false;
    std::memcpy(&length, from.data(), sizeof length);
    from.remove_prefix(sizeof length);
    if (length > from.size()) return false;
    text = from.substr(0, length);
    from.remove_prefix(length);
    return true;
}

std::string text_of(const CacheKey& key) {
    std::string text;
    for (const uint32_t number : {key.vendor_id, key.device_id, key.driver_version, key.api_version})
        append_bytes(text, number);
    append_bytes(text, key.pipeline_cache_uuid);
    return text + key.vkattn_version;
}

// What follows the header, if it is what was written; else nothing.
std::string read_body(const std::string& path) {
    std::error_code failed;
    if (!fs::is_regular_file(path_of(path), failed)) return {};
    const uint64_t size = fs::file_size(path_of(path), failed);
    if (failed || size < sizeof(Header) || size > largest_cache_bytes) return {};
    std::ifstream file(path_of(path), std::ios::binary);
    Header found;
    if (!file.read(reinterpret_cast<char*>(&found), sizeof found)) return {};
    if (found.magic != Header{}.magic || found.size != size - sizeof found)
        return {};  // before it is allocated
    std::string body(size - sizeof found, '\0');
    if (!file.read(body.data(), static_cast<std::streamsize>(body.size()))) return {};
    const Header expected = header_of(body);
    return std::memcmp(&found, &expected, sizeof found) == 0 ? body : std::string();
}

}  // namespace

CacheSections read_cache_file(const std::string& path, const CacheKey& key, std::string* why_unused) {
    const auto none = [&](const char* why) {
        std::error_code failed;
        const bool has_content =
            fs::is_regular_file(path_of(path), failed) && fs::file_size(path_of(path), failed) != 0;
        if (why_unused != nullptr && has_content) *why_unused = why;
        return CacheSections();
    };
    const std::string body = read_body(path);
    std::string_view rest = body, owner, name, content;
    if (!take_text(rest, owner)) return none("is damaged or cut short");
    if (owner != text_of(key)) return none("is of another device, driver or version of vkattn");
    CacheSections sections;
    while (!rest.empty()) {
        if (!take_text(rest, name) || !take_text(rest, content)) return none("is damaged or cut short");
        sections[std::string(name)].assign(content.begin(), content.end());
    }
    return sections;
}

bool is_foreign_file(const std::string& path) {
    const Header header;
    const std::string_view mark(header.magic.data(), header.magic.size() - 1);  // no version of the format
    std::error_code failed;
    if (!fs::is_regular_file(path_of(path), failed)) return false;
    std::string start(mark.size(), '\0');
    std::ifstream file(path_of(path), std::ios::binary);
    if (!file) return true;
    file.read(start.data(), static_cast<std::streamsize>(start.size()));
    const std::string_view found(start.data(), static_cast<size_t>(file.gcount()));
    return found != mark.substr(0, found.size());
}

std::string write_cache_file(const std::string& path, const CacheKey& key, const CacheSections& sections) {
    std::error_code failed;
    const fs::file_status there = fs::status(path_of(path), failed);
    if (fs::is_directory(there)) return fmt::format("{} is a folder", path);
    if (fs::exists(there) && !fs::is_regular_file(there)) return {};
    constexpr fs::perms writes = fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write;
    if (fs::exists(there) && (there.permissions() & writes) == fs::perms::none)
        return fmt::format("{} is read-only", path);
    std::string body;
    append_text(body, text_of(key));
    for (const auto& [name, content] : sections) {
        append_text(body, name);
        append_text(body, {content.data(), content.size()});
    }
    if (body.size() > largest_cache_bytes - sizeof(Header))
        return fmt::format("{} would have more than {} bytes", path, largest_cache_bytes);
    const Header header = header_of(body);
    const std::string temporary = fmt::format("{}.{:08x}", path, number_of_writer());
    errno = 0;
    std::ofstream file(path_of(temporary), std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(body.data(), static_cast<std::streamsize>(body.size()));
    file.close();
    failed.clear();
    if (file)
        fs::rename(path_of(temporary), path_of(path), failed);
    else
        failed = {errno != 0 ? errno : EIO, std::generic_category()};
    if (!failed) return {};
    std::string why = fmt::format("{} cannot be written: {}", path, failed.message());
    fs::remove(path_of(temporary), failed);
    return why;
}

}  // namespace vkattn::runtime
