// Stands in front of core::spirv_of in the programs that tests/mutants/run starts (the linker's --wrap), and of
// core::decompress, by which the tool reads modules of its own: a module that lies as NAME.spv in the folder of
// VKATTN_SPIRV is taken from there, all others are the library's or the tool's own.
#include "vulkan/spirv.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

namespace vkattn::core {

// The names are those that --wrap gives to the functions of tests/mutants.cmake.
Spirv embedded_spirv(const Module& module) __asm__("__real__ZN6vkattn4core8spirv_ofERKNS0_6ModuleE");
Spirv chosen_spirv(const Module& module) __asm__("__wrap__ZN6vkattn4core8spirv_ofERKNS0_6ModuleE");
Spirv embedded_frame(const Frame& frame, std::string_view name) __asm__(
    "__real__ZN6vkattn4core10decompressERKNS0_5FrameESt17basic_string_viewIcSt11char_traitsIcEE");
Spirv chosen_frame(const Frame& frame, std::string_view name) __asm__(
    "__wrap__ZN6vkattn4core10decompressERKNS0_5FrameESt17basic_string_viewIcSt11char_traitsIcEE");

namespace {

// tests/mutants/run knows this exit code: a module that cannot be read must not look like a fault that was noticed.
constexpr int unreadable = 97;

Spirv read_words(const std::string& path) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    Spirv words(error ? 0 : bytes / sizeof(uint32_t));
    const auto wanted = static_cast<std::streamsize>(words.size() * sizeof(uint32_t));
    std::ifstream file(path, std::ios::binary);
    if (words.empty() || bytes % sizeof(uint32_t) != 0 ||
        !file.read(reinterpret_cast<char*>(words.data()), wanted)) {
        std::fprintf(stderr, "%s is no SPIR-V\n", path.c_str());
        std::_Exit(unreadable);
    }
    return words;
}

// The folder's module, read once; null if it has none of this name.
const Spirv* folder_module(const std::string& folder, const std::string& name) {
    static std::mutex mutex;
    static std::map<std::string, Spirv> modules;
    const std::lock_guard lock(mutex);
    const auto known = modules.find(name);
    if (known != modules.end()) return &known->second;
    const std::string path = folder + "/" + name + ".spv";
    if (!std::filesystem::exists(path)) return nullptr;
    return &modules.emplace(name, read_words(path)).first->second;
}

// The module of VKATTN_SPIRV's folder, or null.
const Spirv* planted(const std::string& name) {
    const char* const folder = std::getenv("VKATTN_SPIRV");
    return folder == nullptr ? nullptr : folder_module(folder, name);
}

}  // namespace

Spirv chosen_spirv(const Module& module) {
    const Spirv* const words = planted(name_of(module));
    return words == nullptr ? embedded_spirv(module) : *words;
}

Spirv chosen_frame(const Frame& frame, std::string_view name) {
    const Spirv* const words = planted(std::string(name));
    return words == nullptr ? embedded_frame(frame, name) : *words;
}

}  // namespace vkattn::core
