#include "modules.hpp"

#include "modules.inc"
#include "vulkan/spirv.hpp"

namespace vkattn::test {

std::map<std::string, std::vector<uint32_t>> variant_modules() {
    std::map<std::string, std::vector<uint32_t>> all;
#define EACH(kernel, macros, frame) all[std::string(#frame).substr(5)] = core::decompress(frame, #frame);
    EMBEDDED_MODULES(EACH)
    return all;
}

}  // namespace vkattn::test
