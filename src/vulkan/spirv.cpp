#include "spirv.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>
#include <stdexcept>

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "spirv_ids.hpp"

namespace vkattn::core {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the embedded modules consist of little-endian words");

// The most that a module may take, so that a damaged frame does not allocate gigabytes.
constexpr uint64_t most_bytes = uint64_t{64} << 20;

void check(bool good, std::string_view name) {
    if (!good) throw std::runtime_error(fmt::format("module {} is damaged inside this copy of vkattn", name));
}

// Returns the words that were compressed, with ids as distances.
Spirv decompress_words(const Frame& frame, std::string_view name) {
    const std::span<const uint8_t> data = frame.data();
    // The values that stand for errors and for a size that is not known are larger than any module.
    const uint64_t bytes = ZSTD_getFrameContentSize(data.data(), data.size());
    check(bytes != 0 && bytes <= most_bytes && bytes % sizeof(uint32_t) == 0, name);
    check(ZSTD_findFrameCompressedSize(data.data(), data.size()) == data.size(),
          name);  // there is one frame
    const Spirv prefix = frame.prefix != nullptr ? decompress_words(*frame.prefix, name) : Spirv{};
    Spirv words(bytes / sizeof(uint32_t));
    const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
    if (context == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_refPrefix(context.get(), prefix.data(), prefix.size() * sizeof(uint32_t));
    // This compares the checksum.
    const size_t result = ZSTD_decompressDCtx(context.get(), words.data(), bytes, data.data(), data.size());
    if (ZSTD_isError(result) != 0 && ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation)
        throw std::bad_alloc();
    check(result == bytes, name);
    return words;
}

}  // namespace

Spirv decompress(const Frame& frame, std::string_view name) {
    Spirv words = decompress_words(frame, name);
    check(distances_to_ids(words), name);
    return words;
}

Spirv spirv_of(const Module& module) {
    return decompress(compressed_spirv(module), name_of(module));
}

std::string why_no_module(const Spirv& words, const KernelInfo& kernel) {
    // Numbers of the SPIR-V specification, sections 2.3, 3.3, 3.20 and 3.49. Vulkan allows no larger bound of ids.
    constexpr uint32_t magic = 0x07230203, most_ids = 4194303, header_words = 5, compute = 5, spec_id = 1,
                       builtin = 11, op_entry_point = 15, op_capability = 17, op_composite = 51,
                       op_operation = 52, op_decorate = 71;
    if (words.size() < header_words || words[0] != magic) return "is no SPIR-V of this machine's byte order";
    if (words[3] > most_ids) return fmt::format("has a bound of {} ids", words[3]);
    size_t entries = 0, mains = 0;
    for (size_t at = header_words, length = 0; at < words.size(); at += length) {
        length = words[at] >> 16;
        if (length == 0 || length > words.size() - at) return "does not consist of whole instructions";
        const std::span<const uint32_t> i(&words[at], length);
        const uint32_t opcode = i[0] & 0xffff;
        const bool numbers = opcode == op_decorate && length > 2 && (i[2] == spec_id || i[2] == builtin);
        const size_t least = opcode == op_entry_point || opcode == op_operation || numbers ? 4
                             : opcode == op_decorate || opcode == op_composite             ? 3
                                                                                           : 1;
        if (length < least) return "has an instruction that is too short";
        if (numbers && i[2] == spec_id && i[3] >= kernel.constants.size())
            return fmt::format("has a specialization constant {}; {} has {}", i[3], kernel.name,
                               kernel.constants.size());
        constexpr uint32_t name[] = {0x6e69616d, 0};
        if (opcode == op_capability && entries != 0) return "has a capability behind its entry point";
        entries += opcode == op_entry_point;
        if (opcode == op_entry_point && i[1] == compute && length > 4 && i[3] == name[0] && i[4] == name[1])
            mains++;
    }
    return entries == 1 && mains == 1 ? "" : "has not exactly one entry point, a compute shader `main`";
}

Spirv preserving_nonfinite(const Spirv& module) {
    constexpr uint32_t header_words = 5, op_entry_point = 15, op_execution_mode = 16, op_capability = 17,
                       op_execution_mode_id = 331, capability = 4466, execution_mode = 4461, width = 32;
    size_t capabilities_end = header_words, modes_end = 0;
    uint32_t main = 0;
    for (size_t at = header_words; at < module.size(); at += module[at] >> 16) {
        const uint32_t opcode = module[at] & 0xffff;
        const size_t end = at + (module[at] >> 16);
        if (opcode == op_capability) capabilities_end = end;
        if (opcode == op_entry_point) main = module[at + 2];
        if (opcode == op_entry_point || opcode == op_execution_mode || opcode == op_execution_mode_id)
            modes_end = end;
    }
    const uint32_t declares[] = {2u << 16 | op_capability, capability};
    const uint32_t sets[] = {4u << 16 | op_execution_mode, main, execution_mode, width};
    Spirv changed = module;
    changed.insert(changed.begin() + static_cast<ptrdiff_t>(modes_end), std::begin(sets), std::end(sets));
    changed.insert(changed.begin() + static_cast<ptrdiff_t>(capabilities_end), std::begin(declares),
                   std::end(declares));
    return changed;
}

}  // namespace vkattn::core
