// All that the planner knows of a device: filled from Vulkan by src/vulkan, from a text profile by the tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vkattn/types.h"

namespace vkattn::core {

enum class DeviceType : uint32_t { other = 0, integrated = 1, discrete = 2, virtual_gpu = 3, cpu = 4 };

// A shape of the matrix unit, at subgroup scope: 16-bit operands, float32 accumulators.
struct MatrixShape {
    uint32_t m = 0, n = 0, k = 0;
    VkattnDtype dtype{};
    bool rounded = false;  // float16: there are accumulators of it too, to store float32 ones through
    // Found by a probe: the element_layout of accumulators, 0 if it is not known, and whether left operands have the
    // same.
    uint32_t layout = 0;
    bool left_alike = false;
    // Likewise found: how turned products (shaders/lib/matrix_turned.glsl) name the places of an accumulator, queries
    // before keys, where it becomes a right operand in registers; else 0. `exchanges`: halves of a subgroup exchange
    // their keys on the way.
    uint32_t turned_layout = 0;
    bool exchanges = false;
    // A probe has found that invocations have more or fewer elements than an even share. The kernels would be wrong
    // with such a shape.
    bool uneven = false;

    bool operator==(const MatrixShape&) const = default;
};

// A verdict says whether a self-test has found a kernel right on problems of these types (device_tests/self_test.hpp).
struct KernelVerdict {
    bool backward = false;
    std::string kernel;
    VkattnDtype dtype{}, operands{};
    std::string failure;  // what is wrong, in one line; "" if the kernel is right
    // It is about the modules for operands in types of their own, whatever these are. dtype is the tested query's.
    bool mixed = false;

    bool operator==(const KernelVerdict&) const = default;
};

struct DeviceCaps {
    std::string name;
    std::string identity;  // of device and driver, in one line: another device or driver has another one
    uint32_t vendor_id = 0;
    DeviceType type = DeviceType::other;
    uint32_t driver_id = 0;    // VkDriverId; 0: not known
    uint32_t api_version = 0;  // as VK_MAKE_API_VERSION
    // A mesa_number() for Mesa's drivers; 0: not known, or another driver. It comes from VkDriverProperties'
    // driverInfo, because the driverVersion of lavapipe is 1 whatever the version.
    uint32_t mesa_version = 0;
    uint32_t subgroup_size = 1;
    uint32_t max_shared_bytes = 0;
    uint32_t max_invocations = 0;
    std::array<uint32_t, 3> max_workgroup_size{};
    std::array<uint32_t, 3> max_workgroup_count{};
    uint32_t max_push_constant_bytes = 0;
    uint64_t max_buffer_bytes = 0;       // the largest allocation, for scratch
    uint64_t device_local_bytes = 0;     // the largest heap of device-local memory; 0: not known
    uint32_t multiprocessors = 0;        // 0: not known
    uint32_t simd_registers = 0;         // vector registers of a SIMD, of 32 invocations; 0: not known
    bool buffer_device_address = false;  // enabled, not merely supported
    bool storage_16bit = false;          // storageBuffer16BitAccess, enabled
    bool int64 = false;                  // shaderInt64, enabled
    bool dot_float16 = false, dot_bfloat16 = false;  // products of such pairs, summed in float32; enabled
    uint32_t min_subgroup_size = 0, max_subgroup_size = 0;  // 0: not known
    bool subgroup_size_control = false;                     // a pipeline can be held to one of these, enabled
    bool full_subgroups = false;                            // computeFullSubgroups, enabled
    // Enabled with all that matrix kernels need beside them; empty: no matrix unit.
    std::vector<MatrixShape> matrices;
    bool matrix_conversions = false;      // of VK_NV_cooperative_matrix2, reductions too; enabled
    bool preserves_nonfinite = false;     // float32, by an execution mode of modules; no plan depends on it
    std::vector<KernelVerdict> verdicts;  // of self-tests; kernels that failed are not planned
    uint32_t missing_kernels = 0;  // a bit for each Kernel that this build of the library was made without
    // This build was made without the forms for CPUs of modules that need no matrix unit, or of those that do
    // (VKATTN_CPU_FORMS).
    bool missing_cpu_forms = false, missing_matrix_cpu_forms = false;

    // The invocations of a one-dimensional workgroup: `wanted`, or as many as the device allows.
    uint32_t threads_up_to(uint32_t wanted) const {
        return std::min({wanted, max_invocations, max_workgroup_size[0]});
    }

    bool operator==(const DeviceCaps&) const = default;
};

// Returns the verdict on a kernel, or null.
inline const KernelVerdict* verdict_on(const DeviceCaps& caps, bool backward, std::string_view kernel,
                                       VkattnDtype dtype, VkattnDtype operands, bool mixed) {
    for (const KernelVerdict& v : caps.verdicts)
        if (v.backward == backward && v.kernel == kernel && (mixed || v.dtype == dtype) &&
            v.operands == operands && v.mixed == mixed)
            return &v;
    return nullptr;
}

constexpr uint32_t driver_nvidia = 4;        // VK_DRIVER_ID_NVIDIA_PROPRIETARY
constexpr uint32_t driver_nvk = 24;          // VK_DRIVER_ID_MESA_NVK
constexpr uint32_t driver_radv = 3;          // VK_DRIVER_ID_MESA_RADV
constexpr uint32_t driver_turnip = 18;       // VK_DRIVER_ID_MESA_TURNIP
constexpr uint32_t driver_swiftshader = 10;  // VK_DRIVER_ID_GOOGLE_SWIFTSHADER
constexpr uint32_t driver_lavapipe = 13;     // VK_DRIVER_ID_MESA_LLVMPIPE
constexpr uint32_t driver_honeykrisp = 26;   // VK_DRIVER_ID_MESA_HONEYKRISP

// DeviceCaps::simd_registers from vgprsPerSimd of VK_AMD_shader_core_properties. Mesa counts registers of 64
// invocations (num_physical_wave64_vgprs_per_simd in its sources: 768 of navi31, 512 of phoenix), AMD's own drivers
// those of 32 (PAL's numPhysicalVgprsPerSimd: 1,536 of navi31).
inline uint32_t simd_registers_of(uint32_t driver_id, uint32_t vgprs) {
    return driver_id == driver_radv ? 2 * vgprs : vgprs;
}

// A version of Mesa as a number that compares as versions do.
constexpr uint32_t mesa_number(uint32_t major, uint32_t minor, uint32_t patch) {
    return std::min(major, 1023u) << 22 | std::min(minor, 1023u) << 12 | std::min(patch, 4095u);
}
// The version in a text like "Mesa 22.3.6 (LLVM 15.0.6)", which Mesa's drivers have for driverInfo; 0 if there is none.
uint32_t mesa_version_in(std::string_view driver_info);

constexpr uint32_t version_1_2 = (1u << 22) | (2u << 12);

}  // namespace vkattn::core
