#include "spirv.hpp"

#include <bit>
#include <new>
#include <stdexcept>

#include <fmt/format.h>
#include <lzma.h>

namespace vkattn::core {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the embedded modules consist of little-endian words");

// The most that a module, and the decoder of one, may take, so that a damaged stream does not allocate gigabytes. A
// decoder of level 6, which compressed_text.cmake compresses with, needs 9 MiB.
constexpr uint64_t most_memory_bytes = uint64_t{64} << 20;

// The bytes of the decompressed data by the stream's index, which its footer finds from the end; 0 if they are damaged.
uint64_t bytes_inside(std::span<const uint8_t> xz) {
    lzma_stream_flags footer{};
    if (xz.size() < 2 * LZMA_STREAM_HEADER_SIZE) return 0;
    const size_t end = xz.size() - LZMA_STREAM_HEADER_SIZE;
    if (lzma_stream_footer_decode(&footer, xz.data() + end) != LZMA_OK || footer.backward_size > end)
        return 0;
    uint64_t memory_bytes = most_memory_bytes;
    size_t at = end - static_cast<size_t>(footer.backward_size);
    lzma_index* index = nullptr;
    const lzma_ret result = lzma_index_buffer_decode(&index, &memory_bytes, nullptr, xz.data(), &at, end);
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    const uint64_t bytes = index != nullptr ? lzma_index_uncompressed_size(index) : 0;
    lzma_index_end(index, nullptr);
    return bytes <= most_memory_bytes ? bytes : 0;
}

}  // namespace

Spirv decompress(std::span<const uint8_t> xz, std::string_view name) {
    const auto check = [&](bool good) {
        if (!good)
            throw std::runtime_error(fmt::format("module {} is damaged inside this copy of vkattn", name));
    };
    const uint64_t bytes = bytes_inside(xz);
    check(bytes != 0 && bytes % sizeof(uint32_t) == 0);
    Spirv words(bytes / sizeof(uint32_t));
    uint64_t memory_bytes = most_memory_bytes;
    size_t in = 0, out = 0;
    const lzma_ret result =  // compares the checksum, too
        lzma_stream_buffer_decode(&memory_bytes, 0, nullptr, xz.data(), &in, xz.size(),
                                  reinterpret_cast<uint8_t*>(words.data()), &out, bytes);
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    check(result == LZMA_OK && in == xz.size() && out == bytes);
    return words;
}

std::string module_name(Module module, bool rolled) {
    return std::string(name_of(module)) + (rolled && info_of(module).forms == 2 ? "_rolled" : "");
}

Spirv spirv_of(Module module, bool rolled) {
    return decompress(compressed_spirv(module, rolled), module_name(module, rolled));
}

}  // namespace vkattn::core
