// Elements as they lie in memory: float32, float16, bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oracle/attention.hpp"
#include "vkattn/types.h"

namespace vkattn::test {

constexpr uint32_t element_bytes(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
}
const char* name_of(VkattnDtype dtype);  // as in case lines
oracle::StorageType storage_of(VkattnDtype dtype);

// As the type has it: rounded to nearest, ties to even.
double rounded(double x, VkattnDtype dtype);
void store(std::byte* to, double x, VkattnDtype dtype);
// Exact, payloads of NaNs included: other bits are another float.
float load(const std::byte* from, VkattnDtype dtype);

double lowest(VkattnDtype dtype);  // the largest finite number's negative

}  // namespace vkattn::test
