// What the runtime keeps in a file: all of it comes back under the same key, and nothing from any other file.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "runtime/cache_file.hpp"
#include "skip.hpp"

using namespace vkattn::runtime;
namespace fs = std::filesystem;

namespace {

CacheKey some_key() {
    CacheKey key{0x10de, 0x2335, 0x91274fc0, 0x403147, {}, "0.1.0"};
    for (uint8_t i = 0; i < 16; i++) key.pipeline_cache_uuid.at(i) = static_cast<uint8_t>(200 + i);
    return key;
}

const CacheSections some_sections = {
    {"pipelines", {'a', 0, '\n', 'd'}}, {"empty", {}}, {"", {'x'}}, {"self-test", {1, -1, 2}}};

// A file in a folder of its own, which is removed with all that is in it.
class CacheFile {
  public:
    CacheFile() { fs::create_directory(folder_); }
    CacheFile(const CacheFile&) = delete;
    ~CacheFile() { fs::remove_all(folder_); }

    std::string path() const { return (folder_ / "cache").string(); }
    CacheSections read(const CacheKey& key = some_key()) const { return read_cache_file(path(), key); }
    void write(const CacheSections& sections = some_sections) const {
        write_cache_file(path(), some_key(), sections);
    }
    std::string text() const {
        std::ifstream file(path(), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void set_text(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }
    // The file itself, and what may have been left beside it.
    std::ptrdiff_t files() const {
        return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
    }

  private:
    fs::path folder_ = fs::temp_directory_path() / ("vkattn_cache_" + std::to_string(std::random_device{}()));
};

// A file that is as its header says, with what follows the header of a good file altered by `alter`.
template <class Alter>
void set_body(const CacheFile& file, Alter alter) {
    constexpr size_t header = 24;  // the magic number, the length and the checksum, of 8 bytes each
    std::string body = file.text().substr(header);
    alter(body);
    uint64_t hash = 14695981039346656037u;
    for (const char byte : body) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211u;
    const uint64_t numbers[] = {body.size(), hash};
    file.set_text(file.text().substr(0, 8) + std::string(reinterpret_cast<const char*>(numbers), 16) + body);
}

}  // namespace

TEST_CASE("cache file: what was written comes back, and replaces what was there") {
    const CacheFile file;
    CHECK(file.read().empty());
    file.write();
    CHECK(file.read() == some_sections);
    const CacheSections others = {{"pipelines", std::vector<char>(100000, 'p')}};
    file.write(others);
    CHECK(file.read() == others);
    file.write({});
    CHECK(file.read().empty());
    CHECK(file.files() == 1);
    file.set_text("what somebody else wrote");
    CHECK(file.read().empty());
    file.write();
    CHECK(file.read() == some_sections);
}

TEST_CASE("cache file: a file is somebody else's if it begins otherwise") {
    const CacheFile file;
    CHECK(!is_foreign_file(file.path()));  // there is none
    file.write();
    CHECK(!is_foreign_file(file.path()));
    for (const char* const ours : {"", "v", "vkattn", "vkattnc", "vkattnc2 of a later version"}) {
        CAPTURE(ours);
        file.set_text(ours);
        CHECK(!is_foreign_file(file.path()));
    }
    for (const char* const foreign : {"x", "vkattn: notes", "what somebody else wrote"}) {
        CAPTURE(foreign);
        file.set_text(foreign);
        CHECK(is_foreign_file(file.path()));
    }
    CHECK(!is_foreign_file("/dev/null"));
    CHECK(!is_foreign_file("/dev"));
}

TEST_CASE("cache file: nothing is taken from a file with any byte changed") {
    const CacheFile file;
    file.write();
    const std::string good = file.text();
    for (size_t i = 0; i < good.size(); i++)
        for (const int flip : {1, 0x80, 0xff}) {
            CAPTURE(i);
            CAPTURE(flip);
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ flip);
            file.set_text(bad);
            CHECK(file.read().empty());
        }
    file.set_text(good);
    CHECK(file.read() == some_sections);
}

TEST_CASE("cache file: nothing is taken from a file of any other length") {
    const CacheFile file;
    file.write();
    const std::string good = file.text();
    for (size_t length = 0; length < good.size(); length++) {
        CAPTURE(length);
        file.set_text(good.substr(0, length));
        CHECK(file.read().empty());
        file.set_text(good.substr(good.size() - length));
        CHECK(file.read().empty());
    }
    file.set_text(good + '\0');
    CHECK(file.read().empty());
    file.set_text(good + good);
    CHECK(file.read().empty());
}

TEST_CASE("cache file: nothing is taken from a file of another device, driver or version") {
    const CacheFile file;
    file.write();
    const auto foreign = [&](auto change) {
        CacheKey key = some_key();
        change(key);
        return file.read(key);
    };
    CHECK(foreign([](CacheKey& key) { key.vendor_id++; }).empty());
    CHECK(foreign([](CacheKey& key) { key.device_id++; }).empty());
    CHECK(foreign([](CacheKey& key) { key.driver_version++; }).empty());
    CHECK(foreign([](CacheKey& key) { key.api_version++; }).empty());
    for (size_t i = 0; i < 16; i++)
        CHECK(foreign([i](CacheKey& key) { key.pipeline_cache_uuid.at(i)++; }).empty());
    CHECK(foreign([](CacheKey& key) { key.vkattn_version = "0.1.1"; }).empty());
    CHECK(foreign([](CacheKey& key) { key.vkattn_version = ""; }).empty());
    CHECK(foreign([](CacheKey&) {}) == some_sections);
}

// Whoever alters a file on purpose can make the checksum right. No length in it leads past its end.
TEST_CASE("cache file: lengths that are wrong under a right checksum are noticed") {
    const CacheFile file;
    file.write();
    const std::string good = file.text();
    set_body(file, [](std::string&) {});
    CHECK(file.text() == good);  // so the checksum is made here as it is there
    for (size_t i = 0; i + 24 < good.size(); i++) {
        CAPTURE(i);
        file.set_text(good);
        set_body(file, [i](std::string& body) { body[i] = static_cast<char>(0xff); });
        for (const auto& [name, content] : file.read()) CHECK(name.size() + content.size() < good.size());
        file.set_text(good);
        set_body(file, [i](std::string& body) { body.resize(i); });
        CHECK(file.read().size() < some_sections.size());
    }
}

TEST_CASE("cache file: a folder, and a file of any size, do no harm") {
    const CacheFile file;
    fs::create_directory(file.path());
    CHECK(file.read().empty());
    file.write();
    CHECK(fs::is_directory(file.path()));
    CHECK(file.files() == 1);
    fs::remove(file.path());

    // One that is as long as its header says, but no memory would hold it.
    file.write();
    std::string text = file.text();
    const uint64_t size = uint64_t{1} << 40;
    const uint64_t body = size - 24;
    file.set_text(text.replace(8, sizeof body, reinterpret_cast<const char*>(&body), sizeof body));
    std::error_code failed;
    fs::resize_file(file.path(), size, failed);
    if (failed) return vkattn::test::skip("cache file: this file system has no files of 1 TiB");
    CHECK(file.read().empty());
    file.write();
    CHECK(file.read() == some_sections);
}

#if defined(__unix__)
TEST_CASE("cache file: what may not be read or written stays as it is") {
    const CacheFile file;
    write_cache_file("/dev/null", some_key(), some_sections);
    CHECK(fs::is_character_file("/dev/null"));
    CHECK(read_cache_file("/dev/zero", some_key()).empty());
    file.write();
    fs::permissions(file.path(), fs::perms::none);
    const bool is_readable = std::ifstream(file.path()).good();  // to root it is
    CHECK(file.read() == (is_readable ? some_sections : CacheSections{}));
    CHECK(is_foreign_file(file.path()) == !is_readable);
    write_cache_file(file.path() + "/missing/cache", some_key(), some_sections);
    write_cache_file("/proc/vkattn_cache", some_key(), some_sections);
    CHECK(file.files() == 1);
}
#endif
