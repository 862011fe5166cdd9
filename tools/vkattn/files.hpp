// .npy files that arguments name: read, brought to the type of the computation, written all or none.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>

#include "common.hpp"

namespace vkattn::tools {

// What `action` says of the file, said of the argument.
template <class Action>
auto with_argument(const std::string& argument, const std::string& path, Action action) {
    try {
        return action();
    } catch (const NpyError& e) {
        throw UsageError(argument, fmt::format("{}: {}", path, e.what()));
    }
}

// An array, and how its file has it: what belongs to it is written alike.
struct FileArray {
    NpyArray array;
    NpyDtype file_dtype = NpyDtype::float32;
    bool file_big_endian = false;
};

// All that take an argument throw UsageError in its name.
FileArray read_file(const std::string& argument, const std::string& path);
// Into the storage type that was asked for; without one the file's must be a storage type.
void make_storable(const std::string& argument, const std::optional<NpyDtype>& wanted, FileArray& file);
void check_dtype(const std::string& argument, const NpyArray& array, NpyDtype query);
void check_shape(const std::string& argument, const NpyArray& array, const std::vector<uint64_t>& wanted,
                 const char* whose);

// None where it is no storage type.
std::optional<VkattnDtype> storage_dtype(NpyDtype dtype);

struct OutputFile {
    std::string argument, path;
    NpyArray array;  // filled in later
};

// Each has a path of its own.
void check_outputs(std::span<const OutputFile> files);
// All or none; the first appears last.
void write_all(std::span<const OutputFile> files);

}  // namespace vkattn::tools
