// What the device can do at most, measured: float32 FMA rate and copy bandwidth.
#pragma once

#include "vkattn/runtime.hpp"

namespace vkattn::tools {

struct Ceilings {
    double fma_tflops = 0;  // 2 operations an FMA
    double copy_gbps = 0;   // bytes read plus bytes written
};

Ceilings measure_ceilings(Runtime& runtime);

}  // namespace vkattn::tools
