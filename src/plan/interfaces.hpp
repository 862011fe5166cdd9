// The kernels' interfaces in C++, from shaders/kernels.def: for each kernel a struct of its specialization constants,
// one of its push constants, and the names of both. Modules by their keys, from shaders/modules.def. A new kernel needs
// no line here.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shared/kernels.h"
#include "vkattn/types.h"

namespace vkattn::core {

// Bits of what a module needs of the device.
enum Need : uint32_t {
    NEED_16BIT_STORAGE = 1,
    NEED_MATRIX = 2,  // a matrix unit, and pipelines held to subgroups of the constant subgroup_size
    NEED_DOT = 4,     // 16-bit dot products of the storage type, summed in float32
};

enum class Kernel : uint32_t {
#define KERNEL(name) name,
#include "kernels.def"
    count
};

// The macros that kernels are compiled with, a bit each (shaders/macros.def).
enum class MacroPlace : uint32_t {
#define MACRO(NAME, part) NAME,
#include "macros.def"
    count
};
namespace macros {
#define MACRO(NAME, part) constexpr uint32_t NAME = 1u << static_cast<uint32_t>(MacroPlace::NAME);
#include "macros.def"
}  // namespace macros

// What pipelines are built from: a kernel, compiled with these macros. Variant 0 is the library's own; the others are
// of the application (vkattn_context_add_module).
struct Module {
    Kernel kernel{};
    uint32_t macros = 0;
    uint32_t variant = 0;

    constexpr bool has(uint32_t macro) const { return (macros & macro) != 0; }
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of a defaulted comparison for a pointer
    auto operator<=>(const Module&) const = default;
};

// The modules that the build compiles, in both forms (shaders/modules.def).
std::span<const Module> built_modules();
// The module in its form for CPUs, if there is such a form; or in its form for GPUs.
Module in_cpu_form(Module module);
inline Module in_gpu_form(Module module) {
    module.macros &= ~macros::ROLLED;
    return module;
}

// Specialization constants by kernel. All members are 32 bits, as Vulkan takes them: booleans too.
namespace constants {
#define KERNEL(name) struct name {
#define KERNEL_END(name) \
    }                    \
    ;
#define CONSTANT(type, name, NAME, value) uint32_t name = value;
#include "kernels.def"
}  // namespace constants

// Push constants by kernel.
namespace push {
using uint = uint32_t;
using Address = uint64_t;
#define KERNEL(name) struct name {
#define KERNEL_END(name) \
    }                    \
    ;
#define FIELD(type, name) type name{};
#define FIELD_ARRAY(type, name, count) type name[count]{};
#include "kernels.def"
}  // namespace push

// Ties a kernel's structs together, for templates: kernels::forward_tiles::Push.
namespace kernels {
#define KERNEL(kernel)                               \
    struct kernel {                                  \
        static constexpr Kernel id = Kernel::kernel; \
        using Constants = constants::kernel;         \
        using Push = push::kernel;                   \
    };
#include "kernels.def"
}  // namespace kernels

struct FieldInfo {
    std::string_view name;
    uint32_t offset_bytes, size_bytes;
};

struct KernelInfo {
    std::string_view name;
    std::span<const std::string_view> constants;  // by their ids, which is the order of the struct's members
    std::span<const FieldInfo> fields;            // of the push constants, in such an order
    uint32_t push_bytes;
    bool on_matrices;  // its modules need a matrix unit
};
const KernelInfo& info_of(Kernel kernel);

// "forward_matrix_f16_running"; "" if there is no such module, and none that a variant stands for.
const char* name_of(const Module& module);
VkattnDtype storage_of(const Module& module);  // of its tensors
uint32_t needs_of(const Module& module);       // Need bits

// The constants of any kernel, by their place in its struct; the rest is 0.
constexpr size_t max_constants = std::max({
#define KERNEL(kernel) sizeof(constants::kernel) / sizeof(uint32_t),
#include "kernels.def"
});
static_assert(max_constants <= 64, "pipeline_constants.cpp has a bit for each");
using ConstantValues = std::array<uint32_t, max_constants>;

// The least that Vulkan guarantees.
constexpr size_t max_push_bytes = 128;
using PushBytes = std::array<std::byte, max_push_bytes>;

}  // namespace vkattn::core
