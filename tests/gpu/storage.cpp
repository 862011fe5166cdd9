#include "storage.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace vkattn::test {
namespace {

// Returns the bits of a float that float16 can represent.
uint16_t half_of(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x7f800000) return static_cast<uint16_t>(sign | 0x7c00 | (magnitude >> 13 & 0x3ff));
    if (magnitude < 0x38800000)  // below 2^-14: a multiple of 2^-24
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::fabs(x) * 0x1p24f));
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000) >> 13));
}

float float_of(uint16_t half) {
    const uint32_t sign = uint32_t{half} >> 15 << 31, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    const float magnitude = exponent == 0 ? static_cast<float>(fraction) * 0x1p-24f
                                          : std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace

const oracle::BlockType* blocks_of(VkattnDtype dtype) {
    const auto place = static_cast<size_t>(dtype) - VKATTN_DTYPE_Q8_0;
    return place < oracle::block_types().size() ? &oracle::block_types()[place] : nullptr;
}

bool is_single_bytes(VkattnDtype dtype) {
    const oracle::BlockType* const blocks = blocks_of(dtype);
    return blocks != nullptr && blocks->single != oracle::Single::no;
}

uint64_t bytes_of(VkattnDtype dtype, uint64_t elements) {
    const oracle::BlockType* const blocks = blocks_of(dtype);
    return blocks != nullptr ? elements / oracle::block_elements * blocks->bytes
                             : elements * element_bytes(dtype);
}

const char* name_of(VkattnDtype dtype) {
    if (const oracle::BlockType* const blocks = blocks_of(dtype)) return blocks->name.data();
    return dtype == VKATTN_DTYPE_FLOAT16 ? "f16" : dtype == VKATTN_DTYPE_BFLOAT16 ? "bf16" : "f32";
}

oracle::StorageType storage_of(VkattnDtype dtype) {
    if (dtype == VKATTN_DTYPE_FLOAT16) return oracle::StorageType::float16;
    if (dtype == VKATTN_DTYPE_BFLOAT16) return oracle::StorageType::bfloat16;
    return oracle::StorageType::float32;
}

double rounded(double x, VkattnDtype dtype) {
    return static_cast<double>(oracle::round_to_storage(static_cast<float>(x), storage_of(dtype)));
}

void store(std::byte* to, double x, VkattnDtype dtype) {
    const auto value = static_cast<float>(rounded(x, dtype));
    if (dtype == VKATTN_DTYPE_FLOAT32) {
        std::memcpy(to, &value, sizeof value);
        return;
    }
    const auto half = dtype == VKATTN_DTYPE_FLOAT16
                          ? half_of(value)
                          : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    std::memcpy(to, &half, sizeof half);
}

float load(const std::byte* from, VkattnDtype dtype) {
    if (dtype == VKATTN_DTYPE_FLOAT32) {
        float value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    return dtype == VKATTN_DTYPE_FLOAT16 ? float_of(half) : std::bit_cast<float>(uint32_t{half} << 16);
}

float load_element(const std::byte* row, uint64_t i, VkattnDtype dtype) {
    if (const oracle::BlockType* const blocks = blocks_of(dtype))
        return static_cast<float>(oracle::decode(*blocks, row, i));
    return load(row + i * element_bytes(dtype), dtype);
}

void store_row(std::byte* to, std::span<const double> values, VkattnDtype dtype) {
    if (const oracle::BlockType* const blocks = blocks_of(dtype)) {
        const std::vector<std::byte> stored = oracle::quantise(*blocks, values);
        std::ranges::copy(stored, to);
        return;
    }
    for (size_t i = 0; i < values.size(); i++) store(to + i * element_bytes(dtype), values[i], dtype);
}

double lowest(VkattnDtype dtype) {
    if (dtype == VKATTN_DTYPE_FLOAT16) return -65504;
    return dtype == VKATTN_DTYPE_BFLOAT16 ? -0x1.fep127 : -0x1.fffffep127;
}

}  // namespace vkattn::test
