// vkattn_npy_make FILE DESCR ORDER SHAPE VALUES: writes a .npy file. DESCR: <f4 >f4 <f2 >f2 <f8 bfloat16 |b1, integers
// such as |u1 and <i8, or anything else of 8 bytes, such as |O; ORDER: c or fortran; SHAPE as in 1,2,8,16, or - for one
// value without axes. Shares no code with the library. VALUES:
//   SEED        small numbers that follow from it and the index alone, and that every float type holds exactly: files
//               that differ only in type, byte order or axis order hold the same tensor
//   mask:SEED   of these numbers one in four is -inf (false), and all of every fifth row of the last axis
//   =A,B,..     these numbers, repeated; those of a 16-bit type must be exact in it, and not subnormal
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Shape = std::vector<std::uint64_t>;

Shape parse_shape(const std::string& text) {
    Shape shape;
    std::istringstream stream(text == "-" ? "" : text);
    for (std::string extent; std::getline(stream, extent, ',');) shape.push_back(std::stoull(extent));
    return shape;
}

// A multiple of 1/16 below 2 in magnitude: five bits.
float number(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t bits = (seed << 40) + index + 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>(static_cast<int>(bits >> 59) - 16) / 16.0f + 1.0f / 32.0f;
}

// What the last argument asks for.
class Values {
  public:
    Values(const std::string& text, const Shape& shape) : columns_(shape.empty() ? 1 : shape.back()) {
        std::istringstream stream(text.substr(text.starts_with('=') ? 1 : 0));
        if (text.starts_with('='))
            for (std::string value; std::getline(stream, value, ',');) list_.push_back(std::stod(value));
        mask_ = text.starts_with("mask:");
        if (list_.empty()) seed_ = std::stoull(mask_ ? text.substr(5) : text);
    }

    double at(std::uint64_t index) const {
        if (!list_.empty()) return list_[index % list_.size()];
        if (mask_ && (index / columns_ % 5 == 4 || number(seed_ + 1, index) < -0.5f))
            return -std::numeric_limits<double>::infinity();
        return double{number(seed_, index)};
    }

  private:
    std::uint64_t columns_;
    std::vector<double> list_;
    std::uint64_t seed_ = 0;
    bool mask_ = false;
};

// float16 of a number that it holds exactly, but for subnormals.
std::uint64_t half_bits(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude == 0) return sign;
    return sign | (std::isinf(x) ? 0x7c00u : (magnitude >> 13) - (112u << 10));
}

// The item's bytes, the lowest first.
std::string encode(const std::string& type, double x) {
    const auto narrow = static_cast<float>(x);
    std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
    std::size_t bytes = 8;
    if (type == "f4") bits = std::bit_cast<std::uint32_t>(narrow), bytes = 4;
    if (type == "f2") bits = half_bits(narrow), bytes = 2;
    if (type == "bfloat16") bits = std::bit_cast<std::uint32_t>(narrow) >> 16, bytes = 2;
    if (type == "b1") bits = x > -HUGE_VAL && x != 0, bytes = 1;
    if (type[0] == 'i' || type[0] == 'u') {
        bits = static_cast<std::uint64_t>(std::llround(x));
        bytes = static_cast<std::size_t>(type[1] - '0');
    }
    std::string item;
    for (std::size_t i = 0; i < bytes; ++i) item += static_cast<char>(bits >> (8 * i) & 0xff);
    return item;
}

// Where the item that comes `place`th in Fortran order, the first axis fastest, stands in C order.
std::uint64_t c_index(const Shape& shape, std::uint64_t place) {
    std::uint64_t index = 0;
    std::uint64_t stride = std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
    for (const std::uint64_t extent : shape) {
        stride /= extent;
        index += place % extent * stride;
        place /= extent;
    }
    return index;
}

std::string header(const std::string& descr, bool fortran, const Shape& shape) {
    std::string text =
        "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") + ", 'shape': (";
    for (const std::uint64_t extent : shape) text += std::to_string(extent) + ",";
    text += "), }";
    text.resize(117, ' ');  // 128 bytes with what comes before and after
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(text.size() + 1) + '\0' + text + '\n';
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: vkattn_npy_make FILE DESCR c|fortran SHAPE VALUES\n");
        return 2;
    }
    const std::string descr = argv[2];
    const bool big_endian = descr.front() == '>';
    const bool fortran = argv[3] == std::string("fortran");
    const Shape shape = parse_shape(argv[4]);
    const Values values(argv[5], shape);
    const std::string type = descr == "bfloat16" ? descr : descr.substr(1);
    const std::uint64_t count =
        std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());

    std::ofstream file(argv[1], std::ios::binary);
    file << header(descr, fortran, shape);
    for (std::uint64_t place = 0; place < count; ++place) {
        std::string item = encode(type, values.at(fortran ? c_index(shape, place) : place));
        if (big_endian) std::reverse(item.begin(), item.end());
        file << item;
    }
    return file.flush() ? 0 : 1;
}
