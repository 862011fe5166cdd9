// The package's tool uses this function to take the compiled kernels of the library beside it, so that the package has
// them once.
#pragma once

#include "vulkan/spirv.hpp"

// It is no part of the C ABI: only the package's own library has it, for the tool of the same build. *frame becomes
// what core::compressed_spirv returns, which the library keeps. The name is one that src/exports.map lets through.
extern "C" __attribute__((visibility("default"))) void vkattn_python_frame(const vkattn::core::Module* module,
                                                                           vkattn::core::Frame* frame);
