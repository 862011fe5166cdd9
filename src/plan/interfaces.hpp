// The kernels' interfaces in C++, from shaders/kernels.def: for each kernel a struct of its specialization constants,
// one of its push constants, and the names of both; for each module its kernel and what it needs. A new kernel needs
// no line here.
#pragma once

#include <algorithm>
#include <array>
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

// All modules, those of a kernel from KERNEL_begin to before KERNEL_end. (An enumerator follows the one before it by
// 1.)
enum class Module : int32_t {
#define KERNEL(name) name##_begin, name##_before = name##_begin - 1,
#define KERNEL_END(name) name##_end, name##_last = name##_end - 1,
#define MODULE(name, storage, macros, needs, forms) name,
#include "kernels.def"
    count
};

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
    Module modules_begin, modules_end;
    std::span<const std::string_view> constants;  // by their ids, which is the order of the struct's members
    std::span<const FieldInfo> fields;            // of the push constants, in such an order
    uint32_t push_bytes;
};
const KernelInfo& info_of(Kernel kernel);

struct ModuleInfo {
    std::string_view name;
    Kernel kernel;
    VkattnDtype storage;  // of its tensors
    uint32_t needs;       // Need bits
    uint32_t forms;       // 2: there is one more for CPUs
};
const ModuleInfo& info_of(Module module);

inline std::string_view name_of(Module module) {
    return info_of(module).name;
}

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
