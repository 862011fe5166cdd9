#include "spirv.hpp"

#include <bit>
#include <new>
#include <stdexcept>

#include <fmt/format.h>
#define ZLIB_CONST  // makes zlib take its input by a pointer to const
#include <zlib.h>

namespace vkattn::core {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the embedded modules consist of little-endian words");

constexpr size_t smallest_gzip = 18;    // bytes of a header and a trailer
constexpr size_t largest_ratio = 1032;  // deflate spends at least 2 bits on 258 bytes
constexpr int gzip_format = MAX_WBITS + 16;

// A gzip stream ends with the number of bytes that were compressed. Returns 0 where it cannot be true, so that a
// damaged number does not allocate gigabytes.
size_t bytes_inside(std::span<const uint8_t> gzip) {
    if (gzip.size() < smallest_gzip) return 0;
    size_t bytes = 0;
    for (size_t i = 1; i <= 4; i++) bytes = bytes << 8 | gzip[gzip.size() - i];
    return bytes / largest_ratio > gzip.size() ? 0 : bytes;
}

}  // namespace

Spirv decompress(std::span<const uint8_t> gzip, std::string_view name) {
    const auto check = [&](bool good) {
        if (!good)
            throw std::runtime_error(fmt::format("module {} is damaged inside this copy of vkattn", name));
    };
    const size_t bytes = bytes_inside(gzip);
    check(bytes != 0 && bytes % sizeof(uint32_t) == 0);
    Spirv words(bytes / sizeof(uint32_t));
    z_stream stream{};
    stream.next_in = gzip.data();
    stream.avail_in = static_cast<uInt>(gzip.size());
    stream.next_out = reinterpret_cast<Bytef*>(words.data());
    stream.avail_out = static_cast<uInt>(bytes);
    if (inflateInit2(&stream, gzip_format) != Z_OK) throw std::bad_alloc();
    const int result = inflate(&stream, Z_FINISH);  // compares the checksum, too
    inflateEnd(&stream);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    check(result == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0);
    return words;
}

std::string module_name(Module module, bool rolled) {
    return std::string(name_of(module)) + (rolled && info_of(module).forms == 2 ? "_rolled" : "");
}

Spirv spirv_of(Module module, bool rolled) {
    return decompress(compressed_spirv(module, rolled), module_name(module, rolled));
}

}  // namespace vkattn::core
