// ggml's block types, of keys and values: 32 elements along head_dim; and single bytes, 32 of which are handled as a
// block. Written by the formats, without any of the library's code; shaders/lib/quantised.glsl has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace oracle {

constexpr std::size_t block_elements = 32;

// How a single byte is a number, without a factor beside it.
enum class Single { no, integer, e4m3, e5m2 };

struct BlockType {
    std::string_view name;
    std::size_t bytes;  // of a block
    unsigned bits;      // of a number: 4, 5 or 8
    bool has_least;     // a block has a smallest value, too
    bool is_table;      // numbers are places in a table
    Single single = Single::no;
};

std::span<const BlockType> block_types();

// Returns rows of whole blocks. Values are finite, and rounded as ggml does it without weights: blocks of 0 have the
// factor 0. Single bytes are the nearest numbers that are finite.
std::vector<std::byte> quantise(const BlockType& type, std::span<const double> values);
// Returns the e5m2 that is a number which is not finite, or the NaN of e4m3, which has no infinity.
std::byte nonfinite_single(Single kind, float x);
// Element i of such blocks, as float32 arithmetic has it.
double decode(const BlockType& type, const std::byte* blocks, std::size_t i);

}  // namespace oracle
