#include "interfaces.hpp"

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
#define KERNEL(kernel)                            \
    {#kernel,                                     \
     Module::kernel##_begin,                      \
     Module::kernel##_end,                        \
     std::span(constants_of_##kernel).subspan(1), \
     fields_of_##kernel::all,                     \
     sizeof(push::kernel)},
#include "kernels.def"
};

constexpr Kernel kernel_of(Module module) {
    uint32_t kernel = 0;
    while (kernel_infos[kernel].modules_end <= module) kernel++;
    return static_cast<Kernel>(kernel);
}

// The storage types as the interfaces name them.
constexpr auto F32 = VKATTN_DTYPE_FLOAT32, F16 = VKATTN_DTYPE_FLOAT16, BF16 = VKATTN_DTYPE_BFLOAT16;

constexpr ModuleInfo module_infos[] = {
#define MODULE(name, storage, macros, needs, forms) {#name, kernel_of(Module::name), storage, needs, forms},
#include "kernels.def"
};

}  // namespace

const KernelInfo& info_of(Kernel kernel) {
    return kernel_infos[static_cast<size_t>(kernel)];
}

const ModuleInfo& info_of(Module module) {
    return module_infos[static_cast<size_t>(module)];
}

}  // namespace vkattn::core
