// The compiled variants of shaders/variants.def, embedded by the build.
#pragma once

#include "plan/plan.hpp"

namespace vkattn::core {

struct Spirv {
    const uint32_t* words;
    size_t word_count;
};

// rolled: the module for CPUs, where the variant has one (SPEC_ROLLED).
Spirv spirv_of(Variant variant, bool rolled);

}  // namespace vkattn::core
