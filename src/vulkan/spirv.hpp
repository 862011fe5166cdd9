// The compiled modules of shaders/kernels.def, embedded by the build.
#pragma once

#include "plan/plan.hpp"

namespace vkattn::core {

struct Spirv {
    const uint32_t* words;
    size_t word_count;
};

// rolled: the module's form for CPUs, where it has two.
Spirv spirv_of(Module module, bool rolled);

}  // namespace vkattn::core
