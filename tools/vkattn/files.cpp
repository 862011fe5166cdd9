#include "files.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "call.hpp"
#include "paths.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

bool same_file(const std::string& first, const std::string& second) {
    const std::filesystem::path a = path_of(first), b = path_of(second);
    std::error_code ignored;
    if (std::filesystem::equivalent(a, b, ignored)) return true;
    // Files that are yet to be written are compared by their paths.
    return std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

void check_name(const std::string& argument, const std::string& path) {
    if (path.empty()) throw UsageError(argument, "is empty");
    if (path == "-")
        throw UsageError(argument,
                         "'-' names no file: .npy is neither read from standard input nor written to "
                         "standard output; ./- is a file of that name");
}

void check_output_name(const std::string& argument, const std::string& path) {
    check_name(argument, path);
    const std::filesystem::path folder = path_of(path).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
        throw UsageError(argument, fmt::format("{}: there is no folder {}", path, text_of_path(folder)));
}

// Converts, and warns of what became infinite by that. `what_it_means` is said of it.
NpyArray convert_aloud(const std::string& argument, NpyArray array, NpyDtype dtype,
                       const char* what_it_means) {
    if (array.dtype == dtype) return array;
    NpyArray converted = convert(array, dtype);
    const Overflows lost = overflows(array, converted);
    if (lost.count != 0)
        print_warning(
            fmt::format("{}: {} {} too large for {} and became infinite{}; the first is {:g} at [{}]",
                        argument, count_text(lost.count, "number"), lost.count == 1 ? "was" : "were",
                        dtype_name(dtype), what_it_means, lost.value, fmt::join(lost.index, ", ")));
    return converted;
}

}  // namespace

FileArray read_file(const std::string& argument, const std::string& path) {
    const Phase phase("reading " + path);
    FileArray file{with_argument(argument, path, [&] { return read_npy(path_of(path)); })};
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
        const bool convertible = dtype == NpyDtype::float64, may_be_blocks = dtype == NpyDtype::uint8;
        throw UsageError(argument,
                         fmt::format("dtype {} is not float32, float16 or bfloat16{}", dtype_name(dtype),
                                     convertible     ? "; --dtype converts it"
                                     : may_be_blocks ? "; of blocks, --kv-dtype says the type"
                                                     : ""));
    }
    try {
        file.array = convert_aloud(argument, std::move(file.array), *wanted,
                                   argument == "--mask" ? ", of which -inf hides a key" : "");
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

NpyArray like_file(const std::string& argument, NpyArray computed, const FileArray& like,
                   const std::optional<NpyDtype>& wanted) {
    const NpyDtype dtype = wanted.value_or(like.file_dtype);
    NpyArray array = convert_aloud(argument, std::move(computed), dtype, "");
    array.big_endian = like.file_big_endian && dtype == like.file_dtype;
    return array;
}

void check_outputs(std::span<const OutputFile> outputs, std::span<const NamedFile> inputs,
                   const std::string& pipeline_cache) {
    for (const NamedFile& input : inputs) check_name(input.argument, input.path);
    std::vector<NamedFile> written;
    for (const OutputFile& output : outputs) {
        check_output_name(output.argument, output.path);
        written.push_back({output.argument, output.path});
    }
    if (!pipeline_cache.empty()) written.push_back({"--pipeline-cache", pipeline_cache});
    for (size_t i = 0; i < written.size(); i++) {
        for (const NamedFile& input : inputs)
            if (same_file(written[i].path, input.path))
                throw UsageError(
                    written[i].argument,
                    fmt::format("is the same file as {}, which it would replace", input.argument));
        for (const NamedFile& earlier : std::span(written).first(i))
            if (same_file(written[i].path, earlier.path))
                throw UsageError(written[i].argument, "is the same file as " + earlier.argument);
    }
}

void write_text(const std::string& option, const std::string& path, const std::string& text) {
    std::ofstream file(path_of(path), std::ios::binary);
    file << text << std::flush;
    if (!file) throw UsageError(option, fmt::format("{} cannot be written", path));
}

void check_writable(const std::string& option, const std::string& path) {
    const bool was_there = std::filesystem::exists(path_of(path));
    if (!std::ofstream(path_of(path), std::ios::binary | std::ios::app))
        throw UsageError(option, fmt::format("{} cannot be written", path));
    if (!was_there) std::filesystem::remove(path_of(path));
}

void write_all(std::span<const OutputFile> files) {
    const Phase phase("writing");
    std::vector<std::unique_ptr<PendingNpy>> pending;
    for (const OutputFile& f : files)
        pending.push_back(with_argument(
            f.argument, f.path, [&] { return std::make_unique<PendingNpy>(path_of(f.path), f.array); }));
    for (size_t i = files.size(); i-- > 0;)
        with_argument(files[i].argument, files[i].path, [&] { pending[i]->commit(); });
}

}  // namespace vkattn::tools
