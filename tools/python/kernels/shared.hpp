// By this function the package's tool takes the compiled kernels of the library beside it, so that the package has them
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vulkan/spirv.hpp"

// It is no part of the C ABI: only the package's own library has it, for the tool of the same build. `frame` is what
// core::compressed_spirv returns. The name is one that src/exports.map lets through.
extern "C" __attribute__((visibility("default"))) void vkattn_python_frame(const vkattn::core::Module* module,
                                                                           const uint8_t** frame,
                                                                           size_t* bytes);
