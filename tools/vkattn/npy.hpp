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

// NumPy has no bfloat16 of its own. ml_dtypes' is saved as '<V2', and as '|V2' once a NumPy without ml_dtypes has
// loaded and saved it. Both are read, and so is 'bfloat16'.
enum class NpyDtype {
    float16,
    bfloat16,
    float32,
    float64,
    boolean,
    int8,
    uint8,
    int16,
    uint16,
    int32,
    uint32,
    int64
};

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

// Throws NpyError where the data is not what the shape needs.
void require_consistent(const NpyArray& array);

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
NpyArray convert(const NpyArray& array, NpyDtype dtype);

// The elements that became infinite when an array was converted: how many, the first one's index, and what it was.
struct Overflows {
    std::size_t count = 0;
    std::vector<std::uint64_t> index;
    double value = 0;
};
Overflows overflows(const NpyArray& before, const NpyArray& after);

bool is_integer(NpyDtype dtype);

// Integers only, others throw NpyError.
std::vector<std::int64_t> to_integers(const NpyArray& array);

// The place of an element of a dense array of this shape.
std::vector<std::uint64_t> index_of(std::size_t element, std::span<const std::uint64_t> shape);

}  // namespace vkattn::tools
