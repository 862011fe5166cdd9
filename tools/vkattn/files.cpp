#include "files.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

namespace vkattn::tools {
namespace {

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

}  // namespace

FileArray read_file(const std::string& argument, const std::string& path) {
    FileArray file{with_argument(argument, path, [&] { return read_npy(path); })};
    file.file_dtype = file.array.dtype;
    file.file_big_endian = file.array.big_endian;
    return file;
}

std::optional<VkattnDtype> storage_dtype(NpyDtype dtype) {
    for (VkattnDtype d : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        if (npy_dtype(d) == dtype) return d;
    return std::nullopt;
}

void make_storable(const std::string& argument, const std::optional<NpyDtype>& wanted, FileArray& file) {
    const NpyDtype dtype = file.array.dtype;
    if (!wanted) {
        if (storage_dtype(dtype)) return;
        const bool convertible = dtype == NpyDtype::float64;
        throw UsageError(argument,
                         fmt::format("dtype {} is not float32, float16 or bfloat16{}", dtype_name(dtype),
                                     convertible ? "; --dtype converts it" : ""));
    }
    try {
        file.array = convert(std::move(file.array), *wanted);
    } catch (const NpyError& e) {
        throw UsageError(argument, e.what());
    }
}

void check_dtype(const std::string& argument, const NpyArray& array, NpyDtype query) {
    if (array.dtype != query)
        throw UsageError(argument, fmt::format("dtype {} differs from --query's {}; --dtype converts",
                                               dtype_name(array.dtype), dtype_name(query)));
}

void check_shape(const std::string& argument, const NpyArray& array, const std::vector<uint64_t>& wanted,
                 const char* whose) {
    if (array.shape != wanted)
        throw UsageError(argument, fmt::format("the shape ({}) is not {}, ({})", fmt::join(array.shape, ", "),
                                               whose, fmt::join(wanted, ", ")));
}

void check_outputs(std::span<const OutputFile> files) {
    for (size_t i = 0; i < files.size(); i++) {
        if (files[i].path.empty()) throw UsageError(files[i].argument, "is empty");
        for (const OutputFile& earlier : files.first(i))
            if (same_file(files[i].path, earlier.path))
                throw UsageError(files[i].argument, "is the same file as " + earlier.argument);
    }
}

void write_all(std::span<const OutputFile> files) {
    std::vector<std::unique_ptr<PendingNpy>> pending;
    for (const OutputFile& f : files)
        pending.push_back(
            with_argument(f.argument, f.path, [&] { return std::make_unique<PendingNpy>(f.path, f.array); }));
    for (size_t i = files.size(); i-- > 0;)
        with_argument(files[i].argument, files[i].path, [&] { pending[i]->commit(); });
}

}  // namespace vkattn::tools
