#include <fmt/format.h>

#include "../oracle/blocks.hpp"
#include "commands.hpp"

namespace reference {
namespace {

using namespace vkattn::tools;

const oracle::BlockType& type_named(const std::string& name) {
    for (const oracle::BlockType& type : oracle::block_types())
        if (type.name == name) return type;
    throw UsageError(fmt::format("--type: '{}' is no type of blocks", name));
}

// Reads an array whose last extent is a multiple of `unit`.
NpyArray read_rows_of(const BlocksOptions& options, std::size_t unit, const char* what) {
    NpyArray array = read_argument("--in", options.in);
    if (array.shape.empty() || array.shape.back() % unit != 0)
        throw UsageError(fmt::format("--in: the last extent is not a multiple of {}, {}", unit, what));
    return array;
}

void write(const BlocksOptions& options, const NpyArray& array) {
    try {
        write_npy(options.out, array);
    } catch (const NpyError& error) {
        throw UsageError(fmt::format("--out: {}", error.what()));
    }
}

}  // namespace

int quantise(const BlocksOptions& options) {
    const oracle::BlockType& type = type_named(options.type);
    const NpyArray array = read_rows_of(options, oracle::block_elements, "the elements of a block");
    const std::vector<float> values = to_float(array);
    NpyArray blocks{NpyDtype::uint8, false, array.shape,
                    oracle::quantise(type, std::vector<double>(values.begin(), values.end()))};
    blocks.shape.back() = array.shape.back() / oracle::block_elements * type.bytes;
    write(options, blocks);
    return 0;
}

int decode(const BlocksOptions& options) {
    const oracle::BlockType& type = type_named(options.type);
    const NpyArray blocks = read_rows_of(options, type.bytes, "the bytes of a block");
    if (blocks.dtype != NpyDtype::uint8 && (blocks.dtype != NpyDtype::int8 || type.name != "int8"))
        throw UsageError("--in: blocks are given as uint8");
    std::vector<std::uint64_t> shape = blocks.shape;
    shape.back() = shape.back() / type.bytes * oracle::block_elements;
    std::vector<float> values(blocks.data.size() / type.bytes * oracle::block_elements);
    for (std::size_t i = 0; i < values.size(); i++)
        values[i] = static_cast<float>(oracle::decode(type, blocks.data.data(), i));
    write(options, from_float(values, shape, NpyDtype::float32));
    return 0;
}

void declare_blocks(CLI::App& command, BlocksOptions& options) {
    command.add_option("--type", options.type, "q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, int8, e4m3 or e5m2")
        ->required();
    command.add_option("--in", options.in, ".npy")->required();
    command.add_option("--out", options.out, ".npy")->required();
}

}  // namespace reference
