// The compiled variants of shaders/variants.def. The build embeds each module in the gzip format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace vkattn::core {

using Spirv = std::vector<uint32_t>;

// rolled asks for the module for CPUs, where the variant has one (SPEC_ROLLED). Every call decompresses the module
// again, which takes a few milliseconds at most, so callers keep what they need more than once.
Spirv spirv_of(Variant variant, bool rolled);

// The variant's name, with "_rolled" behind it where that is a module of its own.
std::string module_name(Variant variant, bool rolled);

// Throws std::runtime_error with the module's name if the bytes are not a whole, undamaged gzip stream of words. An
// exception and no Failure, because only a damaged library can be the cause: nobody shall choose another kernel then.
Spirv decompress(std::span<const uint8_t> gzip, std::string_view name);

// The module as it lies in the library.
std::span<const uint8_t> compressed_spirv(Variant variant, bool rolled);

}  // namespace vkattn::core
