// Conversions between the types of .npy arrays.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "npy.hpp"

namespace vkattn::tools {
namespace {

float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    std::uint32_t magnitude = ((exponent + 112) << 23) | (mantissa << 13);
    if (exponent == 0) magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    if (exponent == 31) magnitude = 0x7f800000u | (mantissa << 13);
    return std::bit_cast<float>(sign | magnitude);
}

// A NaN keeps the upper bits of its payload; one must stay set.
std::uint16_t float_to_half(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
        const std::uint32_t payload = (magnitude >> 13) & 0x3ffu;
        half = 0x7c00u | (payload != 0 ? payload : 0x200u);
    } else if (magnitude <
               0x38800000u) {  // below 2^-14: 0.5 has the ulp of a subnormal half, so the sum rounds
        half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) & 0x7ffu;
    } else {
        const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        half = std::min((rounded >> 13) - (112u << 10), 0x7c00u);
    }
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | half);
}

std::uint16_t float_to_bfloat(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<std::uint16_t>((bits >> 16) | ((bits & 0x7f0000u) != 0 ? 0u : 0x40u));
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// What lies between two floats becomes the one with an odd pattern: it is no tie of a narrower type, so that rounding
// it once more, to nearest, is as rounding `value` itself.
float round_to_odd(double value) {
    const auto nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
    auto bits = std::bit_cast<std::uint32_t>(nearest);
    if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
    return std::bit_cast<float>(bits | 1u);
}

template <typename Stored, typename Convert>
std::vector<float> decode(std::span<const std::byte> data, Convert convert) {
    std::vector<float> values(data.size() / sizeof(Stored));
    for (std::size_t i = 0; i < values.size(); ++i) {
        Stored stored;
        std::memcpy(&stored, &data[i * sizeof(Stored)], sizeof(Stored));
        values[i] = convert(stored);
    }
    return values;
}

template <typename Convert>
std::vector<std::byte> encode(std::span<const float> values, Convert convert) {
    using Stored = decltype(convert(0.0f));
    std::vector<std::byte> data(values.size() * sizeof(Stored));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const Stored stored = convert(values[i]);
        std::memcpy(&data[i * sizeof(Stored)], &stored, sizeof(Stored));
    }
    return data;
}

bool is_floating_point(NpyDtype dtype) {
    return dtype == NpyDtype::float16 || dtype == NpyDtype::bfloat16 || dtype == NpyDtype::float32 ||
           dtype == NpyDtype::float64;
}

NpyError not_floating_point(NpyDtype dtype) {
    return NpyError(fmt::format("dtype {} is not floating point", dtype_name(dtype)));
}

template <typename T>
T element_at(const NpyArray& array, std::size_t i) {
    T element;
    std::memcpy(&element, &array.data[i * sizeof(T)], sizeof(T));
    return element;
}

float bfloat_to_float(std::uint16_t x) {
    return std::bit_cast<float>(std::uint32_t{x} << 16);
}

double floating_point_at(const NpyArray& array, std::size_t i) {
    switch (array.dtype) {
        case NpyDtype::float16:
            return half_to_float(element_at<std::uint16_t>(array, i));
        case NpyDtype::bfloat16:
            return bfloat_to_float(element_at<std::uint16_t>(array, i));
        case NpyDtype::float32:
            return element_at<float>(array, i);
        default:
            return element_at<double>(array, i);
    }
}

}  // namespace

std::vector<float> to_float(const NpyArray& array) {
    require_consistent(array);
    const std::span<const std::byte> data = array.data;
    switch (array.dtype) {
        case NpyDtype::float16:
            return decode<std::uint16_t>(data, half_to_float);
        case NpyDtype::bfloat16:
            return decode<std::uint16_t>(data, bfloat_to_float);
        case NpyDtype::float32:
            return decode<float>(data, [](float x) { return x; });
        case NpyDtype::float64:
            return decode<double>(data, [](double x) { return static_cast<float>(x); });
        default:
            throw not_floating_point(array.dtype);
    }
}

NpyArray from_float(std::span<const float> values, std::vector<std::uint64_t> shape, NpyDtype dtype,
                    bool big_endian) {
    NpyArray array{dtype, big_endian, std::move(shape), {}};
    switch (dtype) {
        case NpyDtype::float16:
            array.data = encode(values, float_to_half);
            break;
        case NpyDtype::bfloat16:
            array.data = encode(values, float_to_bfloat);
            break;
        case NpyDtype::float32:
            array.data = encode(values, [](float x) { return x; });
            break;
        case NpyDtype::float64:
            array.data = encode(values, [](float x) { return double{x}; });
            break;
        default:
            throw not_floating_point(dtype);
    }
    require_consistent(array);
    return array;
}

NpyArray convert(const NpyArray& array, NpyDtype dtype) {
    if (array.dtype == dtype && is_floating_point(dtype)) return array;
    const bool narrows_twice = array.dtype == NpyDtype::float64 && item_bytes(dtype) == 2;
    const std::vector<float> values =
        narrows_twice ? decode<double>(array.data, round_to_odd) : to_float(array);
    return from_float(values, array.shape, dtype);
}

Overflows overflows(const NpyArray& before, const NpyArray& after) {
    const std::vector<float> values = to_float(after);
    Overflows found;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!std::isinf(values[i])) continue;
        const double value = floating_point_at(before, i);
        if (std::isinf(value)) continue;
        if (found.count++ > 0) continue;
        found.index = index_of(i, after.shape);
        found.value = value;
    }
    return found;
}

bool is_integer(NpyDtype dtype) {
    return dtype >= NpyDtype::int8;
}

std::vector<std::int64_t> to_integers(const NpyArray& array) {
    require_consistent(array);
    const auto all = [&]<class T>(T) {
        std::vector<std::int64_t> values(array.data.size() / sizeof(T));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = element_at<T>(array, i);
        return values;
    };
    switch (array.dtype) {
        case NpyDtype::int8:
            return all(std::int8_t{});
        case NpyDtype::uint8:
            return all(std::uint8_t{});
        case NpyDtype::int16:
            return all(std::int16_t{});
        case NpyDtype::uint16:
            return all(std::uint16_t{});
        case NpyDtype::int32:
            return all(std::int32_t{});
        case NpyDtype::uint32:
            return all(std::uint32_t{});
        case NpyDtype::int64:
            return all(std::int64_t{});
        default:
            throw NpyError(fmt::format("dtype {} is no integer", dtype_name(array.dtype)));
    }
}

std::vector<std::uint64_t> index_of(std::size_t element, std::span<const std::uint64_t> shape) {
    std::vector<std::uint64_t> index(shape.size());
    for (std::size_t d = shape.size(); d-- > 0;) {
        index[d] = element % shape[d];
        element /= static_cast<std::size_t>(shape[d]);
    }
    return index;
}

}  // namespace vkattn::tools
