#include "modules.hpp"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "common.hpp"
#include "paths.hpp"
#include "plan/interfaces.hpp"

namespace vkattn::tools {
namespace {

using core::Module;

// -DID_NAME for each specialization constant of a kernel, which is its place among them.
std::string id_options(core::Kernel kernel) {
    std::string options;
    core::Kernel at{};
    uint32_t id = 0;
#define KERNEL(name)         \
    at = core::Kernel::name; \
    id = 0;
#define CONSTANT(type, name, NAME, value) \
    if (at == kernel) options += fmt::format(" -DID_" #NAME "={}", id++);
#include "kernels.def"
    return options;
}

std::string macro_options(const Module& module) {
    std::string options;
#define MACRO(NAME, part) \
    if (module.has(core::macros::NAME)) options += " -D" #NAME;
#include "macros.def"
    return options;
}

std::vector<uint32_t> read_words(const std::string& path) {
    std::ifstream file(path_of(path), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file || bytes.empty() || bytes.size() % sizeof(uint32_t) != 0)
        throw UsageError("--module", path + " cannot be read, or does not consist of words");
    std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
}

}  // namespace

void add_modules(const Runtime& runtime, const std::vector<std::string>& given) {
    for (const std::string& text : given) {
        const size_t equal = text.find('=');
        if (equal == text.npos) throw UsageError("--module", fmt::format("'{}' is not NAME=FILE", text));
        const std::string name = text.substr(0, equal);
        const std::vector<uint32_t> words = read_words(text.substr(equal + 1));
        VkattnModule module = module_info();
        module.variant = variant_of_options;
        module.module = name.c_str();
        module.code = words.data();
        module.code_bytes = words.size() * sizeof(uint32_t);
        VkattnError error{};
        if (vkattn_context_add_module(runtime.context(), &module, &error) != VKATTN_OK)
            throw UsageError("--module", fmt::format("{}: {}", text, error.message));
    }
}

void print_modules() {
    for (const Module& module : core::built_modules()) {
        const char* const target = module.has(core::macros::COOPMAT2) ? "vulkan1.3" : "vulkan1.2";
        fmt::print("{}: glslc --target-env={}{}{} {}.comp\n", core::name_of(module), target,
                   macro_options(module), id_options(module.kernel), core::info_of(module.kernel).name);
    }
}

}  // namespace vkattn::tools
