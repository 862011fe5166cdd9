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
// Into the storage type that was asked for; without one the file's must be a storage type. A warning on stderr counts
// the numbers that are too large for the type.
void make_storable(const std::string& argument, const std::optional<NpyDtype>& wanted, FileArray& file);
void check_dtype(const std::string& argument, const NpyArray& array, NpyDtype query);
void check_shape(const std::string& argument, const NpyArray& array, const std::vector<uint64_t>& wanted,
                 const char* whose);

// None where it is no storage type.
std::optional<VkattnDtype> storage_dtype(NpyDtype dtype);

// What was computed, as its file is to have it: in the type and byte order of the file that it belongs to, or in the
// type that was asked for. `argument` names what was computed.
NpyArray like_file(const std::string& argument, NpyArray computed, const FileArray& like,
                   const std::optional<NpyDtype>& wanted);

struct NamedFile {
    std::string argument, path;
};

struct OutputFile {
    std::string argument, path;
    NpyArray array;  // filled in later
};

// Each output has a path of its own, in a folder that exists, under which nothing lies that is read. pipeline_cache,
// which may be empty, is written.
void check_outputs(std::span<const OutputFile> outputs, std::span<const NamedFile> inputs,
                   const std::string& pipeline_cache);
// These write the file of text that an option names, and find out beforehand whether it can be written: what is there
// stays then.
void write_text(const std::string& option, const std::string& path, const std::string& text);
void check_writable(const std::string& option, const std::string& path);

// All or none; the first appears last.
void write_all(std::span<const OutputFile> files);

}  // namespace vkattn::tools
