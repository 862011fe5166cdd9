// usage: vkattn_pack_module MODULE.spv OUTPUT.inc [PREFIX.spv]
//
// A program of the build: writes a module as C++, in the form that the library embeds and vulkan/spirv.cpp reads. Its
// array has words of 8 bytes, because compilers read them several times as fast as single bytes. PREFIX is another
// module, which has to be there in the same form: what both have alike takes few bytes then.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <zstd.h>

#include "vulkan/spirv_ids.hpp"

namespace {

using Words = std::vector<uint32_t>;

static_assert(std::endian::native == std::endian::little, "modules consist of little-endian words");

void require(bool good, const char* why) {
    if (!good) throw std::runtime_error(why);
}

Words read(const std::filesystem::path& path) {
    const auto bytes = std::filesystem::file_size(path);
    require(bytes % sizeof(uint32_t) == 0, "it does not consist of words");
    Words words(bytes / sizeof(uint32_t));
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(bytes));
    require(file.good(), "it cannot be read");
    return words;
}

// The module with ids as distances, from which it comes back.
Words with_distances(const Words& module) {
    Words words = module;
    require(vkattn::core::ids_to_distances(words), "it is not SPIR-V, or has a literal that is too large");
    Words again = words;
    require(vkattn::core::distances_to_ids(again) && again == module, "it does not come back from distances");
    return words;
}

// The Zstandard frame of these words, and zeros behind it up to whole words of 8 bytes.
struct Frame {
    std::vector<uint64_t> words;
    size_t bytes = 0;
};

// Without prefixes, level 15 takes a quarter of the time and leaves 6 % more bytes, level 19 takes 1.5 times as long
// and leaves 1 % fewer (all modules at level 18: 16 s of one core). xz leaves 20 % fewer than level 15, but takes 46 ms
// instead of 1 to decompress forward_matrix_f16, before a plan can start.
Frame compress(const Words& words, const Words& prefix) {
    const auto bytes_of = [](const Words& w) { return w.size() * sizeof(uint32_t); };
    const size_t bytes = bytes_of(words), bound = ZSTD_compressBound(bytes);
    Frame frame{std::vector<uint64_t>(bound / sizeof(uint64_t) + 1), 0};
    ZSTD_CCtx* context = ZSTD_createCCtx();
    const auto check = [](size_t result) {
        require(ZSTD_isError(result) == 0, "it cannot be compressed");
        return result;
    };
    check(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 18));
    check(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1));
    // Nothing further back than the window is found.
    check(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog,
                                 std::max(static_cast<int>(std::bit_width(bytes + bytes_of(prefix))),
                                          ZSTD_cParam_getBounds(ZSTD_c_windowLog).lowerBound)));
    check(ZSTD_CCtx_refPrefix(context, prefix.data(), bytes_of(prefix)));
    frame.bytes = check(ZSTD_compress2(context, frame.words.data(), bound, words.data(), bytes));
    ZSTD_freeCCtx(context);
    frame.words.resize((frame.bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    return frame;
}

std::string text_of(const std::string& name, const Frame& frame, const std::string& prefix_name) {
    std::string text =
        "// " + std::to_string(frame.bytes) + " bytes\nconstexpr uint64_t words_" + name + "[] = {";
    char number[24];
    for (size_t i = 0; i < frame.words.size(); i++) {
        std::snprintf(number, sizeof number, "%s0x%llx,", i % 6 == 0 ? "\n" : "",
                      static_cast<unsigned long long>(frame.words[i]));
        text += number;
    }
    const std::string prefix = prefix_name.empty() ? "" : ", &code_" + prefix_name;
    return text + "\n};\nconstexpr ::vkattn::core::Frame code_" + name + "{words_" + name + ", " +
           std::to_string(frame.bytes) + prefix + "};\n";
}

// `prefix`: a path, or "" for none.
void pack(const std::filesystem::path& module, const std::filesystem::path& output,
          const std::filesystem::path& prefix) {
    const Words before = prefix.empty() ? Words{} : with_distances(read(prefix));
    const std::string text = text_of(output.stem().string(), compress(with_distances(read(module)), before),
                                     prefix.stem().string());
    std::ofstream file(output, std::ios::binary);
    file << text;
    file.close();
    require(file.good(), "the output cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3 && argc != 4) {
        std::fputs("usage: vkattn_pack_module MODULE.spv OUTPUT.inc [PREFIX.spv]\n", stderr);
        return 2;
    }
    try {
        pack(argv[1], argv[2], argc == 4 ? argv[3] : "");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: %s\n", argv[1], e.what());
        std::remove(argv[2]);
        return 1;
    }
}
