// The ceilings are what the device can do at most, measured: the rates of float32 FMA and of the matrix units, and the
// bandwidths of a copy and of reading alone.
#pragma once

#include <optional>

#include "common.hpp"

namespace vkattn::tools {

struct Ceilings {
    double fma_tflops = 0;  // 2 operations an FMA
    // float16 operands, float32 accumulators, in the shape that the matrix kernels take; none: no matrix unit is
    // enabled.
    std::optional<double> matrix_tflops;
    double copy_gbps = 0;  // bytes read plus bytes written
    double read_gbps = 0;  // decoding reads nearly all that it moves
};

Ceilings measure_ceilings(Runtime& runtime);

std::string to_text(const Ceilings& ceilings);
// fma_tflops, matrix_tflops (null: none), copy_gbps, read_gbps; all of them are null where nothing was measured.
Json to_json(const std::optional<Ceilings>& ceilings);

// What the products of a kernel run on.
struct RateCeiling {
    double tflops;
    const char* name;
};
RateCeiling rate_ceiling(const Ceilings& ceilings, const std::string& kernel);

}  // namespace vkattn::tools
