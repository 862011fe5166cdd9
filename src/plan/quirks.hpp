// Driver workarounds by name: vendor, driver range, reason, when to remove.
#pragma once

#include "device_kind.hpp"

namespace vkattn::core {

// lavapipe with LP_NATIVE_VECTOR_WIDTH=512.
inline bool is_wide_lavapipe(const DeviceCaps& caps) {
    return caps.vendor_id == 0x10005 && caps.type == DeviceType::cpu && caps.subgroup_size >= 16;
}

// lavapipe (vendor 0x10005, a CPU), subgroup size 16, Mesa 26.1: a shader that builds an
// address which differs between invocations from two 32-bit halves makes the driver overrun its stack and abort. So
// tensors whose rows need that (2^31 bytes within a tile) are refused there, and so are the modules for GPUs of the
// tile kernels (rolled = 0), whose invocations choose between two tensors; a row's parts are merged by one team.
// Remove when `tools/on lavapipe-512 -- build/vkattn_gpu_tests` passes without it.
inline bool quirk_no_divergent_addresses(const DeviceCaps& caps) {
    return is_wide_lavapipe(caps);
}

// lavapipe, subgroup size 16, Mesa 26.1: a row-major load of an 8 x 8 matrix gives the upper eight lanes rows 1 to 4
// instead of rows 4 to 7, its length is 16 where a lane's share is 4, and the matrix kernel crashes the driver. Remove
// when the probe finds each place once there (device_tests/probe.cpp).
inline bool quirk_wrong_matrices(const DeviceCaps& caps) {
    return is_wide_lavapipe(caps);
}

// Adreno (vendor 0x5143) with registers for it, Turnip of Mesa 26.1: its compiler moves nothing out of loops, and what
// the portable kernels find anew for every chunk takes 11 % of their instructions (tools/gate adreno:740 --loops, D128
// in float32, row few-d128: 1.744 instead of 1.549 a multiply-add). On an Apple M1 the workaround would spill up to 43
// registers. lavapipe has the quirk too where it runs modules for GPUs, and SwiftShader has not, so that the tests run
// both. Remove when the loops of adreno:740 stay as they are without it.
inline bool quirk_moves_nothing_out_of_loops(const DeviceCaps& caps) {
    return kind_of(caps) == DeviceKind::adreno ||
           (caps.type == DeviceType::cpu && caps.driver_id != driver_swiftshader);
}

// SwiftShader (driver 10, a CPU), every version so far: its exp2 makes a finite number of NaN, and its log2 too, so the
// kernels put NaN back by its bits. Remove when the GPU test 'what is not finite ...' passes there without it.
inline bool quirk_exp2_loses_nan(const DeviceCaps& caps) {
    return caps.driver_id == driver_swiftshader;
}

// lavapipe (driver 13, a CPU) of Mesa 22.3.6, which Debian 12 has: its compiler ends the loops of an invocation after
// 65,535 iterations of all of them together (LP_MAX_TGSI_LOOP_ITERATIONS), so that long sequences come out wrong, and
// nothing says so. Mesa 25.0.7 and 26.1 do not. Which version between 22.3.6 and 25.0.7 was the first is not known, so
// all before 25.0.7 have the quirk. Walks are cut by the bounds of loops.cpp, which has what was measured; what cannot
// be cut is refused, and so are kernels on matrix units. Remove when no Mesa before 25.0.7 is supported, and narrow it
// where driver/long-loops passes with the quirk taken out.
inline bool quirk_loops_end_early(const DeviceCaps& caps) {
    return caps.driver_id == driver_lavapipe && caps.type == DeviceType::cpu &&
           caps.mesa_version < mesa_number(25, 0, 7);
}
// Refusals for that reason begin with it.
constexpr const char* loops_end_early = "this driver ends the loops of a shader after 65,535 iterations";

// RADV and NVK (Mesa 26.1): SignedZeroInfNanPreserve keeps their compilers from folding sums that begin with 0. In the
// rows kernel of 256 head dims NVK then takes 192 instead of 96 registers on Ampere, and RADV spills 42 on GFX11.5 and
// GFX12 (tools/gate). Kernels test bits wherever a result depends on it, so they do without. Remove when the gate's
// tables stay as they are without this quirk.
inline bool quirk_preserving_takes_registers(const DeviceCaps& caps) {
    return caps.driver_id == driver_nvk || caps.driver_id == driver_radv;
}

// NVIDIA's own driver (580.159, H200): SignedZeroInfNanPreserve makes the forward slower, beside the same binary
// without it: float16 on matrix units D64 4 %, D128 2 %, with a float mask 5 %, decoding 4 %. Kernels test bits
// wherever a result depends on it, so they do without. Remove when `vkattn bench` shows no difference.
inline bool quirk_preserving_takes_time(const DeviceCaps& caps) {
    return caps.driver_id == driver_nvidia;
}

// NVIDIA's own driver (580.159, H200): where matrix kernels number lanes by gl_LocalInvocationIndex, the forward takes
// 1.5 % longer in D128, so they take gl_SubgroupInvocationID there. Others keep the index: on an Adreno 840 the other
// number, as an index of shared memory that matrices are loaded from, gives wrong results (ncnn's pull request 6972),
// and RADV's steady loop takes up to 41 % more clocks with it (tools/gate amd:gfx1201, matrix-d64). CPUs have the quirk
// where they run modules for GPUs, so that tests run both. Remove when `vkattn bench` shows no difference.
inline bool quirk_index_takes_time(const DeviceCaps& caps) {
    return caps.driver_id == driver_nvidia || caps.type == DeviceType::cpu;
}

// Each workaround, with what it does, for those who ask which are active. A new one is added here, too.
struct Quirk {
    bool (*is_active)(const DeviceCaps& caps);
    const char* effect;
};
inline constexpr Quirk quirks[] = {
    {quirk_no_divergent_addresses, "tensors whose rows lie 2^31 bytes apart within a tile are refused"},
    {quirk_wrong_matrices, "no kernel on matrix units is planned, because matrices are loaded wrong"},
    {quirk_moves_nothing_out_of_loops,
     "the loops of portable kernels do not compute addresses again that a register can hold"},
    {quirk_exp2_loses_nan, "kernels put NaN back, of which exp2 makes a number"},
    {quirk_index_takes_time,
     "matrix kernels take the driver's number of a lane, not the index in the workgroup, in modules for "
     "GPUs"},
    {quirk_loops_end_early,
     "long loops are cut into several workgroups or dispatches, or refused, and no kernel on matrix units is "
     "planned, because this driver ends loops early"},
    {quirk_preserving_takes_registers,
     "modules do not ask for SignedZeroInfNanPreserve, which costs registers"},
    {quirk_preserving_takes_time, "modules do not ask for SignedZeroInfNanPreserve, which costs time"},
};

}  // namespace vkattn::core
