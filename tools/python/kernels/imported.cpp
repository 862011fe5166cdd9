// This file is in the package's tool, in place of src/vulkan/embedded.cpp.
#include "shared.hpp"

namespace vkattn::core {

std::span<const uint8_t> compressed_spirv(const Module& module) {
    const uint8_t* frame = nullptr;
    size_t bytes = 0;
    vkattn_python_frame(&module, &frame, &bytes);
    return {frame, bytes};
}

}  // namespace vkattn::core
