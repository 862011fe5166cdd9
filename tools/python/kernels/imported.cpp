// This file is in the package's tool, in place of src/vulkan/embedded.cpp.
#include "shared.hpp"

namespace vkattn::core {

Frame compressed_spirv(const Module& module) {
    Frame frame;
    vkattn_python_frame(&module, &frame);
    return frame;
}

}  // namespace vkattn::core
