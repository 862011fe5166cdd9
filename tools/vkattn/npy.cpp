#include "npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace vkattn::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t max_header_bytes = 65536;
constexpr std::size_t max_rank = 64;  // NumPy's own limit
constexpr bool machine_is_big_endian = std::endian::native == std::endian::big;

struct DtypeRow {
    NpyDtype dtype;
    std::string_view name;
    std::string_view code;
    std::size_t bytes;
};

constexpr std::array<DtypeRow, 12> dtype_rows = {{
    {NpyDtype::float16, "float16", "f2", 2},
    {NpyDtype::bfloat16, "bfloat16", "V2", 2},
    {NpyDtype::float32, "float32", "f4", 4},
    {NpyDtype::float64, "float64", "f8", 8},
    {NpyDtype::boolean, "bool", "b1", 1},
    {NpyDtype::int8, "int8", "i1", 1},
    {NpyDtype::uint8, "uint8", "u1", 1},
    {NpyDtype::int16, "int16", "i2", 2},
    {NpyDtype::uint16, "uint16", "u2", 2},
    {NpyDtype::int32, "int32", "i4", 4},
    {NpyDtype::uint32, "uint32", "u4", 4},
    {NpyDtype::int64, "int64", "i8", 8},
}};

const DtypeRow& row_of(NpyDtype dtype) {
    return *std::find_if(dtype_rows.begin(), dtype_rows.end(), [&](auto& row) { return row.dtype == dtype; });
}

// Text from a file, fit for a one-line message.
std::string printable(std::string_view text) {
    std::string result(text.substr(0, 40));
    for (char& c : result)
        if (c < ' ' || c > '~') c = '?';
    return result;
}

// Extents of 0 do not excuse the others: callers multiply them into strides.
std::size_t checked_bytes(std::span<const std::uint64_t> shape, std::size_t item) {
    if (shape.size() > max_rank) throw NpyError(fmt::format("more than {} dimensions", max_rank));
    constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
    std::uint64_t bytes = item;
    bool empty = false;
    for (const std::uint64_t extent : shape) {
        empty |= extent == 0;
        if (extent > limit / bytes) throw NpyError("the shape is too large");
        bytes *= std::max<std::uint64_t>(extent, 1);
    }
    return empty ? 0 : static_cast<std::size_t>(bytes);
}

struct Header {
    std::string descr;
    bool fortran_order = false;
    std::vector<std::uint64_t> shape;
};

// Parses the Python dictionary of the header; nothing beyond its three keys and their types is Python here.
class HeaderParser {
  public:
    explicit HeaderParser(std::string_view text) : rest_(text) {}

    Header parse() {
        expect('{');
        while (!accept('}')) {
            parse_entry();
            if (!accept(',')) {
                expect('}');
                break;
            }
        }
        skip_space();
        if (!rest_.empty()) throw NpyError("malformed header: text after the dictionary");
        if (!descr_) throw NpyError("malformed header: no 'descr'");
        if (!fortran_order_) throw NpyError("malformed header: no 'fortran_order'");
        if (!shape_) throw NpyError("malformed header: no 'shape'");
        return {std::move(*descr_), *fortran_order_, std::move(*shape_)};
    }

  private:
    void parse_entry() {
        const std::string key = parse_string();
        expect(':');
        if (key == "descr") {
            set(descr_, key, parse_descr());
        } else if (key == "fortran_order") {
            set(fortran_order_, key, parse_bool());
        } else if (key == "shape") {
            set(shape_, key, parse_shape());
        } else {
            throw NpyError(fmt::format("malformed header: unknown key '{}'", printable(key)));
        }
    }

    template <typename T>
    static void set(std::optional<T>& field, std::string_view key, T value) {
        if (field) throw NpyError(fmt::format("malformed header: '{}' twice", key));
        field = std::move(value);
    }

    std::string parse_descr() {
        skip_space();
        if (rest_.starts_with('[') || rest_.starts_with('('))
            throw NpyError("structured dtypes are not supported");
        return parse_string();
    }

    std::string parse_string() {
        const char quote = accept('"') ? '"' : '\'';
        if (quote == '\'') expect('\'');
        const std::size_t end = rest_.find(quote);
        if (end == rest_.npos) throw NpyError("malformed header: a string without an end");
        std::string result(rest_.substr(0, end));
        rest_.remove_prefix(end + 1);
        return result;
    }

    bool parse_bool() {
        skip_space();
        for (const std::string_view word : {"True", "False"}) {
            if (!rest_.starts_with(word)) continue;
            rest_.remove_prefix(word.size());
            return word == "True";
        }
        throw NpyError("malformed header: 'fortran_order' is neither True nor False");
    }

    std::vector<std::uint64_t> parse_shape() {
        std::vector<std::uint64_t> shape;
        expect('(');
        while (!accept(')')) {
            shape.push_back(parse_extent());
            if (accept(',')) continue;
            expect(')');
            if (shape.size() == 1) throw NpyError("malformed header: 'shape' is not a tuple");
            break;
        }
        return shape;
    }

    std::uint64_t parse_extent() {
        skip_space();
        if (rest_.starts_with('-')) throw NpyError("the shape has a negative extent");
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
        if (error == std::errc::result_out_of_range) throw NpyError("the shape is too large");
        if (error != std::errc()) throw NpyError("malformed header: an extent that is not a number");
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
        accept('L');  // Python 2 wrote long integers so
        return value;
    }

    void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

    bool accept(char c) {
        skip_space();
        if (!rest_.starts_with(c)) return false;
        rest_.remove_prefix(1);
        return true;
    }

    void expect(char c) {
        if (!accept(c)) throw NpyError(fmt::format("malformed header: '{}' expected", c));
    }

    std::string_view rest_;
    std::optional<std::string> descr_;
    std::optional<bool> fortran_order_;
    std::optional<std::vector<std::uint64_t>> shape_;
};

struct StoredDtype {
    NpyDtype dtype;
    bool big_endian;
};

StoredDtype parse_dtype(std::string_view descr) {
    if (descr == "bfloat16" || descr == "|V2") return {NpyDtype::bfloat16, false};
    for (const DtypeRow& row : dtype_rows) {
        if (descr.empty() || descr.substr(1) != row.code) continue;
        const char order = descr.front();
        if (row.bytes == 1 && (order == '|' || order == '<' || order == '>')) return {row.dtype, false};
        if (order == '<' || order == '>') return {row.dtype, order == '>'};
    }
    throw NpyError(
        fmt::format("dtype '{}' is not supported; tensors are of float16, bfloat16, float32 or float64, and "
                    "masks of these, bool or integers",
                    printable(descr)));
}

// A file that is never read past its end, nor asked for more than it holds.
class Input {
  public:
    explicit Input(const fs::path& path) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);
        if (status.type() == fs::file_type::not_found) throw NpyError("no such file");
        if (error) throw NpyError("cannot be opened: " + error.message());
        if (fs::is_directory(status)) throw NpyError("a directory");
        if (!fs::is_regular_file(status)) throw NpyError("not a regular file");
        remaining_ = fs::file_size(path, error);
        stream_.open(path, std::ios::binary);
        if (error || !stream_) throw NpyError("cannot be opened");
    }

    std::uint64_t remaining() const { return remaining_; }

    void read(void* target, std::size_t bytes) {
        if (bytes > remaining_) throw NpyError("truncated header");
        if (!stream_.read(static_cast<char*>(target), static_cast<std::streamsize>(bytes)))
            throw NpyError("cannot be read");
        remaining_ -= bytes;
    }

    std::string read_string(std::size_t bytes) {
        if (bytes > remaining_) throw NpyError("truncated header");
        std::string text(bytes, '\0');
        read(text.data(), bytes);
        return text;
    }

  private:
    std::ifstream stream_;
    std::uint64_t remaining_ = 0;
};

Header read_header(Input& input) {
    const auto prefix_bytes = std::min<std::uint64_t>(input.remaining(), magic.size());
    const std::string prefix = input.read_string(static_cast<std::size_t>(prefix_bytes));
    if (!magic.starts_with(prefix) || prefix.empty()) throw NpyError("not a .npy file");
    if (prefix.size() < magic.size()) throw NpyError("truncated header");

    std::array<unsigned char, 2> version{};
    input.read(version.data(), version.size());
    const auto [major, minor] = version;
    if (major < 1 || major > 3 || minor != 0)
        throw NpyError(fmt::format("format version {}.{} is not supported", major, minor));

    std::array<unsigned char, 4> length{};  // little endian
    input.read(length.data(), major == 1 ? 2 : 4);
    std::size_t header_bytes = 0;
    for (std::size_t i = 0; i < length.size(); ++i) header_bytes |= std::size_t{length[i]} << (8 * i);
    if (header_bytes > max_header_bytes)
        throw NpyError(fmt::format("malformed header: {} bytes long", header_bytes));
    return HeaderParser(input.read_string(header_bytes)).parse();
}

void swap_bytes(std::vector<std::byte>& data, std::size_t item) {
    const auto step = static_cast<std::ptrdiff_t>(item);
    for (auto it = data.begin(); it != data.end(); it += step) std::reverse(it, it + step);
}

std::vector<std::byte> fortran_to_c(const std::vector<std::byte>& data, std::span<const std::uint64_t> shape,
                                    std::size_t item) {
    std::vector<std::size_t> strides;
    std::size_t stride = item;
    for (const std::uint64_t extent : shape) {
        strides.push_back(stride);
        stride *= static_cast<std::size_t>(extent);
    }
    std::vector<std::byte> result(data.size());
    std::vector<std::uint64_t> index(shape.size());
    std::size_t source = 0;
    for (std::size_t target = 0; target < result.size(); target += item) {
        std::memcpy(&result[target], &data[source], item);
        for (std::size_t d = shape.size(); d-- > 0;) {  // the next index in C order
            source += strides[d];
            if (++index[d] < shape[d]) break;
            source -= strides[d] * static_cast<std::size_t>(shape[d]);
            index[d] = 0;
        }
    }
    return result;
}

std::string format_header(const NpyArray& array) {
    const DtypeRow& row = row_of(array.dtype);
    const char order = row.bytes == 1 ? '|' : array.big_endian ? '>' : '<';
    std::string dictionary =
        fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': (", order, row.code);
    for (const std::uint64_t extent : array.shape) dictionary += fmt::format("{}, ", extent);
    dictionary += "), }";

    constexpr std::size_t alignment = 64;
    constexpr std::size_t fixed_bytes = magic.size() + 2 + 2 + 1;  // version, length, newline
    dictionary.append((alignment - (fixed_bytes + dictionary.size()) % alignment) % alignment, ' ');
    dictionary += '\n';
    const std::size_t length = dictionary.size();
    const std::array<char, 4> version_and_length = {1, 0, static_cast<char>(length & 0xff),
                                                    static_cast<char>(length >> 8)};
    return std::string(magic) + std::string(version_and_length.begin(), version_and_length.end()) +
           dictionary;
}

// Deleted with its file unless it was renamed.
class TemporaryFile {
  public:
    explicit TemporaryFile(const fs::path& folder) {
        // Two writers at once hardly share it: it is made of the time and of where the stack lies.
        // std::random_device of libstdc++ 12 would need glibc 2.36.
        const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
        path_ = folder / fmt::format(".npy-{:x}-{:x}.tmp", now, reinterpret_cast<uintptr_t>(&now));
        stream_.open(path_, std::ios::binary | std::ios::trunc);
        if (!stream_) throw NpyError("cannot create a file in its folder");
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() {
        stream_.close();
        std::error_code ignored;
        if (!path_.empty()) fs::remove(path_, ignored);
    }

    void write(const void* source, std::size_t bytes) {
        stream_.write(static_cast<const char*>(source), static_cast<std::streamsize>(bytes));
    }

    void close() {
        stream_.close();
        if (!stream_) throw NpyError("cannot be written: the disk is full or failed");
    }

    void rename_to(const fs::path& target) {
        std::error_code error;
        fs::rename(path_, target, error);
        if (error) throw NpyError("cannot be written: " + error.message());
        path_.clear();
    }

  private:
    fs::path path_;
    std::ofstream stream_;
};

}  // namespace

void require_consistent(const NpyArray& array) {
    if (array.data.size() != checked_bytes(array.shape, item_bytes(array.dtype)))
        throw NpyError("the shape does not match the data");
}

std::string_view dtype_name(NpyDtype dtype) {
    return row_of(dtype).name;
}

std::size_t item_bytes(NpyDtype dtype) {
    return row_of(dtype).bytes;
}

NpyArray read_npy(const fs::path& path) {
    Input input(path);
    Header header = read_header(input);
    const auto [dtype, big_endian] = parse_dtype(header.descr);
    const std::size_t item = item_bytes(dtype);
    const std::size_t bytes = checked_bytes(header.shape, item);
    if (bytes != input.remaining())
        throw NpyError(fmt::format("{} bytes of data, but its shape needs {}", input.remaining(), bytes));

    NpyArray array{dtype, big_endian, std::move(header.shape), std::vector<std::byte>(bytes)};
    input.read(array.data.data(), bytes);
    if (big_endian != machine_is_big_endian) swap_bytes(array.data, item);
    if (dtype == NpyDtype::boolean)
        for (std::byte& value : array.data) value = std::min(value, std::byte{1});
    if (header.fortran_order) array.data = fortran_to_c(array.data, array.shape, item);
    return array;
}

struct PendingNpy::File : TemporaryFile {
    using TemporaryFile::TemporaryFile;
};

PendingNpy::PendingNpy(const fs::path& path, const NpyArray& array) {
    require_consistent(array);
    std::error_code error;
    target_ = fs::weakly_canonical(path, error);  // through links: a rename would replace the link
    if (error) throw NpyError("cannot be written: " + error.message());
    const fs::file_status status = fs::status(target_, error);
    if (fs::exists(status) && !fs::is_regular_file(status)) throw NpyError("not a regular file");

    file_ = std::make_unique<File>(target_.parent_path());
    const std::string header = format_header(array);
    file_->write(header.data(), header.size());
    if (array.big_endian != machine_is_big_endian) {
        std::vector<std::byte> swapped = array.data;
        swap_bytes(swapped, item_bytes(array.dtype));
        file_->write(swapped.data(), swapped.size());
    } else {
        file_->write(array.data.data(), array.data.size());
    }
    file_->close();
}

PendingNpy::~PendingNpy() = default;

void PendingNpy::commit() {
    file_->rename_to(target_);
}

void write_npy(const fs::path& path, const NpyArray& array) {
    PendingNpy(path, array).commit();
}

}  // namespace vkattn::tools
