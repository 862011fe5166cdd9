// The matrix kernel's numbers, and how they are chosen: a shape of the matrix unit, a way to move P, a tuning row.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "device_kind.hpp"
#include "plan.hpp"

namespace vkattn::core {

// Numbers of the forward on matrix units. shaders/interface/forward_matrix.def and shaders/lib/matrix.glsl explain
// them.
struct MatrixNumbers {
    uint32_t subgroups;    // subgroups of a workgroup
    uint32_t row_blocks;   // blocks of M query rows that a subgroup has
    uint32_t tile_kv;      // keys of a tile
    uint32_t q_held = 0;   // head dims of Q that stay in registers; 0: none
    uint32_t chunk = 0;    // head dims of K staged at a time; 0: all
    uint32_t slice = 0;    // head dims of V that a workgroup has; 0: all
    uint32_t running = 0;  // 1: the loop with a running maximum; 0: the one with stale offsets
    uint32_t halves = 1;   // 2: the keys of a tile are multiplied by halves
    uint32_t l2_group_kib = 0;
    uint32_t min_group_workgroups = 0;
    uint32_t rolled = 0;  // 1: the module for CPUs
    uint32_t move = MOVE_SHARED;
    uint32_t turned = 0;  // 1: the products are turned round: lib/matrix_turned.glsl
    uint32_t layout = 0;
    MatrixShape shape{};
    uint32_t subgroup_size = 0;
    bool lane_by_index = true;  // false: the driver's number of a lane, in modules for GPUs

    uint32_t threads() const { return subgroups * subgroup_size; }
    uint32_t tile_q() const { return subgroups * row_blocks * shape.m; }
};

// Numbers of the backward on matrix units. shaders/interface/backward_matrix_constants.def and
// shaders/lib/backward_matrix.glsl explain them. The pass for dquery has those named q_, the pass for dkey and dvalue
// those named kv_, the pass for dbias those named mask_.
struct BackwardMatrixNumbers {
    uint32_t q_subgroups, q_row_blocks, q_walked, q_stages = 1;
    uint32_t kv_subgroups, kv_row_blocks, kv_walked, kv_stages = 1;
    uint32_t q_slices = 1;   // slices of dquery's head dims, one a workgroup
    uint32_t kv_slices = 1;  // slices of the head dims of dkey and dvalue
    uint32_t kv_apart = 0;   // 1: dkey and dvalue have a pass each
    // 1: two subgroups share their keys, and one finds dvalue, the other dkey; 2: the other does so a step later.
    uint32_t kv_paired = 0;
    uint32_t mask_subgroups = 4, mask_row_blocks = 1, mask_walked = 16, mask_chunks = 2;
    // If spill is not 0, the pass for dkey spills dS, and dquery is a product of that and key. With 1 it does so where
    // strips of dS are large enough to pay, with 2 wherever they have room. The workgroup of that product has
    // spilled_slices groups of subgroups, each with its own head dims, and fetches spilled_ahead tiles of
    // spilled_walked keys ahead.
    uint32_t spill = 0;
    uint32_t spilled_subgroups = 4, spilled_row_blocks = 1, spilled_slices = 1, spilled_walked = 16,
             spilled_ahead = 2;
    uint32_t l2_group_kib = 0;
    uint32_t min_group_workgroups = 0;
    uint32_t rolled = 0;  // 1: the modules for CPUs
    uint32_t move = MOVE_SHARED;
    uint32_t turned = 0;  // 1: turned products, but in the pass for dbias
    uint32_t q_v_staged =
        0;  // head dims of dout staged by dquery's pass instead of held, with turned products
    uint32_t layout = 0;
    MatrixShape shape{};
    uint32_t subgroup_size = 0;
    bool lane_by_index = true;  // false: the driver's number of a lane, in modules for GPUs

    uint32_t q_threads() const { return q_subgroups * subgroup_size; }
    uint32_t kv_threads() const { return kv_subgroups * subgroup_size; }
    uint32_t q_held() const { return q_subgroups * q_row_blocks * shape.m; }  // query rows of a workgroup
    // Subgroups or pairs with keys of their own.
    uint32_t kv_owners() const { return kv_paired != 0 ? kv_subgroups / 2 : kv_subgroups; }
    uint32_t kv_held() const { return kv_owners() * kv_row_blocks * shape.m; }  // keys of a workgroup
    uint32_t spilled_threads() const { return spilled_subgroups * subgroup_size; }
    uint32_t spilled_held() const {
        return spilled_subgroups / spilled_slices * spilled_row_blocks * shape.m;
    }
    uint32_t mask_threads() const { return mask_subgroups * subgroup_size; }
    uint32_t mask_held() const {
        return mask_subgroups * mask_row_blocks * shape.m;
    }                                                                 // query rows of a workgroup
    uint32_t mask_keys() const { return mask_chunks * mask_walked; }  // and its keys
};

struct BackwardMatrixRow {
    const char* name;
    DeviceKind device;
    uint32_t max_head_dim;  // the larger of head_dim_qk and head_dim_v
    BackwardMatrixNumbers numbers;
    uint32_t only = 0;            // USE_* bits that a problem must all have
    uint32_t simd_registers = 0;  // registers that a SIMD must have at least
};

struct MatrixRow {
    const char* name;
    DeviceKind device;
    uint32_t max_head_dim;  // the larger of head_dim_qk and head_dim_v
    uint32_t residency;     // as in TuningRow
    MatrixNumbers numbers;
    uint32_t only = 0;            // USE_* bits that a problem must all have
    uint32_t simd_registers = 0;  // registers that a SIMD must have at least
};
constexpr uint32_t USE_SHARED = 1;  // P goes through shared memory
constexpr uint32_t USE_BIAS = 2;    // a mask is fetched or staged ahead
constexpr uint32_t USE_BF16 = 4;    // operands are bfloat16
// Requires 16-byte staging and 16-bit storage; excludes softcap and the running maximum.
constexpr uint32_t USE_WIDE = 8;
constexpr uint32_t USE_TURNED = 16;    // the products are turned round
constexpr uint32_t USE_UNMASKED = 64;  // there is no mask
constexpr uint32_t USE_EXCHANGED =
    32;  // products are turned round, and the two halves of a subgroup exchange P
constexpr uint32_t USE_WHOLE_BLOCKS = 256;  // there is a block map, and its blocks hold whole tiles
constexpr uint32_t USE_FLOAT32 = 128;       // storage is float32; only the backward has rows for it
constexpr uint32_t USE_LAGGING = 512;  // pairs of subgroups of the backward may lag, and most tiles are plain
constexpr uint32_t USE_UNEVEN =
    1024;  // some rows see fewer keys than others; only the backward has rows for it
constexpr uint32_t USE_64_ROWS =
    2048;  // a key head has at most 64 query rows, which the numbers may depend on

// Tests walk the whole tables.
std::span<const MatrixRow> matrix_rows();
// Default for turned products: on, where P stays in registers no other way.
bool is_turned(const Problem& p, const MatrixShape& shape, bool khr);

std::span<const BackwardMatrixRow> backward_matrix_rows();

// Shared memory of one pass of the backward, in vec4.
enum class MatrixPass { query, key_value, mask, spilled };
uint32_t backward_matrix_pool(const BackwardMatrixNumbers& n, const Problem& problem, MatrixPass pass);

// The power of two, up to 16, that divides the bytes by which rows of the mask lie apart; 0 without a mask.
uint32_t mask_row_bytes(const Problem& problem);

// Tells why no kernel on matrix units runs on this device; nothing if one may. The failure names `field`.
std::optional<Failure> why_no_matrices(const DeviceCaps& caps, const char* field);

// Returns the fastest way to make P an operand (MOVE_*) that the device is known to have. With `khr` it uses nothing
// beyond VK_KHR_cooperative_matrix. Float32 storage has modules for two ways only.
uint32_t matrix_move_of(const DeviceCaps& caps, const Problem& problem, const MatrixShape& shape, bool khr);

// Tells why this shape of the device's matrix unit cannot make P an operand in this way, forward or backward, or "".
std::string why_no_move(const Problem& problem, const MatrixShape& shape, uint32_t layout, uint32_t move,
                        uint32_t turned);

// The subgroup size that matrix kernels run with; 0 if the device cannot guarantee a size, or full subgroups.
uint32_t matrix_subgroup_size(const DeviceCaps& caps);
bool is_usable(const MatrixShape& shape,
               uint32_t subgroup_size);  // True for shapes that the kernels are written for.

// What a workgroup of the forward has on this problem, computed from the numbers.
struct MatrixTile {
    uint32_t chunk;  // elements, a multiple of K
    uint32_t chunks;
    uint32_t q_steps_held;
    uint32_t slices;  // of the head dims of V
    uint32_t pool_vec4;
};
MatrixTile matrix_tile(const MatrixNumbers& n, const Problem& problem);

}  // namespace vkattn::core
