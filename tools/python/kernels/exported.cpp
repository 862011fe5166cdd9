// This file is in the package's libvkattn.
#include "shared.hpp"

void vkattn_python_frame(const vkattn::core::Module* module, vkattn::core::Frame* frame) {
    *frame = vkattn::core::compressed_spirv(*module);
}
