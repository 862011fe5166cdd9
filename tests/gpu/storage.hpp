// Elements as they lie in memory: float32, float16, bfloat16, ggml's blocks and single bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oracle/attention.hpp"
#include "oracle/blocks.hpp"
#include "vkattn/types.h"

namespace vkattn::test {

constexpr uint32_t element_bytes(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
}
// Returns how a type's blocks are made, or null for a float type.
const oracle::BlockType* blocks_of(VkattnDtype dtype);
// True for the types that may have scales.
bool is_single_bytes(VkattnDtype dtype);
// Returns the bytes of `elements` elements, which fill whole blocks.
uint64_t bytes_of(VkattnDtype dtype, uint64_t elements);
const char* name_of(VkattnDtype dtype);  // as in case lines
oracle::StorageType storage_of(VkattnDtype dtype);

// As the type has it: rounded to nearest, ties to even.
double rounded(double x, VkattnDtype dtype);
void store(std::byte* to, double x, VkattnDtype dtype);
// Exact, payloads of NaNs included: other bits are another float.
float load(const std::byte* from, VkattnDtype dtype);
// Returns element i of a row, whatever its type.
float load_element(const std::byte* row, uint64_t i, VkattnDtype dtype);
void store_row(std::byte* to, std::span<const double> values, VkattnDtype dtype);

double lowest(VkattnDtype dtype);  // the largest finite number's negative

}  // namespace vkattn::test
