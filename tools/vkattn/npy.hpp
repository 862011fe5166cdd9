// NumPy .npy files, format versions 1.0, 2.0 and 3.0: the tools' tensors on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace vkattn::tools {

// What is wrong with a file or an array, in one line without its path: the caller names the argument.
class NpyError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// NumPy has no bfloat16 of its own. ml_dtypes' is saved as '<V2', which nothing else is (plain bytes are
// '|V2'); 'bfloat16' is read too.
enum class NpyDtype { float16, bfloat16, float32, float64, boolean, int32, int64 };

std::string_view dtype_name(NpyDtype dtype);  // as NumPy says it: "float16", "bool"
std::size_t item_bytes(NpyDtype dtype);

struct NpyArray {
    NpyDtype dtype = NpyDtype::float32;
    bool big_endian = false;           // the byte order of the file; false for bool
    std::vector<std::uint64_t> shape;  // empty: one value
    std::vector<std::byte> data;       // C order, this machine's byte order; bool is 0 or 1
};

// Both throw NpyError. The file read must be exactly as long as its header says. A write goes to a temporary
// file in the same folder that is renamed at the end: it happens whole or not at all.
NpyArray read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const NpyArray& array);

// The two halves of write_npy, for files of which all or none should appear: the constructor writes the temporary file,
// commit renames it. Both throw NpyError.
class PendingNpy {
  public:
    PendingNpy(const std::filesystem::path& path, const NpyArray& array);
    ~PendingNpy();
    void commit();

  private:
    struct File;
    std::filesystem::path target_;
    std::unique_ptr<File> file_;
};

// Floating-point dtypes only, others throw NpyError. Narrowing rounds to nearest, ties to even.
std::vector<float> to_float(const NpyArray& array);
NpyArray from_float(std::span<const float> values, std::vector<std::uint64_t> shape, NpyDtype dtype,
                    bool big_endian = false);

// Between floating-point dtypes, rounding once to nearest, ties to even; a changed dtype is little-endian. Others throw
// NpyError.
NpyArray convert(NpyArray array, NpyDtype dtype);

// int32 and int64 only, others throw NpyError.
std::vector<std::int64_t> to_integers(const NpyArray& array);

}  // namespace vkattn::tools
