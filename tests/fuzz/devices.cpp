// Devices and options for the planner: such as there may be, and some that there are not.
#include <algorithm>

#include <fmt/format.h>

#include "inputs.hpp"
#include "plan/quirks.hpp"

namespace vkattn::fuzz {
namespace {

constexpr const char* tuning_names[] = {"threads",     "lanes",          "rows",
                                        "cols",        "chunk",          "p_blocks",
                                        "v_keys",      "prefetch",       "unroll",
                                        "q_slices",    "kv_slices",      "rolled",
                                        "subgroups",   "row_blocks",     "tile_kv",
                                        "q_held",      "slice",          "running",
                                        "halves",      "l2_group_kib",   "move",
                                        "q_subgroups", "q_row_blocks",   "q_walked",
                                        "q_stages",    "kv_subgroups",   "kv_row_blocks",
                                        "kv_walked",   "kv_stages",      "kv_apart",
                                        "kv_paired",   "mask_subgroups", "mask_row_blocks",
                                        "mask_walked", "mask_chunks",    "min_group_workgroups"};
constexpr const char* kernels[] = {"",           "auto",      "rows",         "matrix",
                                   "matrix_khr", "tiles",     "materialized", "?",
                                   "combine",    "tiles_dot", "rows_dot",     "matrix_rows"};

std::string tuning_of(Bytes& bytes) {
    if (bytes.one_in(64)) return bytes.ConsumeRandomLengthString(400);
    std::string text;
    for (uint32_t count = bytes.below(6); count > 0; count--)
        text += fmt::format("{}{}={}", text.empty() ? "" : ",", bytes.PickValueInArray(tuning_names),
                            bytes.ConsumeBool() ? uint64_t{1} << bytes.below(12) : bytes.number(34));
    return text;
}

// A size of the matrix unit: mostly one that there is.
uint32_t matrix_size(Bytes& bytes) {
    return bytes.one_in(16) ? static_cast<uint32_t>(bytes.number(12)) : 8u << bytes.below(3);
}

core::MatrixShape shape_of(Bytes& bytes) {
    core::MatrixShape s;
    s.m = matrix_size(bytes);
    s.n = bytes.ConsumeBool() ? s.m : matrix_size(bytes);
    s.k = bytes.ConsumeBool() ? s.n : matrix_size(bytes);
    s.dtype = bytes.ConsumeBool() ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_BFLOAT16;
    s.rounded = s.dtype == VKATTN_DTYPE_FLOAT16 && bytes.ConsumeBool();
    if (bytes.ConsumeBool()) {
        s.layout = bytes.one_in(4) ? bytes.ConsumeIntegral<uint32_t>() : 0x9108a432;
        s.left_alike = s.layout != 0 && s.n == s.k && bytes.ConsumeBool();
    }
    return s;
}

// A device lists no shape twice. The checks tell shapes apart by sizes and type.
void add_shape(std::vector<core::MatrixShape>& shapes, const core::MatrixShape& shape) {
    const bool listed = std::ranges::any_of(shapes, [&](const core::MatrixShape& s) {
        return s.m == shape.m && s.n == shape.n && s.k == shape.k && s.dtype == shape.dtype;
    });
    if (!listed) shapes.push_back(shape);
}

void set_subgroups(Bytes& bytes, core::DeviceCaps& caps) {
    caps.subgroup_size = bytes.one_in(8) ? 1 + bytes.below(200) : 1u << bytes.below(8);
    caps.min_subgroup_size = caps.max_subgroup_size = caps.subgroup_size;
    if (bytes.one_in(3)) caps.min_subgroup_size = 1u << bytes.below(8);
    if (bytes.one_in(3)) caps.max_subgroup_size = 1u << bytes.below(8);
    caps.max_subgroup_size = std::max(caps.min_subgroup_size, caps.max_subgroup_size);
    if (bytes.one_in(16)) caps.min_subgroup_size = caps.max_subgroup_size = 0;
    caps.subgroup_size_control = bytes.ConsumeBool();
    caps.full_subgroups = !bytes.one_in(8);
}

// Vulkan guarantees 128 invocations, and more than these few workgroups and bytes; the planner relies on it.
void set_limits(Bytes& bytes, core::DeviceCaps& caps) {
    static constexpr uint32_t shared[] = {16384, 32768, 49152, 65536, 163840, 232448};
    caps.max_shared_bytes =
        bytes.one_in(4) ? static_cast<uint32_t>(bytes.number(32)) : bytes.PickValueInArray(shared);
    caps.max_invocations =
        bytes.one_in(4) ? 128 + static_cast<uint32_t>(bytes.number(16)) : 128u << bytes.below(5);
    for (size_t i = 0; i < 3; i++) {
        caps.max_workgroup_size[i] =
            bytes.one_in(8) ? 128 + static_cast<uint32_t>(bytes.number(16)) : caps.max_invocations;
        caps.max_workgroup_count[i] = bytes.one_in(4)       ? 1 + static_cast<uint32_t>(bytes.number(31))
                                      : bytes.ConsumeBool() ? 65535
                                                            : 0x7fffffff;
    }
    caps.max_push_constant_bytes = bytes.one_in(32) ? bytes.below(512) : 128u << bytes.below(2);
    caps.max_buffer_bytes =
        bytes.one_in(3) ? (1u << 16) + bytes.number(63) : uint64_t{1} << (30 + bytes.below(4));
    if (bytes.one_in(2)) caps.device_local_bytes = bytes.number(40);
    caps.multiprocessors = static_cast<uint32_t>(bytes.one_in(16) ? bytes.number(32) : bytes.below(200));
}

}  // namespace

core::Options options_of(Bytes& bytes) {
    core::Options o;
    o.kernel = bytes.one_in(64) ? bytes.ConsumeRandomLengthString(400) : bytes.PickValueInArray(kernels);
    if (bytes.one_in(2)) o.tuning = tuning_of(bytes);
    if (bytes.one_in(3)) o.max_scratch_bytes = bytes.number(40);
    if (bytes.one_in(3)) o.max_dispatch_flops = bytes.number(50);
    if (bytes.one_in(3)) o.num_splits = static_cast<uint32_t>(bytes.number(bytes.one_in(8) ? 32 : 6));
    o.batch_invariant = bytes.one_in(4);
    if (bytes.one_in(3)) o.precision = static_cast<VkattnPrecision>(bytes.below(4));
    return o;
}

void turn_products(Bytes& bytes, core::DeviceCaps& caps, core::Options& options) {
    if (!bytes.ConsumeBool()) return;
    caps.int64 = true;
    for (core::MatrixShape& shape : caps.matrices) {
        if (shape.m != 16 || shape.n != 16 || shape.k != 16 || shape.left_alike) continue;
        shape.exchanges =
            shape.dtype == VKATTN_DTYPE_FLOAT16 && caps.subgroup_size == 32 && bytes.ConsumeBool();
        shape.layout = shape.exchanges ? 0x3210a984 : 0x32104a98;
        shape.turned_layout = 0x4a983210;
    }
    if (bytes.one_in(3)) return;
    options.tuning += fmt::format("{}turned={}", options.tuning.empty() ? "" : ",", bytes.below(3));
    const bool says_move = options.tuning.find("move=") != std::string::npos;
    if (bytes.ConsumeBool() && !says_move) options.tuning += fmt::format(",move={}", bytes.below(4));
    if (bytes.ConsumeBool()) options.tuning += fmt::format(",q_v_staged={}", 8 * bytes.number(8));
}

core::DeviceCaps device_of(Bytes& bytes) {
    static constexpr uint32_t vendors[] = {0x10de, 0x1002, 0x8086, 0x10005, 0x13b5, 0x5143, 0x106b, 0};
    static constexpr uint32_t drivers[] = {core::driver_nvidia,
                                           core::driver_nvk,
                                           core::driver_radv,
                                           core::driver_swiftshader,
                                           core::driver_turnip,
                                           core::driver_honeykrisp,
                                           0,
                                           13};
    core::DeviceCaps caps;
    caps.vendor_id = bytes.PickValueInArray(vendors);
    caps.driver_id = bytes.PickValueInArray(drivers);
    caps.name = caps.driver_id == core::driver_turnip ? "Turnip Adreno (TM) 740" : "fuzzed";
    caps.type = static_cast<core::DeviceType>(bytes.below(5));
    caps.api_version = core::version_1_2 + (bytes.below(3) << 12) - (bytes.one_in(32) ? 1u << 12 : 0);
    caps.buffer_device_address = !bytes.one_in(64);
    caps.storage_16bit = bytes.ConsumeBool();
    set_subgroups(bytes, caps);
    set_limits(bytes, caps);
    caps.matrix_conversions = bytes.ConsumeBool();
    caps.preserves_nonfinite = bytes.ConsumeBool();
    // As caps.cpp has it: no matrices without 16-bit storage.
    if (caps.storage_16bit && !bytes.one_in(4))
        for (uint32_t count = bytes.below(5); count > 0; count--) add_shape(caps.matrices, shape_of(bytes));
    constexpr uint32_t all = (1u << static_cast<uint32_t>(core::Kernel::count)) - 1;
    if (bytes.one_in(4)) caps.missing_kernels = bytes.ConsumeIntegral<uint32_t>() & all;
    caps.dot_float16 = caps.storage_16bit && bytes.ConsumeBool();
    caps.dot_bfloat16 = caps.storage_16bit && bytes.ConsumeBool();
    static constexpr uint32_t registers[] = {0, 512, 1024, 1536};
    caps.simd_registers = bytes.PickValueInArray(registers);
    return caps;
}

}  // namespace vkattn::fuzz
