// The compiled modules of shaders/modules.def, which the build embeds as Zstandard frames, their ids as spirv_ids.hpp
// writes them. Pipelines are built from them (context.cpp), and pipeline_constants.cpp looks for the constants that
// they read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace vkattn::core {

using Spirv = std::vector<uint32_t>;

// A module as the build embeds it: the bytes of a Zstandard frame. The modules of a kernel are alike, so that one of
// them is the prefix with which another is compressed (ZSTD_CCtx_refPrefix); src/shaders.cmake says which.
struct Frame {
    const uint64_t* words = nullptr;
    size_t bytes = 0;
    const Frame* prefix = nullptr;

    std::span<const uint8_t> data() const { return {reinterpret_cast<const uint8_t*>(words), bytes}; }
};

// Every call decompresses the module again, so callers keep what they need more than once.
Spirv spirv_of(const Module& module);

// The module with the execution mode SignedZeroInfNanPreserve for float32 (SPIR-V 1.5, section 3.6): its compiler may
// then not assume that there is no NaN and no infinity. For devices that have
// VkPhysicalDeviceFloatControlsProperties::shaderSignedZeroInfNanPreserveFloat32.
Spirv preserving_nonfinite(const Spirv& module);

// Tells why these words are no module of a kernel, or "": what the functions above and constants_read() rely on, and no
// more than that.
std::string why_no_module(const Spirv& words, const KernelInfo& kernel);

// Throws std::runtime_error with the module's name if the bytes are not a whole, undamaged frame of a module. An
// exception and no Failure, because only a damaged library can be the cause: nobody shall choose another kernel then.
Spirv decompress(const Frame& frame, std::string_view name);

// The module as it lies in the library; without bytes if the build has left it out.
Frame compressed_spirv(const Module& module);

}  // namespace vkattn::core
