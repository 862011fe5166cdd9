// Plans the forward on matrix units: it chooses a row of numbers and a shape of the matrix unit, and makes the launch.
#include "matrix.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "classes.hpp"
#include "launch.hpp"
#include "matrix_choice.hpp"
#include "quirks.hpp"

namespace vkattn::core {
namespace {

using Device = DeviceKind;

// Returns these numbers with workgroups that go together through 16 MiB of K and V at a time (docs/tuning.md).
constexpr MatrixNumbers in_groups(MatrixNumbers n) {
    n.l2_group_kib = 16384;
    n.min_group_workgroups = 256;
    return n;
}

// Most specific first within a device. docs/tuning.md has the commands, and what else was tried. Figures of the H200
// are TFLOP/s of float16 at N 4,096. Rows for AMD and for any device were not run on their own devices: clocks are of
// one SIMD for 32 products at D128 and 16 at D64, by `tools/gate --loops`.
// clang-format off
constexpr MatrixRow rows[] = {
    // max: head_dim, residency, numbers, only, simd_registers
    // H200: 221, with the kernel matrix_khr.
    {"nvidia-shared-d64", Device::nvidia_driver, 64, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 48, .q_held = 64}), USE_SHARED},
    // H200, with a map that hides no block: 327, and 303 with the row that follows.
    {"nvidia-map-d64", Device::nvidia_driver, 64, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 64, .q_held = 64, .halves = 2}), USE_WHOLE_BLOCKS},
    // H200: 337; with a float mask 217.
    {"nvidia-matrix-d64", Device::nvidia_driver, 64, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 64, .q_held = 64})},
    // H200, with a float mask: 239. The wide rows have two workgroups a multiprocessor with 24 KiB each. An invocation
    // stages twice what one of 8 subgroups does, so nothing else may take registers.
    {"nvidia-wide-bias", Device::nvidia_driver, 128, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 32, .q_held = 112}), USE_WIDE | USE_BIAS},
    // H200, with a float mask: 203.
    {"nvidia-bias-d128", Device::nvidia_driver, 128, 1,
     in_groups({.subgroups = 8, .row_blocks = 2, .tile_kv = 32, .q_held = 80}), USE_BIAS},
    // H200, bfloat16: 305.
    {"nvidia-wide-bf16", Device::nvidia_driver, 128, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 32, .q_held = 112, .halves = 2}), USE_WIDE | USE_BF16},
    // H200, N 16,384, batch 4, 32 and 8 heads, D128: 0.103 ms with 32 query rows of a key head, and 0.106 with 64. The
    // row for any number of them took 0.124 and 0.127 ms.
    {"nvidia-64-rows", Device::nvidia_driver, 128, 2,
     in_groups({.subgroups = 4, .row_blocks = 1, .tile_kv = 32, .q_held = 128}), USE_WIDE | USE_64_ROWS},
    // H200: 326 at D80.
    {"nvidia-wide-d80", Device::nvidia_driver, 80, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 64, .q_held = 80, .halves = 2}), USE_WIDE},
    // H200: 323 at D96.
    {"nvidia-wide-d96", Device::nvidia_driver, 96, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 32, .q_held = 96, .halves = 2}), USE_WIDE},
    // H200: 332.
    {"nvidia-wide-d128", Device::nvidia_driver, 128, 2,
     in_groups({.subgroups = 4, .row_blocks = 2, .tile_kv = 32, .q_held = 112}), USE_WIDE},
    // H200: 320.
    {"nvidia-matrix-d128", Device::nvidia_driver, 128, 1,
     in_groups({.subgroups = 8, .row_blocks = 2, .tile_kv = 32, .q_held = 80, .halves = 2})},
    // H200, with a float mask: 206.
    {"nvidia-bias-d256", Device::nvidia_driver, 256, 1,
     in_groups({.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .q_held = 256}), USE_BIAS},
    // H200: 291; 234 with the kernel matrix_khr.
    {"nvidia-matrix-d256", Device::nvidia_driver, 256, 1,
     in_groups({.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .q_held = 256, .halves = 2})},
    // It was not swept.
    {"nvidia-matrix-d576", Device::nvidia_driver, 576, 1,
     in_groups({.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .chunk = 64, .slice = 256, .running = 1})},

    // The numbers are as small as keeps pipelines quick to build on lavapipe.
    {"cpu-matrix-d576", Device::cpu, 576, 1,
     {.subgroups = 2, .row_blocks = 1, .tile_kv = 16, .chunk = 64, .slice = 128, .running = 1}},

    // The rows named 1536 are for SIMDs with 1,536 registers (navi31, navi32), where 12 subgroups have 240 registers
    // each and a SIMD has 6 waves. On navi31 this one takes 599 clocks.
    {"rdna3-1536-d64", Device::amd, 64, 1,
     {.subgroups = 16, .row_blocks = 1, .tile_kv = 32, .q_held = 64, .halves = 2}, USE_TURNED | USE_EXCHANGED, 1536},
    // phoenix and strix1: 598 clocks.
    {"rdna3-wide-d64", Device::amd, 64, 1,
     {.subgroups = 12, .row_blocks = 1, .tile_kv = 32, .q_held = 64, .halves = 2},
      USE_TURNED | USE_EXCHANGED | USE_WIDE | USE_UNMASKED},
    // With a float mask: 634 clocks.
    {"rdna3-turned-d64", Device::amd, 64, 2,
     {.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .q_held = 64, .halves = 2}, USE_TURNED | USE_EXCHANGED},
    // navi31, with a float mask: 1,144 clocks before both savings that docs/tuning.md names.
    {"rdna3-1536-bias", Device::amd, 128, 1,
     {.subgroups = 12, .row_blocks = 1, .tile_kv = 32, .q_held = 96}, USE_TURNED | USE_EXCHANGED | USE_BIAS, 1536},
    // navi31: 1,111 clocks.
    {"rdna3-1536-wide", Device::amd, 128, 1,
     {.subgroups = 12, .row_blocks = 1, .tile_kv = 32, .q_held = 128, .halves = 2},
      USE_TURNED | USE_EXCHANGED | USE_WIDE | USE_UNMASKED, 1536},
    // navi31, with a boolean mask: 1,129 clocks before both savings.
    {"rdna3-1536-d128", Device::amd, 128, 1,
     {.subgroups = 12, .row_blocks = 1, .tile_kv = 32, .q_held = 96, .halves = 2}, USE_TURNED | USE_EXCHANGED, 1536},
    // With a float mask, before both savings: 1,206 clocks on phoenix, 1,185 on strix1.
    {"rdna3-bias-d128", Device::amd, 128, 2,
     {.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .q_held = 96}, USE_TURNED | USE_EXCHANGED | USE_BIAS},
    // 1,118 clocks.
    {"rdna3-wide-d128", Device::amd, 128, 2,
     {.subgroups = 8, .row_blocks = 1, .tile_kv = 16, .q_held = 128},
      USE_TURNED | USE_EXCHANGED | USE_WIDE | USE_UNMASKED},
    // A step of Q is staged: with masks or softcap 4 to 13 registers spill otherwise.
    {"rdna3-turned-d128", Device::amd, 128, 2,
     {.subgroups = 8, .row_blocks = 1, .tile_kv = 32, .q_held = 112}, USE_TURNED | USE_EXCHANGED},
    // gfx1201: 318 clocks at D64, 576 at D128.
    {"rdna4-turned-d64", Device::amd, 64, 2,
     {.subgroups = 8, .row_blocks = 2, .tile_kv = 32, .q_held = 64}, USE_TURNED},
    {"rdna4-turned-d128", Device::amd, 128, 2,
     {.subgroups = 16, .row_blocks = 1, .tile_kv = 32, .q_held = 128, .halves = 2}, USE_TURNED},

    // Nothing spills by tools/gate.
    {"matrix-d64", Device::any, 64, 2, {.subgroups = 4, .row_blocks = 1, .tile_kv = 32, .q_held = 64}},
    {"matrix-d128", Device::any, 128, 1, {.subgroups = 4, .row_blocks = 1, .tile_kv = 32, .q_held = 112}},
    {"matrix-d576", Device::any, 576, 1,
     {.subgroups = 4, .row_blocks = 1, .tile_kv = 32, .chunk = 64, .slice = 128, .running = 1}},
};
// clang-format on

// Rows of the kernel matrix_rows. A workgroup is one subgroup, which has all query rows of a kv head, so that V takes
// the place of K in shared memory and a multiprocessor has room for many workgroups.
constexpr uint64_t most_few_rows = 16;
// clang-format off
constexpr MatrixRow few_rows[] = {
    // H200, float16, one query token, N 65,536, batch 8, 32 and 8 heads: 0.252 ms, because 15 workgroups fit a
    // multiprocessor and 30 splits make as many. With 32 splits it takes 0.266, with 16 0.275 ms.
    {"nvidia-few-rows-d64", Device::nvidia_driver, 64, 15,
     {.subgroups = 1, .row_blocks = 1, .tile_kv = 16, .q_held = 64, .running = 1}},
    // The problem of the row above takes 0.494 ms at D128, and 0.495 ms with 64 query heads. The kernel `rows` took
    // 0.531 and 3.91 ms. A multiprocessor has room for 8 workgroups, and 16 splits make as many. With 24 splits it
    // takes 0.535 ms, with tiles of 32 keys 0.575 ms.
    {"nvidia-few-rows", Device::nvidia_driver, 128, 8,
     {.subgroups = 1, .row_blocks = 1, .tile_kv = 16, .q_held = 128, .running = 1}},
    // At D256 and N 32,768 it takes 0.913 ms, and 0.965 with q_held=128.
    {"nvidia-few-rows-d256", Device::nvidia_driver, 256, 4,
     {.subgroups = 1, .row_blocks = 1, .tile_kv = 16, .q_held = 0, .running = 1}},
    // At D576 with values of 512, N 32,768 and 16 query heads on one key head it takes 0.75 ms, because four workgroups
    // fit a multiprocessor. The row matrix-d576 took 1.21 ms. Chunks of 96, 144 and 288 elements take 1.03, 0.82 and
    // 1.54 ms, and slices of 128 elements take 1.04 ms.
    {"nvidia-few-rows-d576", Device::nvidia_driver, 576, 4,
     {.subgroups = 1, .row_blocks = 1, .tile_kv = 16, .chunk = 192, .slice = 256, .running = 1}},
    // These are for tests.
    {"cpu-few-rows", Device::cpu, 256, 1,
     {.subgroups = 1, .row_blocks = 2, .tile_kv = 16, .q_held = 128, .running = 1}},
    {"cpu-few-rows-d576", Device::cpu, 576, 1,
     {.subgroups = 1, .row_blocks = 1, .tile_kv = 16, .chunk = 192, .slice = 256, .running = 1}},
};
// clang-format on

const NumberFields<MatrixNumbers>& fields() {
    using N = MatrixNumbers;
    static const NumberFields<N> all = {{"subgroups", &N::subgroups},
                                        {"row_blocks", &N::row_blocks},
                                        {"tile_kv", &N::tile_kv},
                                        {"q_held", &N::q_held},
                                        {"chunk", &N::chunk},
                                        {"slice", &N::slice},
                                        {"running", &N::running},
                                        {"halves", &N::halves},
                                        {"l2_group_kib", &N::l2_group_kib},
                                        {"min_group_workgroups", &N::min_group_workgroups},
                                        {"rolled", &N::rolled},
                                        {"move", &N::move},
                                        {"turned", &N::turned}};
    return all;
}

// True if rows of a tile lie too far apart for 32-bit offsets, which inner tiles of the loop with stale offsets have.
bool rows_are_far(const Problem& p, const MatrixNumbers& n) {
    return !p.narrow_rows(n.tile_q(), n.tile_kv, packs(p, n.tile_q()));
}

// True if a mask is fetched ahead: lib/matrix_bias.glsl says when.
bool fetches_bias(const Problem& p, const MatrixNumbers& n) {
    const bool is_only_term = p.softcap == 0 && p.slopes == VKATTN_SLOPES_NONE && reads_whole_mask(p);
    return p.mask == VKATTN_MASK_FLOAT && is_only_term && p.is_all_16bit() && n.running == 0 &&
           n.move == MOVE_FRAGMENT;
}

// The USE_* bits of a problem on these numbers.
uint32_t uses_of(const Problem& p, const MatrixNumbers& n) {
    const bool in_registers = n.move == MOVE_FRAGMENT && n.running == 0 && !finishes_all_tiles(p);
    const bool whole = p.alignment_bytes % 16 == 0 && p.head_dim_qk % 8 == 0 && p.head_dim_v % 8 == 0;
    uint32_t uses = n.shape.dtype == VKATTN_DTYPE_BFLOAT16 ? USE_BF16 : 0;
    if (n.move >= MOVE_SHARED) uses |= USE_SHARED;
    if (fetches_bias(p, n)) uses |= USE_BIAS;
    if (in_registers && whole && p.has_narrow_keys()) uses |= USE_WIDE;
    if (!hides_keys(p)) uses |= USE_UNMASKED;
    if (has_whole_blocks(p, std::array{LinkedTiles{.held = n.tile_q(), .walked = n.tile_kv}}))
        uses |= USE_WHOLE_BLOCKS;
    if (n.turned != 0) uses |= n.shape.exchanges ? USE_TURNED | USE_EXCHANGED : USE_TURNED;
    return uses;
}

struct ForwardDirection : MatrixDirection {
    MatrixNumbers on_shape(const MatrixNumbers& row, const MatrixShape& shape, bool khr, bool turned) const {
        MatrixNumbers n = put_on_shape(caps, problem, row, shape, khr, turned);
        const bool masked = hides_keys(problem);
        if (n.move >= MOVE_SHARED) n.halves = 1;
        if (!problem.is_all_16bit() && masked) n.q_held = std::min(n.q_held, 96u);
        const bool mask_needs_maximum = masked && n.move != MOVE_FRAGMENT;
        if (options.batch_invariant || mask_needs_maximum || rows_are_far(problem, n)) n.running = 1;
        return n;
    }
    // A running maximum takes the keys of a tile all at once, so that the row's halves give way to 1 there, but the
    // caller's number stays.
    Result<bool> apply_tuning(MatrixNumbers& n) const {
        if (auto ok = set_numbers(n, options.tuning, fields()); !ok) return ok;
        if (n.running != 1) return true;
        n.halves = 1;
        return set_numbers(n, options.tuning, fields());
    }
    uint32_t uses_of(const MatrixNumbers& n) const {
        const bool has_few_rows = uint64_t{problem.seqlen_q} * problem.group_size <= 64;
        return core::uses_of(problem, n) | (has_few_rows ? USE_64_ROWS : 0);
    }
    std::string malformed(const MatrixNumbers& n) const {
        const MatrixShape& s = n.shape;
        if (n.subgroups == 0 || n.row_blocks == 0 || n.tile_kv == 0)
            return "subgroups, row_blocks and tile_kv are not 0";
        if (n.subgroups > 64 || n.row_blocks > 16 || n.tile_kv > 1024)
            return "subgroups, row_blocks or tile_kv is too large";
        if (n.tile_kv % s.n != 0 || n.tile_kv % s.k != 0)
            return fmt::format("tile_kv is not a multiple of {} and {}", s.n, s.k);
        if (n.running > 1) return "running is 0 or 1";
        if (options.batch_invariant && n.running == 0) return "batch_invariant needs running=1";
        if (matrix_tile(n, problem).chunks > 1 && n.running == 0) return "chunks of head dims need running=1";
        if (n.halves != 1 && (n.halves != 2 || n.running == 1 || n.tile_kv % (2 * s.n) != 0 || s.n != s.k))
            return "halves is 1, or 2 where halves of a tile are whole and running is 0";
        return "";
    }
    // The failure is VKATTN_UNSUPPORTED, by which the GPU tests skip cases for other units.
    std::string unfit(const MatrixNumbers& n) const {
        const MatrixShape& s = n.shape;
        if (hides_keys(problem) && n.move != MOVE_FRAGMENT && n.running == 0)
            return "masks and block maps need running=1 or move=0";
        if (n.running == 0 && rows_are_far(problem, n))
            return "rows of a tile that lie 2^31 bytes apart need running=1";
        if (n.halves == 2 && n.move >= MOVE_SHARED) return "halves=2 needs P to stay in registers";
        if (n.move == MOVE_CONVERT && (!caps.matrix_conversions || s.n != s.k))
            return "move=1 needs VK_NV_cooperative_matrix2";
        return why_no_move(problem, s, n.layout, n.move, n.turned);
    }
    uint32_t most_threads(const MatrixNumbers& n) const { return n.threads(); }
    uint64_t most_pool_vec4(const MatrixNumbers& n) const { return matrix_tile(n, problem).pool_vec4; }
    TileChoice chosen(const MatrixRow& row, const MatrixNumbers& n) const {
        TileChoice tiles{};
        tiles.row = row.name;
        tiles.pool_vec4 = matrix_tile(n, problem).pool_vec4;
        tiles.residency = row.residency;
        tiles.pack = packs(problem, n.tile_q());
        tiles.matrix = n;
        return tiles;
    }
};

}  // namespace

bool is_turned(const Problem& p, const MatrixShape& shape, bool khr) {
    return !khr && shape.turned_layout != 0 && !shape.left_alike && p.is_all_16bit();
}

std::span<const MatrixRow> matrix_rows() {
    return rows;
}

uint32_t mask_row_bytes(const Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return 0;
    uint64_t unit = 16;
    for (const uint64_t stride : {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq})
        unit = std::gcd(unit, stride * p.mask_element_bytes());
    return static_cast<uint32_t>(unit);
}

uint32_t matrix_move_of(const DeviceCaps& caps, const Problem& p, const MatrixShape& shape, bool khr) {
    const bool alike = shape.n == shape.k;
    if (!khr && alike && shape.layout != 0 && shape.left_alike) return MOVE_FRAGMENT;
    if (!p.is_all_16bit()) return MOVE_SHARED_FLOAT;
    if (!khr && alike && caps.matrix_conversions) return MOVE_CONVERT;
    return shape.rounded ? MOVE_SHARED : MOVE_SHARED_FLOAT;
}

std::string why_no_move(const Problem& p, const MatrixShape& s, uint32_t layout, uint32_t move,
                        uint32_t turned) {
    if (turned == 1 && (layout == 0 || move != MOVE_FRAGMENT || !p.is_all_16bit()))
        return "turned=1 needs the kernel `matrix`, move=0, 16-bit storage, and a probe that has found how "
               "accumulators become right operands";
    if (move == MOVE_FRAGMENT && turned == 0 && (layout == 0 || !s.left_alike || s.n != s.k))
        return "move=0 needs a known layout that both matrices have";
    if (move == MOVE_SHARED && !s.rounded) return "move=2 needs float16 accumulators";
    return "";
}

std::optional<Failure> why_no_matrices(const DeviceCaps& caps, const char* field) {
    if (caps.matrices.empty())
        return unsupported(field, "the device has no matrix unit, or it is not enabled");
    if (quirk_wrong_matrices(caps)) return unsupported(field, "this driver loads matrices wrong at 16 lanes");
    if (quirk_loops_end_early(caps)) return unsupported(field, loops_end_early);
    if (!caps.full_subgroups)
        return unsupported(field,
                           "matrix kernels need the feature computeFullSubgroups, which is not enabled");
    if (matrix_subgroup_size(caps) == 0)
        return unsupported(field, "subgroups of this device may have several sizes");
    return std::nullopt;
}

// Takes the smallest size, at which matrix units work: 32 of 32 and 64 on AMD, 8 of 8 to 32 on Intel's first. Vulkan
// demands full subgroups of pipelines with matrices unless their modules are SPIR-V 1.6, which not every kernel's are.
uint32_t matrix_subgroup_size(const DeviceCaps& caps) {
    if (!caps.full_subgroups) return 0;
    if (caps.subgroup_size_control || caps.min_subgroup_size == caps.max_subgroup_size)
        return caps.min_subgroup_size;
    return 0;
}

// True for shapes that the kernel is written for.
bool is_usable(const MatrixShape& shape, uint32_t subgroup_size) {
    if (shape.uneven || shape.m == 0 || shape.n == 0 || shape.k == 0) return false;
    return shape.m % 8 == 0 && shape.n % 8 == 0 && shape.k % 8 == 0 && shape.m <= 64 && shape.n <= 64 &&
           32 % shape.n == 0 && shape.m * shape.n % (2 * subgroup_size) == 0;
}

MatrixTile matrix_tile(const MatrixNumbers& n, const Problem& p) {
    MatrixTile t{};
    const uint32_t k = n.shape.k, steps = MATRIX_STEPS(p.head_dim_qk, k);
    const uint32_t chunk_steps = n.chunk == 0 ? steps : std::min(steps, std::max(1u, n.chunk / k));
    t.chunk = chunk_steps * k;
    t.chunks = MATRIX_STEPS(steps, chunk_steps);
    t.q_steps_held = t.chunks > 1 ? 0 : std::min(chunk_steps, n.q_held / k);
    const uint32_t slice = n.slice == 0 ? p.head_dim_v : std::min(n.slice, p.head_dim_v);
    const uint32_t out_span =
        MATRIX_STEPS(p.head_dim_v, n.shape.n * MATRIX_STEPS(p.head_dim_v, slice)) * n.shape.n;
    t.slices = MATRIX_STEPS(p.head_dim_v, out_span);  // none is empty
    const uint32_t staged = chunk_steps - t.q_steps_held, block = n.shape.m * MATRIX_FLOAT_STRIDE(n.shape.n);
    uint32_t pool = n.tile_kv * (MATRIX_STRIDE(t.chunk) + MATRIX_STRIDE(out_span));
    if (n.running != 0 && n.turned == 0 &&
        MATRIX_SHARES_PLACE(n.subgroups, t.chunk, t.chunks, p.head_dim_qk, out_span, t.slices, p.head_dim_v))
        pool = n.tile_kv * std::max(MATRIX_STRIDE(t.chunk), MATRIX_STRIDE(out_span));
    if (n.turned != 0)
        pool = MATRIX_STEPS(n.tile_kv * TURNED_STRIDE(t.chunk) + out_span * TURNED_STRIDE(n.tile_kv), 2);
    if (staged != 0) pool += n.tile_q() * MATRIX_STRIDE(staged * k);
    const bool through_shared = n.move >= MOVE_SHARED;
    if (n.layout == 0) pool += MATRIX_PLACES(n.shape.m, n.shape.n);
    if (n.layout == 0 || through_shared) {
        const uint32_t of_p = through_shared ? n.shape.m * MATRIX_STRIDE(n.tile_kv) : 0;
        pool += n.subgroups * (n.move == MOVE_SHARED ? std::max(block, of_p) : block + of_p);
    }
    // Before and after the loop each subgroup has a share: the rows of one step of Q, or of one tile of the output and
    // its statistics.
    const uint32_t share = n.shape.m * std::max(MATRIX_STRIDE(k) + 1, MATRIX_FLOAT_STRIDE(n.shape.n) + 1);
    t.pool_vec4 = std::max(pool, n.subgroups * share);
    return t;
}

std::string to_text(const MatrixNumbers& n) {
    return text_of(n, fields());
}

Result<TileChoice> choose_matrix(const DeviceCaps& caps, const Problem& p, const Options& options,
                                 KernelKind kind) {
    if (kind == KernelKind::matrix_rows) {
        if (uint64_t{p.seqlen_q} * p.group_size > most_few_rows)
            return unsupported(is_named(options) ? "options.kernel" : "",
                               too_many_rows(most_few_rows, p.group_size));
        return choose_on_matrices(ForwardDirection{{caps, p, options}}, few_rows, false);
    }
    return choose_on_matrices(ForwardDirection{{caps, p, options}}, rows, kind == KernelKind::matrix_khr);
}

Launch<kernels::forward_matrix> matrix_launch(const Problem& p, const TileChoice& tiles) {
    const MatrixNumbers& n = *tiles.matrix;
    const MatrixTile tile = matrix_tile(n, p);
    Launch<kernels::forward_matrix> launch;
    const uint32_t loop = fetches_bias(p, n) ? macros::BIAS : n.running != 0 ? macros::RUNNING_MAX : 0;
    launch.module = matrix_module(Kernel::forward_matrix, p, n, loop);
    set_problem(launch, p, tiles, needs_arguments(p));
    set_matrix_constants(launch, p, n);
    auto& c = launch.constants;
    c.threads = n.threads();
    c.row_blocks = n.row_blocks;
    c.tile_kv = n.tile_kv;
    c.chunk = tile.chunk;
    c.q_held_steps = tile.q_steps_held;
    c.halves = n.halves;
    c.slices = tile.slices;
    return launch;
}

}  // namespace vkattn::core
