// This file is in the package's libvkattn.
#include "shared.hpp"

void vkattn_python_frame(const vkattn::core::Module* module, const uint8_t** frame, size_t* bytes) {
    const auto found = vkattn::core::compressed_spirv(*module);
    *frame = found.data();
    *bytes = found.size();
}
