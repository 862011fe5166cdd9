#include "interfaces.hpp"

#include <algorithm>
#include <initializer_list>

namespace vkattn::core {
namespace {

// The constants of each kernel, behind a first line that stands for none: an array has at least one element.
#define KERNEL(kernel) constexpr std::string_view constants_of_##kernel[] = {"",
#define KERNEL_END(kernel) \
    }                      \
    ;
#define CONSTANT(type, name, NAME, value) #name,
#include "kernels.def"

#define KERNEL(kernel)             \
    namespace fields_of_##kernel { \
        using Push = push::kernel; \
        constexpr FieldInfo all[] = {
#define KERNEL_END(kernel) \
    }                      \
    ;                      \
    }
#define FIELD(type, name) {#name, offsetof(Push, name), sizeof(Push::name)},
#define FIELD_ARRAY(type, name, count) FIELD(type, name)
#include "kernels.def"

#define KERNEL(kernel)                                                                      \
    static_assert(sizeof(constants::kernel) == 4 * (std::size(constants_of_##kernel) - 1)); \
    static_assert(sizeof(push::kernel) <= max_push_bytes, "the least that Vulkan guarantees");
#include "kernels.def"

constexpr KernelInfo kernel_infos[] = {
#define KERNEL(kernel)                                                                                    \
    {#kernel, std::span(constants_of_##kernel).subspan(1), fields_of_##kernel::all, sizeof(push::kernel), \
     std::string_view(#kernel).find("matrix") != std::string_view::npos},
#include "kernels.def"
};

struct Modules {
    std::array<Module, 256> all{};
    size_t count = 0;

    constexpr void add(Kernel kernel, uint32_t forms, std::initializer_list<uint32_t> each) {
        for (const uint32_t set : each) {
            all[count++] = {kernel, set};
            if (forms == 2) all[count++] = {kernel, set | macros::ROLLED};
        }
    }
};

constexpr Modules modules = [] {
    using namespace macros;
    Modules list;
#define MODULES(kernel, forms, ...) list.add(Kernel::kernel, forms, {__VA_ARGS__});
#include "modules.def"
    return list;
}();

// A name, and zeros behind it.
using Name = std::array<char, 64>;

constexpr Name spell(const Module& module) {
    Name name{};
    size_t end = 0;
    const auto append = [&](std::string_view text) {
        for (const char c : text) name.at(end++) = c;
    };
    append(kernel_infos[static_cast<size_t>(module.kernel)].name);
#define MACRO(NAME, part) \
    if (module.has(macros::NAME)) append("_" part);
#include "macros.def"
    return name;
}

constexpr auto names = [] {
    std::array<Name, modules.all.size()> all{};
    for (size_t i = 0; i < modules.count; i++) all[i] = spell(modules.all[i]);
    return all;
}();

// The place of a module in the list, or of the one that a variant stands for; `count` if there is none.
size_t place_of(Module module) {
    module.variant = 0;
    return static_cast<size_t>(std::ranges::find(built_modules(), module) - built_modules().begin());
}

}  // namespace

std::span<const Module> built_modules() {
    return std::span(modules.all).first(modules.count);
}

Module in_cpu_form(Module module) {
    module.macros |= macros::ROLLED;
    return place_of(module) < modules.count ? module : in_gpu_form(module);
}

const char* name_of(const Module& module) {
    const size_t place = place_of(module);
    return place < modules.count ? names[place].data() : "";
}

VkattnDtype storage_of(const Module& module) {
    if (module.has(macros::F16)) return VKATTN_DTYPE_FLOAT16;
    return module.has(macros::BF16) ? VKATTN_DTYPE_BFLOAT16 : VKATTN_DTYPE_FLOAT32;
}

uint32_t needs_of(const Module& module) {
    if (info_of(module.kernel).on_matrices) return NEED_MATRIX;
    const bool half = module.has(macros::F16 | macros::BF16 | macros::MIXED) && !module.has(macros::PACKED);
    return (half ? NEED_16BIT_STORAGE : 0u) | (module.has(macros::DOT) ? NEED_DOT : 0u);
}

const KernelInfo& info_of(Kernel kernel) {
    return kernel_infos[static_cast<size_t>(kernel)];
}

}  // namespace vkattn::core
