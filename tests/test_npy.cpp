#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../tools/vkattn/npy.hpp"

#if defined(__unix__)
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#endif

using namespace vkattn::tools;
namespace fs = std::filesystem;

namespace {

using Shape = std::vector<std::uint64_t>;

constexpr NpyDtype all_dtypes[] = {NpyDtype::float16, NpyDtype::bfloat16, NpyDtype::float32,
                                   NpyDtype::float64, NpyDtype::boolean,  NpyDtype::int8,
                                   NpyDtype::uint8,   NpyDtype::int16,    NpyDtype::uint16,
                                   NpyDtype::uint32,  NpyDtype::int32,    NpyDtype::int64};

// A folder of its own, removed with all that is in it.
class Folder {
  public:
    Folder() : path_(fs::temp_directory_path() / ("vkattn_npy_" + std::to_string(std::random_device{}()))) {
        fs::create_directory(path_);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { fs::remove_all(path_); }

    fs::path operator/(const char* name) const { return path_ / name; }
    std::size_t file_count() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
    }

  private:
    fs::path path_;
};

std::string read_text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

// A file of the given version around any header and data.
std::string file_of(const std::string& header, const std::string& data, int major = 1) {
    std::string file = std::string("\x93NUMPY") + static_cast<char>(major) + '\0';
    for (std::size_t i = 0; i < (major == 1 ? 2u : 4u); ++i)
        file += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return file + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape, bool fortran = false) {
    return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
           ", 'shape': " + shape + ", }\n";
}

NpyArray read_bytes(const Folder& folder, const std::string& bytes) {
    write_text(folder / "in.npy", bytes);
    return read_npy(folder / "in.npy");
}

// The message of the error that reading these bytes must give; one line, whatever is in the file.
std::string error_of(const Folder& folder, const std::string& bytes) {
    try {
        read_bytes(folder, bytes);
    } catch (const NpyError& error) {
        const std::string message = error.what();
        CHECK_FALSE(message.empty());
        for (const char c : message) CHECK((c >= ' ' && c <= '~'));
        return message;
    }
    return "no error";
}

std::string error_of_header(const std::string& header, const std::string& data = "12345678") {
    const Folder folder;
    return error_of(folder, file_of(header, data));
}

template <typename T>
std::vector<T> values_of(const NpyArray& array) {
    std::vector<T> values(array.data.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), array.data.data(), array.data.size());
    return values;
}

template <typename T>
NpyArray array_of(NpyDtype dtype, Shape shape, const std::vector<T>& values) {
    NpyArray array{dtype, false, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(array.data.data(), values.data(), array.data.size());
    return array;
}

bool equal(const NpyArray& a, const NpyArray& b) {
    return a.dtype == b.dtype && a.big_endian == b.big_endian && a.shape == b.shape && a.data == b.data;
}

std::uint64_t needed_bytes(const NpyArray& array) {
    std::uint64_t bytes = item_bytes(array.dtype);
    for (const std::uint64_t extent : array.shape) bytes *= extent;
    return bytes;
}

float one_float(std::uint16_t bits, NpyDtype dtype) {
    return to_float(array_of<std::uint16_t>(dtype, {1}, {bits})).front();
}

std::uint16_t one_item(float value, NpyDtype dtype) {
    return values_of<std::uint16_t>(from_float(std::vector<float>{value}, {1}, dtype)).front();
}

}  // namespace

TEST_CASE("npy: every dtype, byte order and rank survives a round trip") {
    const Folder folder;
    std::mt19937 random(1);
    for (const NpyDtype dtype : all_dtypes)
        for (const bool big_endian : {false, true})
            for (const Shape& shape :
                 {Shape{}, Shape{5}, Shape{0}, Shape{2, 3}, Shape{2, 0, 3}, Shape{2, 3, 4, 5}}) {
                NpyArray array{dtype, big_endian && item_bytes(dtype) > 1, shape, {}};
                array.data.resize(needed_bytes(array));
                for (std::byte& b : array.data)
                    b = static_cast<std::byte>(random() % (dtype == NpyDtype::boolean ? 2 : 256));
                write_npy(folder / "a.npy", array);
                CHECK(equal(read_npy(folder / "a.npy"), array));
                CHECK((fs::file_size(folder / "a.npy") - array.data.size()) % 64 == 0);
                CHECK(folder.file_count() == 1);
            }
}

TEST_CASE("npy: the bytes written are NumPy's") {
    const Folder folder;
    write_npy(folder / "a.npy", from_float(std::vector<float>{1, -2}, {2, 1}, NpyDtype::float32));
    const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, ), }";
    const std::string header = dictionary + std::string(128 - 10 - dictionary.size() - 1, ' ') + '\n';
    CHECK(read_text(folder / "a.npy") == file_of(header, std::string("\0\0\x80\x3f\0\0\0\xc0", 8)));

    const std::pair<NpyDtype, std::string> descrs[] = {
        {NpyDtype::float16, ">f2"}, {NpyDtype::bfloat16, ">V2"}, {NpyDtype::float32, ">f4"},
        {NpyDtype::float64, ">f8"}, {NpyDtype::boolean, "|b1"},  {NpyDtype::int8, "|i1"},
        {NpyDtype::uint8, "|u1"},   {NpyDtype::int16, ">i2"},    {NpyDtype::uint16, ">u2"},
        {NpyDtype::uint32, ">u4"},  {NpyDtype::int32, ">i4"},    {NpyDtype::int64, ">i8"}};
    for (const auto& [dtype, descr] : descrs) {
        write_npy(folder / "a.npy", {dtype, true, {}, std::vector<std::byte>(item_bytes(dtype))});
        CHECK(read_text(folder / "a.npy").substr(10, 16) == "{'descr': '" + descr + "',");
    }
    write_npy(folder / "a.npy", from_float(std::vector<float>{1}, {}, NpyDtype::float32, true));
    CHECK(read_text(folder / "a.npy").ends_with(std::string("\n\x3f\x80\0\0", 5)));
}

TEST_CASE("npy: names and sizes") {
    CHECK(dtype_name(NpyDtype::bfloat16) == "bfloat16");
    CHECK(dtype_name(NpyDtype::boolean) == "bool");
    CHECK(item_bytes(NpyDtype::boolean) == 1);
    CHECK(item_bytes(NpyDtype::int64) == 8);
}

TEST_CASE("npy: format versions 1, 2 and 3, and no other") {
    const Folder folder;
    const std::string header = header_of("<i4", "(2,)");
    const std::string data("\1\0\0\0\2\0\0\0", 8);
    for (const int major : {1, 2, 3})
        CHECK(values_of<std::int32_t>(read_bytes(folder, file_of(header, data, major))) ==
              std::vector<std::int32_t>{1, 2});
    CHECK(error_of(folder, file_of(header, data, 4)) == "format version 4.0 is not supported");
    CHECK(error_of(folder, file_of(header, data, 0)) == "format version 0.0 is not supported");
    std::string minor = file_of(header, data);
    minor[7] = 1;
    CHECK(error_of(folder, minor) == "format version 1.1 is not supported");
}

TEST_CASE("npy: big-endian data is swapped and remembered") {
    const Folder folder;
    const NpyArray array =
        read_bytes(folder, file_of(header_of(">i4", "(2,)"), std::string("\0\0\1\2\xff\xff\xff\xfe", 8)));
    CHECK(array.big_endian);
    CHECK(values_of<std::int32_t>(array) == std::vector<std::int32_t>{258, -2});
}

TEST_CASE("npy: Fortran order is transposed") {
    const Folder folder;
    // 2 x 3: columns (1, 4), (2, 5), (3, 6)
    const NpyArray matrix =
        read_bytes(folder, file_of(header_of("|b1", "(2, 3)", true), std::string("\1\0\0\1\1\1", 6)));
    CHECK(values_of<char>(matrix) == std::vector<char>{1, 0, 1, 0, 1, 1});

    const Shape shape = {2, 3, 4, 5};
    std::string data(120 * 4, '\0');
    std::vector<std::int32_t> expected;
    for (std::size_t a = 0; a < 2; ++a)
        for (std::size_t b = 0; b < 3; ++b)
            for (std::size_t c = 0; c < 4; ++c)
                for (std::size_t d = 0; d < 5; ++d) {
                    const std::size_t at = a + 2 * (b + 3 * (c + 4 * d));  // the first index runs fastest
                    expected.push_back(static_cast<std::int32_t>(1000 * a + 100 * b + 10 * c + d));
                    data[4 * at + 2] = static_cast<char>(expected.back() >> 8);
                    data[4 * at + 3] = static_cast<char>(expected.back() & 0xff);
                }
    const NpyArray array = read_bytes(folder, file_of(header_of(">i4", "(2, 3, 4, 5)", true), data));
    CHECK(array.shape == shape);
    CHECK(values_of<std::int32_t>(array) == expected);
    CHECK(read_bytes(folder, file_of(header_of("<f8", "()", true), "12345678")).shape.empty());
    CHECK(read_bytes(folder, file_of(header_of("<f8", "(3, 0, 2)", true), "")).data.empty());
}

TEST_CASE("npy: what Python would read too") {
    const Folder folder;
    CHECK(
        values_of<char>(read_bytes(folder, file_of(header_of("|b1", "(3,)"), std::string("\0\1\x80", 3)))) ==
        std::vector<char>{0, 1, 1});
    CHECK(read_bytes(folder, file_of(header_of("<b1", "()"), "\1")).dtype == NpyDtype::boolean);
}

TEST_CASE("npy: bfloat16 by ml_dtypes' saved form and by name") {
    const Folder folder;
    for (const std::string descr : {"<V2", "|V2", "bfloat16"}) {
        const NpyArray array = read_bytes(folder, file_of(header_of(descr, "(1,)"), "\xc0\x3f"));
        CHECK(array.dtype == NpyDtype::bfloat16);
        CHECK(to_float(array) == std::vector<float>{1.5});
    }
}

TEST_CASE("npy: unsupported dtypes are named") {
    for (const std::string descr :
         {"<c8", "|O", "|S4", "<U1", "<u8", "<f16", "<M8[ns]", "|V4", "f4", "=f4", "float32", "<", ""})
        CHECK(error_of_header(header_of(descr, "(1,)"))
                  .starts_with("dtype '" + descr + "' is not supported; tensors are of float16"));
    CHECK(error_of_header(header_of("\xc3\xa9x\n", "(1,)")).starts_with("dtype '??x?' is not supported; "));
}

TEST_CASE("npy: not a .npy file") {
    const Folder folder;
    CHECK(error_of(folder, "") == "not a .npy file");
    CHECK(error_of(folder, "P") == "not a .npy file");
    CHECK(error_of(folder, std::string("PK\3\4 an .npz archive")) == "not a .npy file");
    CHECK(error_of(folder, "\x93NUMPX") == "not a .npy file");
    CHECK_THROWS_WITH_AS(read_npy(folder / "missing.npy"), "no such file", NpyError);
    CHECK_THROWS_WITH_AS(read_npy(folder / "in.npy" / "below"), "no such file", NpyError);
    CHECK_THROWS_WITH_AS(read_npy(folder / ""), "a directory", NpyError);
    CHECK_THROWS_AS(read_npy(""), NpyError);
    CHECK_THROWS_AS(read_npy(folder / std::string(5000, 'x').c_str()), NpyError);
}

#if defined(__unix__)
TEST_CASE("npy: pipes and unreadable files") {
    const Folder folder;
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(read_npy(folder / "pipe"), "not a regular file", NpyError);
    CHECK_THROWS_WITH_AS(write_npy(folder / "pipe", from_float({}, {0}, NpyDtype::float32)),
                         "not a regular file", NpyError);
    CHECK(fs::is_fifo(folder / "pipe"));

    write_text(folder / "locked.npy", file_of(header_of("<f4", "(1,)"), "1234"));
    fs::permissions(folder / "locked.npy", fs::perms::none);
    if (!std::ifstream(folder / "locked.npy"))  // root may read it
        CHECK_THROWS_WITH_AS(read_npy(folder / "locked.npy"), "cannot be opened", NpyError);
}
#endif

TEST_CASE("npy: headers that are read, and what is wrong with others") {
    std::ifstream file(VKATTN_TESTS_DIR "/npy_headers.txt");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) {
        const std::size_t arrow = line.find(" => ");
        if (line.starts_with('#') || arrow == line.npos) continue;
        CAPTURE(line);
        const std::string header = line.substr(0, arrow), expected = line.substr(arrow + 4),
                          message = error_of_header(header);
        if (message == "no error") CHECK(error_of_header(header + " \n\n") == message);
        if (expected.ends_with("..."))
            CHECK(message.starts_with(expected.substr(0, expected.size() - 3)));
        else
            CHECK(message == expected);
        ++count;
    }
    CHECK(count == 54);
    CHECK(error_of_header(std::string("\0\0\0\0", 4)).starts_with("malformed header: "));
    std::string many = "(";
    for (int i = 0; i < 65; ++i) many += "1, ";
    CHECK(error_of_header(header_of("<f4", many + ")")) == "more than 64 dimensions");
}

TEST_CASE("npy: the data must be exactly as long as the shape needs") {
    CHECK(error_of_header(header_of("<f4", "(2,)"), "1234567") == "7 bytes of data, but its shape needs 8");
    CHECK(error_of_header(header_of("<f4", "(2,)"), "123456789") == "9 bytes of data, but its shape needs 8");
    CHECK(error_of_header(header_of("<f4", "(0,)"), "1") == "1 bytes of data, but its shape needs 0");
    CHECK(error_of_header(header_of("<f4", "()"), "") == "0 bytes of data, but its shape needs 4");
}

TEST_CASE("npy: header lengths beyond the file or beyond reason") {
    const Folder folder;
    std::string file = file_of(header_of("<f4", "(2,)"), "12345678");
    file[8] = file[9] = '\xff';
    CHECK(error_of(folder, file) == "truncated header");
    file = file_of(header_of("<f4", "(2,)"), "12345678", 2);
    for (std::size_t i = 8; i < 12; ++i) file[i] = '\xff';
    CHECK(error_of(folder, file) == "malformed header: 4294967295 bytes long");
    CHECK(error_of(folder, file_of(std::string(65537, ' '), "", 2)) == "malformed header: 65537 bytes long");
}

TEST_CASE("npy: truncation at every byte") {
    const Folder folder;
    for (const int major : {1, 2, 3}) {
        const std::string file = file_of(header_of("<f4", "(2, 1)"), "12345678", major);
        for (std::size_t length = 0; length < file.size(); ++length) {
            CAPTURE(length);
            CHECK(error_of(folder, file.substr(0, length)) != "no error");
        }
        CHECK(error_of(folder, file) == "no error");
    }
}

TEST_CASE("npy: a failed write leaves what was there and nothing else") {
    const Folder folder;
    const NpyArray array = from_float(std::vector<float>(4096, 1), {4096}, NpyDtype::float32);
    CHECK_THROWS_AS(write_npy(folder / "missing" / "a.npy", array), NpyError);
    CHECK_THROWS_WITH_AS(write_npy(folder / "", array), "not a regular file", NpyError);
    CHECK_THROWS_AS(write_npy("", array), NpyError);
    CHECK(folder.file_count() == 0);

    NpyArray inconsistent = array;
    inconsistent.shape = {4095};
    CHECK_THROWS_WITH_AS(write_npy(folder / "a.npy", inconsistent), "the shape does not match the data",
                         NpyError);
    CHECK(folder.file_count() == 0);

#if defined(__unix__)
    write_text(folder / "a.npy", "before");
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_THROWS_WITH_AS(write_npy(folder / "a.npy", array), "cannot be written: the disk is full or failed",
                         NpyError);
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(folder.file_count() == 1);
    CHECK(read_text(folder / "a.npy") == "before");

    fs::create_symlink("a.npy", folder / "link.npy");
    write_npy(folder / "link.npy", array);
    CHECK(fs::is_symlink(folder / "link.npy"));
    CHECK(equal(read_npy(folder / "a.npy"), array));
#endif
}

TEST_CASE("npy: all 65536 halves round trip") {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t n = 0; n < all.size(); ++n) all[n] = static_cast<std::uint16_t>(n);
    for (const NpyDtype dtype : {NpyDtype::float16, NpyDtype::bfloat16}) {
        const std::vector<float> values = to_float(array_of(dtype, {65536}, all));
        CHECK(values_of<std::uint16_t>(from_float(values, {65536}, dtype)) == all);
    }
    const std::vector<float> halves = to_float(array_of(NpyDtype::float16, {65536}, all));
    for (std::size_t n = 0; n < all.size(); ++n) {  // against the definition
        const int exponent = (all[n] >> 10) & 31, mantissa = all[n] & 1023;
        const double sign = all[n] >> 15 ? -1 : 1;
        if (exponent == 31 && mantissa != 0)
            REQUIRE(std::isnan(halves[n]));
        else if (exponent == 31)
            REQUIRE(halves[n] == sign * std::numeric_limits<double>::infinity());
        else if (exponent == 0)
            REQUIRE(halves[n] == sign * std::ldexp(mantissa, -24));
        else
            REQUIRE(halves[n] == sign * std::ldexp(1024 + mantissa, exponent - 25));
        REQUIRE(std::signbit(halves[n]) == (sign < 0));
    }
}

TEST_CASE("npy: narrowing takes the nearest value, ties go to even") {
    // Between every two neighbours: a little below, at and above the middle.
    for (const auto& [dtype, infinity] :
         {std::pair{NpyDtype::float16, 0x7c00}, {NpyDtype::bfloat16, 0x7f80}}) {
        for (int n = 0; n + 1 < infinity; ++n) {
            const auto low = static_cast<std::uint16_t>(n), high = static_cast<std::uint16_t>(n + 1);
            const double middle = (double{one_float(low, dtype)} + double{one_float(high, dtype)}) / 2;
            const auto tie = static_cast<float>(middle);
            REQUIRE(double{tie} == middle);
            REQUIRE(one_item(tie, dtype) == (n % 2 == 0 ? low : high));
            REQUIRE(one_item(-tie, dtype) == ((n % 2 == 0 ? low : high) | 0x8000));
            REQUIRE(one_item(std::nextafter(tie, 0.0f), dtype) == low);
            REQUIRE(one_item(std::nextafter(tie, HUGE_VALF), dtype) == high);
        }
    }
    CHECK(one_item(65519.996f, NpyDtype::float16) == 0x7bff);
    CHECK(one_item(65520.0f, NpyDtype::float16) == 0x7c00);
    CHECK(one_item(1e30f, NpyDtype::float16) == 0x7c00);
    CHECK(one_item(-HUGE_VALF, NpyDtype::float16) == 0xfc00);
    CHECK(one_item(std::numeric_limits<float>::denorm_min(), NpyDtype::float16) == 0);
    CHECK(one_item(-0.0f, NpyDtype::float16) == 0x8000);
    CHECK(one_item(std::numeric_limits<float>::max(), NpyDtype::bfloat16) == 0x7f80);
    CHECK(one_item(HUGE_VALF, NpyDtype::bfloat16) == 0x7f80);
    for (const std::uint32_t bits :
         {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xff800001u}) {  // NaN, any payload
        const auto value = std::bit_cast<float>(bits);
        CHECK(std::isnan(one_float(one_item(value, NpyDtype::float16), NpyDtype::float16)));
        CHECK(std::isnan(one_float(one_item(value, NpyDtype::bfloat16), NpyDtype::bfloat16)));
    }
}

TEST_CASE("npy: float32 and float64 to float and back") {
    const std::vector<float> values = {1.5f, -0.0f, 1e-45f, HUGE_VALF, 0.1f};
    for (const NpyDtype dtype : {NpyDtype::float32, NpyDtype::float64}) {
        const NpyArray array = from_float(values, {5}, dtype, true);
        CHECK(array.big_endian);
        CHECK(to_float(array) == values);
    }
    const NpyArray wide = array_of<double>(NpyDtype::float64, {3}, {1 + 0x1p-24, 1 + 0x3p-24, 1e300});
    CHECK(to_float(wide) == std::vector<float>{1, 1 + 0x1p-22f, HUGE_VALF});
    for (const NpyDtype dtype : {NpyDtype::boolean, NpyDtype::int8, NpyDtype::int32, NpyDtype::int64}) {
        CHECK_THROWS_AS(to_float({dtype, false, {0}, {}}), NpyError);
        CHECK_THROWS_AS(from_float({}, {0}, dtype), NpyError);
    }
    CHECK_THROWS_WITH_AS(to_float({NpyDtype::int32, false, {0}, {}}), "dtype int32 is not floating point",
                         NpyError);
    CHECK_THROWS_AS(from_float(values, {4}, NpyDtype::float32), NpyError);
}
