// The reader of .npy files: any bytes give one line of error, or an array that the writer writes and the reader reads
// again, bit for bit. A file that was read is exactly as long as it says, and means the same in Fortran's order.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "inputs.hpp"
#include "npy.hpp"

namespace fs = std::filesystem;
using namespace vkattn::tools;
using vkattn::fuzz::check;

namespace {

// A folder of this process, which goes when it ends well. It belongs into memory: TMPDIR says where.
const fs::path& folder() {
    static const fs::path path = [] {
        static const std::string made =
            (fs::temp_directory_path() / ("vkattn_fuzz_" + std::to_string(getpid()))).string();
        fs::create_directories(made);
        std::atexit([] { fs::remove_all(made); });
        return fs::path(made);
    }();
    return path;
}

std::optional<NpyArray> read(const std::string& file) {
    const fs::path path = folder() / "in.npy";
    std::ofstream(path, std::ios::binary) << file;
    try {
        return read_npy(path);
    } catch (const NpyError& error) {
        const std::string message = error.what();
        check(!message.empty() && message.size() < 200, "an error without a message, or with a long one");
        for (const char c : message) check(c >= ' ' && c <= '~', "the message is not one line of text");
        return std::nullopt;
    }
}

std::string written(const NpyArray& array) {
    const fs::path path = folder() / "out.npy";
    write_npy(path, array);
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

bool same(const NpyArray& a, const NpyArray& b) {
    return a.dtype == b.dtype && a.big_endian == b.big_endian && a.shape == b.shape && a.data == b.data;
}

// The same bytes in Fortran's order: element (i0, i1, ...) lies at the sum of index * product of the extents before.
void check_fortran(const NpyArray& array, std::string file) {
    const size_t item = item_bytes(array.dtype), count = array.data.size() / item;
    if (count > 4096) return;
    const size_t at = file.find("False");
    check(at != file.npos, "the writer says no order");
    file.replace(at, 5, "True ");
    const auto turned = read(file);
    check(turned && turned->shape == array.shape, "Fortran's order is not read");
    for (size_t target = 0; target < count; target++) {
        size_t rest = target, source = 0, below = count;
        for (size_t d = array.shape.size(); d-- > 0;) {
            below /= array.shape[d];
            source += rest % array.shape[d] * below;
            rest /= array.shape[d];
        }
        check(std::equal(&turned->data[target * item], &turned->data[target * item] + item,
                         &array.data[source * item]),
              "an element is in another place");
    }
}

void check_values(const NpyArray& array) {
    for (const NpyDtype dtype :
         {NpyDtype::float16, NpyDtype::bfloat16, NpyDtype::float32, NpyDtype::float64}) {
        try {
            const NpyArray other = convert(array, dtype);
            check(other.shape == array.shape && other.dtype == dtype, "converted to something else");
            const Overflows lost = overflows(array, other);
            check(lost.count <= other.data.size() / item_bytes(dtype),
                  "more numbers are lost than there are");
            check(lost.index.size() == (lost.count == 0 ? 0 : array.shape.size()),
                  "the first lost number has no place");
        } catch (const NpyError&) {
            check(array.dtype == NpyDtype::boolean || is_integer(array.dtype),
                  "floating-point numbers are not converted");
        }
    }
    if (is_integer(array.dtype))
        check(to_integers(array).size() == array.data.size() / item_bytes(array.dtype), "integers are lost");
    if (array.dtype == NpyDtype::boolean)
        check(
            std::all_of(array.data.begin(), array.data.end(), [](std::byte b) { return b <= std::byte{1}; }),
            "a bool that is neither 0 nor 1");
}

void check_array(const NpyArray& array, const std::string& file) {
    uint64_t bytes = item_bytes(array.dtype);
    for (const uint64_t extent : array.shape) bytes *= extent;
    check(bytes == array.data.size(), "the shape does not match the data");
    std::string once = written(array);
    if (vkattn::fuzz::has_planted_fault() && !array.data.empty()) once.back() ^= 1;
    const auto again = read(once);
    check(again && same(array, *again), "what is written is not what was read");
    check(written(*again) == once, "the file is another one when it is written again");
    check_fortran(array, once);
    check_values(array);
    check(!read(file.substr(0, file.size() - 1)), "a byte less is read, too");
    check(!read(file + '\0'), "a byte more is read, too");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string file(reinterpret_cast<const char*>(data), size);
    if (const auto array = read(file)) check_array(*array, file);
    return 0;
}
