#include "blocks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "attention.hpp"

namespace oracle {
namespace {

constexpr int table[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr BlockType types[] = {{"q8_0", 34, 8, false, false},
                               {"q4_0", 18, 4, false, false},
                               {"q4_1", 20, 4, true, false},
                               {"q5_0", 22, 5, false, false},
                               {"q5_1", 24, 5, true, false},
                               {"iq4_nl", 18, 4, false, true},
                               {"int8", 32, 8, false, false, Single::integer},
                               {"e4m3", 32, 8, false, false, Single::e4m3},
                               {"e5m2", 32, 8, false, false, Single::e5m2}};

// By the OCP's 8-bit floating point specification, table 1.
double single_of(Single kind, std::byte byte) {
    const auto code = static_cast<int>(byte);
    if (kind == Single::integer) return static_cast<int8_t>(byte);
    const int fraction_bits = kind == Single::e4m3 ? 3 : 2, bias = kind == Single::e4m3 ? 7 : 15;
    const int magnitude = code & 127, exponent = magnitude >> fraction_bits;
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    const double sign = code >= 128 ? -1 : 1;
    if (kind == Single::e4m3 && magnitude == 127) return std::nan("");
    if (kind == Single::e5m2 && exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
    const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    return sign * std::ldexp(whole, std::max(exponent, 1) - bias - fraction_bits);
}

std::byte nearest_single(Single kind, double x) {
    int nearest = 0;
    double least = INFINITY;
    for (int code = 0; code < 256; code++) {
        const double distance = std::fabs(single_of(kind, static_cast<std::byte>(code)) - x);
        if (!(distance < least)) continue;
        nearest = code;
        least = distance;
    }
    return static_cast<std::byte>(nearest);
}

// Where a block's parts begin, in bytes: factor, least, high bits, numbers.
struct Parts {
    std::size_t high, numbers;
    explicit Parts(const BlockType& type)
        : high(type.has_least ? 4 : 2), numbers(high + (type.bits == 5 ? 4 : 0)) {}
};

double half_at(const std::byte* at) {
    uint16_t bits = 0;
    std::memcpy(&bits, at, 2);
    const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    const double sign = bits >> 15 != 0 ? -1 : 1;
    if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

// Stores a float16, and returns it.
double put_half(std::byte* at, double x) {
    const double half = static_cast<double>(round_to_storage(static_cast<float>(x), StorageType::float16));
    const double size = std::fabs(half);
    int exponent = 0;
    std::frexp(size, &exponent);  // size = 0.5 .. 1 times 2^exponent
    const bool is_subnormal = size < 0x1p-14;
    const auto fraction =
        static_cast<uint16_t>(is_subnormal ? std::ldexp(size, 24) : std::ldexp(size, 11 - exponent) - 1024);
    const auto bits = static_cast<uint16_t>((std::signbit(half) ? 0x8000 : 0) |
                                            (is_subnormal ? 0 : (exponent + 14) << 10) | fraction);
    std::memcpy(at, &bits, 2);
    return half;
}

int number_at(const BlockType& type, const std::byte* block, std::size_t j) {
    const Parts parts(type);
    if (type.bits == 8) return static_cast<int8_t>(block[parts.numbers + j]);
    const auto both = static_cast<unsigned>(block[parts.numbers + j % 16]);
    unsigned number = j < 16 ? both & 15 : both >> 4;
    if (type.bits == 5) number |= (static_cast<unsigned>(block[parts.high + j / 8]) >> j % 8 & 1) << 4;
    if (type.is_table) return table[number];
    return static_cast<int>(number) - (type.has_least ? 0 : type.bits == 5 ? 16 : 8);
}

void put_number(const BlockType& type, std::byte* block, std::size_t j, int number) {
    const Parts parts(type);
    const auto bits = static_cast<unsigned>(number);
    if (type.bits == 8) {
        block[parts.numbers + j] = static_cast<std::byte>(bits & 255);
        return;
    }
    block[parts.numbers + j % 16] |= static_cast<std::byte>((bits & 15) << (j < 16 ? 0 : 4));
    if (type.bits == 5) block[parts.high + j / 8] |= static_cast<std::byte>((bits >> 4 & 1) << j % 8);
}

int nearest_in_table(double x) {
    const auto nearer = [&](int a, int b) { return std::fabs(x - a) < std::fabs(x - b); };
    return static_cast<int>(std::ranges::min_element(table, nearer) - table);
}

void quantise_block(const BlockType& type, std::span<const double> x, std::byte* block) {
    if (type.single != Single::no) {
        for (std::size_t j = 0; j < x.size(); j++) block[j] = nearest_single(type.single, x[j]);
        return;
    }
    const auto [least, most] = std::ranges::minmax_element(x);
    const double extreme = std::fabs(*least) > std::fabs(*most) ? *least : *most;
    const double steps = type.bits == 5 ? 31 : 15, middle = type.bits == 5 ? 16 : 8;
    const double wanted = type.has_least   ? (*most - *least) / steps
                          : type.bits == 8 ? std::fabs(extreme) / 127
                          : type.is_table  ? extreme / table[0]
                                           : -extreme / middle;
    const double factor = put_half(block, wanted);
    const double smallest = type.has_least ? put_half(block + 2, *least) : 0;
    for (std::size_t j = 0; j < x.size(); j++) {
        const double of_step = factor != 0 ? (x[j] - smallest) / factor : 0;
        int number = 0;
        if (type.is_table)
            number = nearest_in_table(of_step);
        else if (type.bits == 8)
            number = static_cast<int>(std::clamp(std::round(of_step), -128.0, 127.0));
        else
            number = static_cast<int>(
                std::clamp(std::floor(of_step + (type.has_least ? 0.5 : middle + 0.5)), 0.0, steps));
        put_number(type, block, j, number);
    }
}

}  // namespace

std::span<const BlockType> block_types() {
    return types;
}

std::vector<std::byte> quantise(const BlockType& type, std::span<const double> values) {
    std::vector<std::byte> blocks(values.size() / block_elements * type.bytes);
    for (std::size_t b = 0; b * block_elements < values.size(); b++)
        quantise_block(type, values.subspan(b * block_elements, block_elements),
                       blocks.data() + b * type.bytes);
    return blocks;
}

std::byte nonfinite_single(Single kind, float x) {
    if (kind == Single::e4m3 || std::isnan(x)) return std::byte{0x7f};
    return std::signbit(x) ? std::byte{0xfc} : std::byte{0x7c};
}

double decode(const BlockType& type, const std::byte* blocks, std::size_t i) {
    const std::byte* const block = blocks + i / block_elements * type.bytes;
    if (type.single != Single::no) return single_of(type.single, block[i % block_elements]);
    const double x = half_at(block) * number_at(type, block, i % block_elements);
    return static_cast<double>(static_cast<float>(type.has_least ? x + half_at(block + 2) : x));
}

}  // namespace oracle
