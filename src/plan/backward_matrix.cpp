// Plans the backward on matrix units: it chooses a row of numbers and a shape of the matrix unit, and makes the passes.
// backward_passes.cpp cuts these into dispatches.
#include <algorithm>

#include <fmt/format.h>

#include "backward_passes.hpp"
#include "matrix_choice.hpp"

namespace vkattn::core {
namespace {

using Device = DeviceKind;
using Numbers = BackwardMatrixNumbers;

// Returns these numbers with workgroups that go together through 8 MiB of what they walk at a time.
constexpr Numbers in_groups(Numbers n) {
    n.l2_group_kib = 8192;
    n.min_group_workgroups = 256;
    return n;
}

// Most specific first within a device. docs/tuning.md has the commands, and what else was tried. Milliseconds are of
// all passes, float16, batch 4, N 4,096, heads * D = 2,048. Rows for AMD, NVK and any device were not run on their own
// devices: their figures are of tools/gate's compilers.
// clang-format off
constexpr BackwardMatrixRow rows[] = {
    // max: head_dim, numbers, only, simd_registers
    // H200, with a mask: 5.8 ms for dkey and dvalue, 3.5 for dquery.
    {"nvidia-backward-matrix-d64-mask", Device::nvidia_driver, 64,
     in_groups({.q_subgroups = 4, .q_row_blocks = 2, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1,
      .kv_walked = 32, .mask_subgroups = 8, .mask_walked = 32, .mask_chunks = 4, .spilled_subgroups = 8}), USE_BIAS},
    // H200: 5.04 ms. H100: 5.31 ms. dbias alone takes 4.9 ms on an H200.
    {"nvidia-backward-matrix-d64", Device::nvidia_driver, 64,
     in_groups({.q_subgroups = 4, .q_row_blocks = 2, .q_walked = 32, .kv_subgroups = 4, .kv_row_blocks = 2,
      .kv_walked = 32, .mask_subgroups = 8, .mask_walked = 32, .mask_chunks = 4, .spilled_subgroups = 8})},
    // H200, causal: 2.54 ms, 2.67 with the next row. Small workgroups make dquery, because many have few keys.
    {"nvidia-backward-matrix-d128-uneven", Device::nvidia_driver, 128,
     in_groups({.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 2,
      .kv_walked = 16, .kv_paired = 2, .mask_subgroups = 8, .mask_walked = 32, .mask_chunks = 4, .spill = 1,
      .spilled_subgroups = 4, .spilled_row_blocks = 4, .spilled_slices = 2, .spilled_ahead = 4}),
     USE_LAGGING | USE_UNEVEN},
    // H200: 4.57 ms.
    {"nvidia-backward-matrix-d128-paired", Device::nvidia_driver, 128,
     in_groups({.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 2,
      .kv_walked = 16, .kv_paired = 2, .mask_subgroups = 8, .mask_walked = 32, .mask_chunks = 4, .spill = 1,
      .spilled_subgroups = 8, .spilled_row_blocks = 8, .spilled_slices = 4, .spilled_ahead = 4}), USE_LAGGING},
    // H200: 4.95 ms, without dS in scratch 5.99. H100: 6.55 ms without. dbias alone takes 4.4 ms on an H200.
    {"nvidia-backward-matrix-d128", Device::nvidia_driver, 128,
     in_groups({.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 1,
      .kv_walked = 32, .mask_subgroups = 8, .mask_walked = 32, .mask_chunks = 4, .spill = 1, .spilled_subgroups = 8,
      .spilled_row_blocks = 8, .spilled_slices = 4, .spilled_ahead = 4})},
    // H200: 5.16 ms.
    {"nvidia-backward-matrix-d256-paired", Device::nvidia_driver, 256,
     in_groups({.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1,
      .kv_walked = 16, .kv_paired = 2, .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 4, .spill = 1,
      .spilled_subgroups = 8, .spilled_row_blocks = 4, .spilled_slices = 4, .spilled_ahead = 4})},
    // H200: 10.6 ms, without dS in scratch.
    {"nvidia-backward-matrix-d256", Device::nvidia_driver, 256,
     in_groups({.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1,
      .kv_walked = 16, .kv_apart = 1, .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 4, .spill = 1,
      .spilled_subgroups = 8, .spilled_row_blocks = 4, .spilled_slices = 4, .spilled_ahead = 4})},

    // The numbers are as small as keeps pipelines quick to build.
    {"cpu-backward-matrix-d256", Device::cpu, 256,
     {.q_subgroups = 2, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 2, .kv_row_blocks = 1, .kv_walked = 16,
      .mask_subgroups = 2, .mask_walked = 16, .mask_chunks = 2}},

    // The row is for SIMDs with 1,536 registers (navi31, navi32), where 12 subgroups have 240 registers each and a SIMD
    // has 6 waves. dquery takes 870 clocks for 24 products.
    {"rdna3-1536-backward-d64", Device::amd, 64,
     {.q_subgroups = 12, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2}, USE_TURNED | USE_EXCHANGED, 1536},
    // navi31: products are 88 % of the clocks of dquery, 84 % of those of dkey and dvalue.
    {"rdna3-backward-d64", Device::amd, 64,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2}, USE_TURNED | USE_EXCHANGED},
    // navi31: products are 94 % of the clocks of dquery, 87 % of those of dkey and dvalue. 64 head dims of dout are
    // staged, because dquery spills 24 registers otherwise.
    {"rdna3-backward-d128-paired", Device::amd, 128,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_paired = 1, .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2, .q_v_staged = 64},
      USE_TURNED | USE_EXCHANGED},
    {"rdna3-backward-d128", Device::amd, 128,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_slices = 2, .kv_apart = 1, .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2, .q_v_staged = 64},
      USE_TURNED | USE_EXCHANGED},
    // gfx1201: products are 87 % of the clocks of dquery at D64 and 92 % at D128, and 85 and 83 % of those of dkey and
    // dvalue.
    {"rdna4-backward-d64", Device::amd, 64,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2}, USE_TURNED},
    {"rdna4-backward-d128-paired", Device::amd, 128,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_paired = 1, .mask_subgroups = 4, .mask_walked = 16, .mask_chunks = 2}, USE_TURNED},
    // dkey and dvalue have a pass each: in one pass 47 registers spill.
    {"rdna4-backward-d128", Device::amd, 128,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 8, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_apart = 1, .mask_subgroups = 4, .mask_walked = 16, .mask_chunks = 2}, USE_TURNED},

    {"nvk-backward-matrix-d64", Device::nvidia, 64,
     {.q_subgroups = 4, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 4, .kv_row_blocks = 1, .kv_walked = 32,
      .mask_subgroups = 4, .mask_walked = 16, .mask_chunks = 2}},
    // ampere: dquery has 287 instructions. With a boolean mask it spills, so that the row for masks has 8 subgroups.
    {"nvk-backward-d128-f32", Device::nvidia, 128,
     {.q_subgroups = 4, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 4, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_slices = 2, .kv_apart = 1, .mask_subgroups = 4, .mask_walked = 16, .mask_chunks = 2},
      USE_UNMASKED | USE_FLOAT32},
    {"nvk-backward-matrix-d128", Device::nvidia, 128,
     {.q_subgroups = 8, .q_row_blocks = 1, .q_walked = 16, .kv_subgroups = 4, .kv_row_blocks = 1, .kv_walked = 16,
      .kv_slices = 2, .kv_apart = 1, .mask_subgroups = 4, .mask_walked = 16, .mask_chunks = 2}},
    // Nothing spills. More head dims would: registers do not hold a block of rows then.
    {"backward-matrix-d64", Device::any, 64,
     {.q_subgroups = 4, .q_row_blocks = 1, .q_walked = 32, .kv_subgroups = 4, .kv_row_blocks = 1, .kv_walked = 32,
      .kv_apart = 1, .mask_subgroups = 8, .mask_walked = 16, .mask_chunks = 2}},
};
// clang-format on

const NumberFields<Numbers>& fields() {
    using N = Numbers;
    static const NumberFields<N> all = {{"q_subgroups", &N::q_subgroups},
                                        {"q_row_blocks", &N::q_row_blocks},
                                        {"q_walked", &N::q_walked},
                                        {"q_stages", &N::q_stages},
                                        {"kv_subgroups", &N::kv_subgroups},
                                        {"kv_row_blocks", &N::kv_row_blocks},
                                        {"kv_walked", &N::kv_walked},
                                        {"kv_stages", &N::kv_stages},
                                        {"q_slices", &N::q_slices},
                                        {"kv_slices", &N::kv_slices},
                                        {"kv_apart", &N::kv_apart},
                                        {"kv_paired", &N::kv_paired},
                                        {"mask_subgroups", &N::mask_subgroups},
                                        {"mask_row_blocks", &N::mask_row_blocks},
                                        {"mask_walked", &N::mask_walked},
                                        {"mask_chunks", &N::mask_chunks},
                                        {"spill", &N::spill},
                                        {"spilled_subgroups", &N::spilled_subgroups},
                                        {"spilled_row_blocks", &N::spilled_row_blocks},
                                        {"spilled_slices", &N::spilled_slices},
                                        {"spilled_walked", &N::spilled_walked},
                                        {"spilled_ahead", &N::spilled_ahead},
                                        {"l2_group_kib", &N::l2_group_kib},
                                        {"min_group_workgroups", &N::min_group_workgroups},
                                        {"rolled", &N::rolled},
                                        {"move", &N::move},
                                        {"turned", &N::turned},
                                        {"q_v_staged", &N::q_v_staged}};
    return all;
}

// One pass's own numbers.
struct PassNumbers {
    uint32_t subgroups, row_blocks, walked, stages, slices;
};
PassNumbers of_query(const Numbers& n) {
    return {n.q_subgroups, n.q_row_blocks, n.q_walked, n.q_stages, n.q_slices};
}
PassNumbers of_keys(const Numbers& n) {
    return {n.kv_subgroups, n.kv_row_blocks, n.kv_walked, n.kv_stages, n.kv_slices};
}
PassNumbers of_mask(const Numbers& n) {
    return {n.mask_subgroups, n.mask_row_blocks, n.mask_walked, 1, 1};
}
// True if the kernels stage masks in shared memory. MASK_SIZE of lib/backward_matrix.glsl is then not 0.
bool stages_masks(const Numbers& n, const Problem& p) {
    return p.mask == VKATTN_MASK_FLOAT && reads_whole_mask(p) && p.dtype != VKATTN_DTYPE_FLOAT32 &&
           n.move == MOVE_FRAGMENT && n.turned == 0 && mask_row_bytes(p) == 16;
}

PassNumbers of_pass(const Numbers& n, MatrixPass pass) {
    switch (pass) {
        case MatrixPass::query:
            return of_query(n);
        case MatrixPass::mask:
            return of_mask(n);
        case MatrixPass::spilled:
            return {n.spilled_subgroups, n.spilled_row_blocks, n.spilled_walked, 1, n.spilled_slices};
        default:
            return of_keys(n);
    }
}
std::span<const MatrixPass> passes_of(const Numbers& n) {
    static constexpr MatrixPass all[] = {MatrixPass::query, MatrixPass::key_value, MatrixPass::mask,
                                         MatrixPass::spilled};
    return {all, n.spill != 0 ? 4u : 3u};
}

// Rows that a pass multiplies at a time.
uint32_t block_of(const MatrixShape& s) {
    return std::max(s.n, s.k);
}

std::string malformed_pass(const PassNumbers& n, const MatrixShape& s, uint32_t threads) {
    if (n.subgroups == 0 || n.row_blocks == 0 || n.walked == 0 || n.stages == 0 || n.slices == 0)
        return "subgroups, row_blocks, walked, stages and slices are not 0";
    if (n.subgroups > 64 || n.row_blocks > 16 || n.walked > 1024 || n.slices > 32)
        return "subgroups, row_blocks, walked or slices is too large";
    if (n.walked % (block_of(s) * n.stages) != 0)
        return fmt::format("walked is not a multiple of {} for each stage", block_of(s));
    if (n.walked > threads) return "walked exceeds the invocations of a workgroup";
    return "";
}

// Returns the numbers for the pass for dbias. It reads nothing by columns, so its products are never turned round.
Numbers of_dbias(Numbers n) {
    if (n.turned == 0) return n;
    n.turned = 0;
    n.layout = n.shape.layout;
    n.move = n.shape.rounded ? MOVE_SHARED : MOVE_SHARED_FLOAT;
    return n;
}

// Lagging pairs exchange P in 16 bits, so that their dS is rounded otherwise than that of backward_matrix_query.comp.
// The two must agree bit by bit, because that kernel finds a tile of dquery again if a hidden key or another row is not
// finite.
bool rounds_unlike(const Numbers& n, const Problem& p) {
    return n.kv_paired == 2 && n.spill != 0 && hides_keys(p);
}

// With P in shared memory lagging pairs are right on an H200 and wrong on lavapipe with 256 bits, where
// subgroupBarrier() seems to wait for the other subgroups, too: these are in another branch. At 256 head dims masks
// have no room beside a third tile of query.
bool may_lag(const Numbers& n, const Problem& p) {
    return n.move < MOVE_SHARED && !stages_masks(n, p) && p.head_dim_qk == p.head_dim_v &&
           !rounds_unlike(n, p);
}

// The USE_* bits of a problem on these numbers.
uint32_t uses_of(const Problem& p, const Numbers& n) {
    uint32_t uses = stages_masks(n, p) ? USE_BIAS : 0;
    if (n.turned != 0) uses |= n.shape.exchanges ? USE_TURNED | USE_EXCHANGED : USE_TURNED;
    if (!hides_keys(p)) uses |= USE_UNMASKED;
    if (p.dtype == VKATTN_DTYPE_FLOAT32) uses |= USE_FLOAT32;
    // Only one of a lagging pair finishes scores, where these are not plain: then pairs were not measured.
    if (may_lag(n, p) && !hides_keys(p) && p.softcap == 0) uses |= USE_LAGGING;
    if (hides_from_some_rows(p)) uses |= USE_UNEVEN;
    return uses;
}

// True if this kernel finds dbias. It leaves block maps to the portable one, and masks of which all keys share one
// element, which then changes no P.
bool finds_bias(const Problem& p, const Backward& backward) {
    return backward.has_bias() && p.mask_per_key && reads_whole_mask(p);
}

// Tells why dS cannot be spilled with these numbers, or "".
std::string malformed_spill(const Numbers& n) {
    if (n.spill > 2) return "spill is 0, 1 or 2";
    if (n.spill == 0) return "";
    if (n.spilled_slices == 0 || n.spilled_subgroups % n.spilled_slices != 0)
        return "spilled_slices does not divide spilled_subgroups";
    if (n.spilled_ahead != 2 && n.spilled_ahead != 4) return "spilled_ahead is 2 or 4";
    if (n.turned != 0 || n.kv_slices != 1) return "spill goes with turned=0 and kv_slices=1";
    const auto is_multiple = [](uint32_t number, uint32_t of) { return of != 0 && number % of == 0; };
    if (!is_multiple(n.spilled_walked, n.shape.m))
        return fmt::format("spilled_walked is not a multiple of {}", n.shape.m);
    if (!is_multiple(n.kv_held(), n.spilled_walked))
        return fmt::format("spill: {} keys of a workgroup are no multiple of spilled_walked, {}", n.kv_held(),
                           n.spilled_walked);
    if (!is_multiple(n.spilled_held(), n.kv_walked))
        return fmt::format("spill: {} query rows of a workgroup are no multiple of kv_walked, {}",
                           n.spilled_held(), n.kv_walked);
    if (!is_multiple(n.spilled_held(), n.q_held()))
        return fmt::format("spill: {} query rows of a workgroup are no multiple of those for dquery, {}",
                           n.spilled_held(), n.q_held());
    return "";
}

std::string malformed_lag(const Numbers& n) {
    const bool fits =
        n.turned == 0 && n.kv_stages == 1 && n.kv_walked == n.shape.n && n.kv_walked == n.shape.k;
    return n.kv_paired != 2 || fits ? "" : "kv_paired=2 goes with turned=0, and tiles of one matrix";
}
std::string malformed_pairs(const Numbers& n) {
    const bool fits = n.kv_apart == 0 && n.kv_subgroups % 2 == 0;
    return n.kv_paired == 0 || fits ? "" : "kv_paired goes with an even kv_subgroups and kv_apart=0";
}

struct BackwardDirection : MatrixDirection {
    Numbers on_shape(const Numbers& row, const MatrixShape& shape, bool khr, bool turned) const {
        Numbers n = put_on_shape(caps, problem, row, shape, khr, turned);
        if (!turned) n.q_v_staged = 0;
        if (n.move == MOVE_CONVERT) n.move = shape.rounded ? MOVE_SHARED : MOVE_SHARED_FLOAT;
        n.q_walked = std::max(n.q_walked, block_of(shape));
        n.kv_walked = std::max(n.kv_walked, block_of(shape));
        n.mask_walked = std::max(n.mask_walked, block_of(shape));
        n.spilled_walked = std::max({n.spilled_walked, block_of(shape), shape.m});
        return n;
    }
    // The caller's numbers come first. If the row's lagging pairs do not go with them or with the way of P, the pairs
    // do not lag, or there are none. If spilling does not go with the numbers, no dS is spilled.
    Result<bool> apply_tuning(Numbers& n) const {
        auto ok = set_numbers(n, options.tuning, fields());
        const auto asked = [&](const char* number) {
            return ("," + options.tuning).find(fmt::format(",{}=", number)) != std::string::npos;
        };
        if (!ok) return ok;
        if (n.kv_paired == 2 && !asked("kv_walked")) n.kv_walked = block_of(n.shape);
        if (n.kv_paired != 0 && !asked("kv_paired")) {
            if (!may_lag(n, problem) || !malformed_lag(n).empty()) n.kv_paired = 1;
            if (!malformed_pairs(n).empty()) n.kv_paired = 0;
        }
        if (!asked("spill") && (!malformed_spill(n).empty() || rounds_unlike(n, problem))) n.spill = 0;
        return ok;
    }
    std::string why_not() const {
        return sees_one_key(problem) ? "rows see one key at most, whose dS is exactly dlse" : "";
    }
    uint32_t uses_of(const Numbers& n) const { return core::uses_of(problem, n); }
    bool suits(const BackwardMatrixRow& row) const {
        return row.numbers.kv_paired == 0 || problem.head_dim_qk == problem.head_dim_v;
    }
    std::string malformed(const Numbers& n) const {
        for (const MatrixPass pass : passes_of(n)) {
            const PassNumbers own = of_pass(n, pass);
            std::string why = malformed_pass(own, n.shape, own.subgroups * n.subgroup_size);
            if (!why.empty()) return why;
        }
        if (n.mask_chunks == 0 || n.mask_chunks > 16 || n.mask_chunks % 2 != 0)
            return "mask_chunks is an even number up to 16";
        if (std::string why = malformed_spill(n); !why.empty()) return why;
        if (n.kv_apart > 1 || n.kv_paired > 2) return "kv_apart is 0 or 1, and kv_paired 0, 1 or 2";
        if (std::string why = malformed_lag(n); !why.empty()) return why;
        if (std::string why = malformed_pairs(n); !why.empty()) return why;
        if (n.kv_paired != 0 && problem.head_dim_qk != problem.head_dim_v)
            return "kv_paired needs one head dim for query and value";
        if (n.turned == 0 && n.q_v_staged != 0) return "q_v_staged goes with turned=1";
        if (n.q_v_staged % n.shape.k != 0)
            return fmt::format("q_v_staged is not a multiple of {}", n.shape.k);
        return "";
    }
    std::string unfit(const Numbers& n) const {
        if (rounds_unlike(n, problem))
            return "kv_paired=2 and spill go together without a mask and a block map";
        if (n.move == MOVE_CONVERT) return "move=1 is for the forward";
        if (n.kv_paired == 2 && n.move >= MOVE_SHARED) return "kv_paired=2 goes with move=0";
        return why_no_move(problem, n.shape, n.layout, n.move, n.turned);
    }
    uint32_t most_threads(const Numbers& n) const {
        return std::max(
            {n.q_threads(), n.kv_threads(), n.mask_threads(), n.spill != 0 ? n.spilled_threads() : 0});
    }
    uint64_t most_pool_vec4(const Numbers& n) const {
        uint32_t most = 0;
        for (const MatrixPass pass : passes_of(n))
            most = std::max(most, backward_matrix_pool(n, problem, pass));
        return most;
    }
    TileChoice chosen(const BackwardMatrixRow& row, const Numbers& n) const {
        TileChoice tiles{};
        tiles.row = row.name;
        tiles.pool_vec4 = backward_matrix_pool(n, problem, MatrixPass::query);
        tiles.residency = 1;
        tiles.backward_matrix = n;
        return tiles;
    }
};

// Returns the tiles of the passes that follow links: that for dquery, and that for dkey and dvalue.
std::array<LinkedTiles, 2> linked_tiles(const TileChoice& tiles) {
    const Numbers& n = *tiles.backward_matrix;
    using Arguments = shared::BackwardArguments;
    return {{{.holds_keys = false,
              .packed = false,
              .isolates_rows = tiles.isolates_rows,
              .held = n.q_held(),
              .walked = n.q_walked,
              .at = offsetof(Arguments, query_links)},
             {.holds_keys = true,
              .packed = false,
              .isolates_rows = tiles.isolates_rows,
              .held = n.kv_held(),
              .walked = n.kv_walked,
              .at = offsetof(Arguments, key_links)}}};
}

template <class K>
Launch<K> matrix_pass(const PassContext& c, const Plan& plan, MatrixPass pass, uint64_t steps) {
    const Problem& p = plan.problem;
    const Numbers& all = *c.tiles.backward_matrix;
    const Numbers n = pass == MatrixPass::mask ? of_dbias(all) : all;
    const PassNumbers own = of_pass(n, pass);
    Launch<K> launch;
    launch.module = matrix_module(K::id, p, n);
    set_problem(launch, p, c.tiles, true);
    set_pass(launch, c, plan, steps);
    set_matrix_constants(launch, p, n);
    auto& k = launch.constants;
    k.threads = own.subgroups * n.subgroup_size;
    k.row_blocks = own.row_blocks;
    k.walked = own.walked;
    k.stages = own.stages;
    k.slices = own.slices;
    k.pool_vec4 = backward_matrix_pool(n, p, pass);
    if (pass != MatrixPass::mask) set_links(launch, plan, linked_tiles(c.tiles));
    return launch;
}

// Bytes of the accumulators that a workgroup keeps between dispatches, if each block of rows has so many matrices.
uint64_t kept_bytes_of(const Numbers& n, const PassNumbers& own, uint32_t matrices) {
    const uint64_t elements = n.shape.m * n.shape.n / n.subgroup_size;
    return uint64_t{own.subgroups} * n.subgroup_size * own.row_blocks * matrices * elements * 4;
}

uint32_t matrices_of(const Numbers& n, const PassNumbers& own, uint32_t head_dim) {
    return MATRIX_STEPS(head_dim, n.shape.n * own.slices);
}

// Returns how many steps of dP read dout from shared memory. At least one step has it in registers.
uint32_t staged_v_steps(const Numbers& n, const Problem& p) {
    return std::min(n.q_v_staged / n.shape.k, MATRIX_STEPS(p.head_dim_v, n.shape.k) - 1);
}

uint64_t workgroups_of(const Pass& pass) {
    return product(product(pass.grid[0], pass.grid[1]), pass.grid[2]);
}

// `tiles` is the constant of that name.
Pass query_pass(const PassContext& c, const Plan& plan, uint32_t tiles) {
    const Problem& p = plan.problem;
    const Numbers& n = *c.tiles.backward_matrix;
    const PassNumbers own = of_query(n);
    Pass pass;
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, n.q_held()), own.slices};
    pass.steps = ceil_div(p.visible_keys(0, p.seqlen_q - 1).end, own.walked);
    pass.longest = longest_loop(p, n.q_held(), own.walked, pass.steps);
    pass.step_flops = uint64_t{n.q_held()} * own.walked * 2 *
                      (p.head_dim_qk + p.head_dim_v + ceil_div(p.head_dim_qk, own.slices));
    pass.kept_bytes =
        product(workgroups_of(pass), kept_bytes_of(n, own, matrices_of(n, own, p.head_dim_qk) + 1));
    auto launch = matrix_pass<kernels::backward_matrix_query>(c, plan, MatrixPass::query, pass.steps);
    launch.constants.v_staged_steps = staged_v_steps(n, p);
    launch.constants.tiles = tiles;
    if (c.backward.dlse != 0) launch.reads |= bit(Region::dlse);
    launch.writes = bit(Region::dquery) | bit(Region::statistics);
    if (tiles == TILE_ODD) launch.writes |= bit(Region::tile_states);
    if (tiles == TILE_NONFINITE) launch.reads |= bit(Region::tile_states);
    pass.pipeline = resumable(launch);
    return pass;
}

// The product of the spilled dS and key.
Pipeline spilled_pipeline(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const Numbers& n = *c.tiles.backward_matrix;
    auto launch = matrix_pass<kernels::backward_matrix_spilled>(c, plan, MatrixPass::spilled, 0);
    set_spill(launch, plan);
    launch.constants.step_rows = n.kv_walked;
    launch.constants.step_keys = n.kv_held();
    launch.constants.state_rows = n.q_held();
    launch.constants.ahead = n.spilled_ahead;
    launch.reads &= ~(bit(Region::query) | bit(Region::value) | bit(Region::dout) | bit(Region::statistics));
    launch.reads |= bit(Region::spill) | bit(Region::tile_states);
    launch.writes = bit(Region::dquery);
    if (hides_keys(p)) launch.writes |= bit(Region::tile_states);
    return launch.pipeline();
}

SpillSizes spill_sizes(const Numbers& n, const Problem& p) {
    return {.step_rows = n.kv_walked,
            .step_bytes = uint64_t{n.kv_walked} * ceil_div(p.seqlen_kv, n.kv_held()) * n.kv_held() * 2,
            .steps_of_head = ceil_div(p.seqlen_q, n.kv_walked),
            .steps_of_tile = n.spilled_held() / n.kv_walked,
            .states_of_head = ceil_div(p.seqlen_q, n.q_held()),
            .tiles_of_head = uint64_t{p.group_size} * ceil_div(p.seqlen_q, n.spilled_held()),
            .tile_flops = uint64_t{n.spilled_held()} * p.seqlen_kv * 2 * p.head_dim_qk};
}

// `gradients` has the bits of the constant of that name.
Pass key_value_pass(const PassContext& c, const Plan& plan, uint32_t gradients) {
    const Problem& p = plan.problem;
    const Numbers& n = *c.tiles.backward_matrix;
    const PassNumbers own = of_keys(n);
    const bool dvalue = (gradients & 1) != 0, dkey = (gradients & 2) != 0;
    Pass pass;
    pass.grid = {uint64_t{p.batch} * p.num_heads_kv, ceil_div(p.seqlen_kv, n.kv_held()), own.slices};
    const uint64_t query_tiles = ceil_div(p.seqlen_q, own.walked);
    pass.steps = p.group_size * query_tiles;
    pass.longest = p.group_size * longest_loop(p, n.kv_held(), own.walked, query_tiles);
    const uint32_t of_dvalue = dvalue ? ceil_div(p.head_dim_v, own.slices) : 0;
    const uint32_t of_dkey = dkey ? p.head_dim_v + ceil_div(p.head_dim_qk, own.slices) : 0;
    pass.step_flops = uint64_t{n.kv_held()} * own.walked * 2 * (p.head_dim_qk + of_dvalue + of_dkey);
    pass.kept_bytes = product(workgroups_of(pass),
                              kept_bytes_of(n, own,
                                            matrices_of(n, own, p.head_dim_qk) +
                                                (n.kv_paired != 0 ? 0 : matrices_of(n, own, p.head_dim_v))));
    auto launch = matrix_pass<kernels::backward_matrix_key_value>(c, plan, MatrixPass::key_value, pass.steps);
    launch.constants.gradients = gradients;
    launch.constants.paired = n.kv_paired;
    launch.writes = (dvalue ? bit(Region::dvalue) : 0) | (dkey ? bit(Region::dkey) : 0);
    if (dkey && spills(plan)) {
        launch.constants.spilled_rows = n.spilled_held();
        set_spill(launch, plan);
        launch.writes |= bit(Region::spill);
        pass.strips = strips_of(plan, spill_sizes(n, p), pass);
        pass.longest = longest_spilling(pass, pass.strips->sizes);
        pass.strips->reader = [&c, &plan] { return spilled_pipeline(c, plan); };
        if (plan.spill_makes_bias) pass.strips->mask = spilled_mask(c, plan);
    }
    pass.pipeline = resumable(launch);
    return pass;
}

Pass matrix_mask_pass(const PassContext& c, const Plan& plan) {
    const Numbers& n = *c.tiles.backward_matrix;
    Pass pass = mask_work(c, plan, n.mask_held(), n.mask_keys());
    auto launch = matrix_pass<kernels::backward_matrix_mask>(c, plan, MatrixPass::mask, pass.steps);
    launch.constants.chunks = n.mask_chunks;
    launch.writes = bit(Region::dbias);
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
    return pass;
}

// If all keys share one element of the mask, the portable kernel sums dbias from dlse: `mask` is for planning that.
std::vector<Pass> make_passes(const PassContext& c, const PassContext& mask, const Plan& plan) {
    const Problem& p = plan.problem;
    std::vector<Pass> passes;
    const bool spilled = spills(plan);
    if (rows_of(p) != 0) {
        passes.push_back(delta_pass(c, plan));
        passes.push_back(query_pass(c, plan, spilled ? TILE_ODD : TILES_ALL));
    }
    if (c.backward.dsinks != 0) passes.push_back(sinks_pass(c, plan));
    if (has_keys(p) && c.tiles.backward_matrix->kv_apart != 0) {
        passes.push_back(key_value_pass(c, plan, 1));
        passes.push_back(key_value_pass(c, plan, 2));
    } else if (has_keys(p)) {
        passes.push_back(key_value_pass(c, plan, 3));
    }
    if (spilled && hides_keys(p)) passes.push_back(query_pass(c, plan, TILE_NONFINITE));
    if (c.backward.has_bias() && !plan.spill_makes_bias)
        passes.push_back(finds_bias(p, c.backward) ? matrix_mask_pass(c, plan) : mask_pass(mask, plan));
    return passes;
}

// Makes room for spilled dS, if the numbers and the problem are for that. A block map's tiles are known by its links.
bool add_spill(const PassContext& c, Plan& plan) {
    const Problem& p = plan.problem;
    const Numbers& n = *c.tiles.backward_matrix;
    if (n.spill == 0 || rows_of(p) == 0 || !has_keys(p)) return false;
    if (!has_kernel(c.caps, Kernel::backward_matrix_spilled)) return false;
    if (p.block_map != 0 && !has_scratch(plan, Region::tile_links)) return false;
    const SpillSizes sizes = spill_sizes(n, p);
    const Pass pass = key_value_pass(c, plan, n.kv_apart != 0 ? 2 : 3);
    plan.spill_makes_bias = finds_bias(p, c.backward) && may_spill_bias(c, p) &&
                            add_spill(c, for_bias(sizes, p, c.backward), n.spill == 2, pass, plan);
    return plan.spill_makes_bias || add_spill(c, sizes, n.spill == 2, pass, plan);
}

// Plain tiles are fetched by an index of 31 bits, in 16 bytes, from a head's first row on (lib/matrix_fetch.glsl).
bool has_far_heads(const Problem& p, const Backward& b) {
    const auto is_far = [&](uint64_t seqlen, const VkattnStrides& s) {
        return product(product(seqlen, s.seq), p.element_bytes) > uint64_t{1} << 35;
    };
    return is_far(p.seqlen_q, p.query_strides) || is_far(p.seqlen_q, b.dout_strides) ||
           is_far(p.seqlen_kv, p.key_strides) || is_far(p.seqlen_kv, p.value_strides);
}

Result<Plan> plan_on_matrices(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                              const Options& options, KernelKind kind) {
    if (options.batch_invariant)
        return unsupported("options.batch_invariant", "it may round a row otherwise than its neighbours");
    if (problem.has_mixed_types())
        return unsupported(options.precision != VKATTN_PRECISION_STORAGE ? "options.precision"
                           : is_named(options)                           ? "options.kernel"
                                                                         : "",
                           "a backward on matrix units is for operands that are all stored in one type");
    const Result<TileChoice> tiles = choose_backward_matrix(caps, problem, options, kind);
    if (!tiles) return tiles.failure();
    const Numbers& n = *tiles->backward_matrix;
    Options portable = options;
    portable.tuning.clear();
    Result<TileChoice> mask_tiles = *tiles;
    uint32_t tile_q = std::max(n.q_held(), n.kv_walked), tile_kv = std::max(n.kv_held(), n.q_walked);
    if (n.spill != 0) tile_q = std::max(tile_q, n.spilled_held());
    if (finds_bias(problem, backward)) {
        tile_q = std::max(tile_q, n.mask_held());
        tile_kv = std::max(tile_kv, n.mask_keys());
    } else if (backward.has_bias()) {
        mask_tiles = choose_tiles(caps, problem, portable, KernelKind::backward);
        if (!mask_tiles) return mask_tiles.failure();
        tile_q = std::max(tile_q, mask_tiles->tile_q());
        tile_kv = std::max(tile_kv, mask_tiles->tile_kv());
    }
    const Result<bool> far = has_far_rows(caps, problem, backward, tile_q, tile_kv);
    if (!far) return far.failure();
    const bool apart = *far || has_far_heads(problem, backward);
    const PassContext c{caps, options, *tiles, backward, apart};
    const PassContext mask{caps, options, *mask_tiles, backward, apart};

    Plan plan = begin_plan(problem, *tiles, false);
    plan.operands = n.shape.dtype;
    plan.backward = backward;
    if (!has_work(problem, backward)) return plan;
    if (auto ok = check_statistics(caps, problem); !ok) return ok.failure();
    add_backward_arguments(backward, plan);
    Plan linked = plan;
    add_tile_links(caps, options, linked_tiles(*tiles), linked);
    Plan spilled = linked;
    if (add_spill(c, spilled) && add_passes(c, make_passes(c, mask, spilled), spilled)) return spilled;
    if (add_passes(c, make_passes(c, mask, linked), linked)) return linked;
    // Links only save work: they give way where accumulators need their scratch.
    if (auto ok = add_passes(c, make_passes(c, mask, plan), plan); !ok) return ok.failure();
    return plan;
}

}  // namespace

std::span<const BackwardMatrixRow> backward_matrix_rows() {
    return rows;
}

std::string to_text(const BackwardMatrixNumbers& n) {
    return text_of(n, fields());
}

uint32_t backward_matrix_pool(const BackwardMatrixNumbers& n, const Problem& p, MatrixPass pass) {
    if (pass == MatrixPass::mask && n.turned != 0) return backward_matrix_pool(of_dbias(n), p, pass);
    const PassNumbers own = of_pass(n, pass);
    const MatrixShape& s = n.shape;
    const bool keys_are_held = pass == MatrixPass::key_value, turned = n.turned != 0;
    const auto columns = [&](uint32_t head_dim) { return matrices_of(n, own, head_dim) * s.n * own.slices; };
    const auto stride = [&](uint32_t head_dim) {
        const uint32_t elements = std::max(MATRIX_STEPS(head_dim, s.k) * s.k, columns(head_dim));
        return turned ? TURNED_STRIDE(elements) : MATRIX_STRIDE(elements);
    };
    // Behind the tiles there is a share for each subgroup: see below.
    if (pass == MatrixPass::spilled)
        return std::max(2 * own.walked * (stride(p.head_dim_qk) + MATRIX_STRIDE(n.spilled_held())),
                        own.subgroups * s.m * (MATRIX_FLOAT_STRIDE(s.n) + 1));
    const uint32_t numbers = keys_are_held ? 3 * own.walked / 4 : 0;
    const uint32_t block = turned ? s.m * s.n / 4 : s.m * MATRIX_FLOAT_STRIDE(s.n);
    uint32_t pool = 2 * (own.walked * (stride(p.head_dim_qk) + stride(p.head_dim_v)) + numbers);
    if (turned)  // There are two buffers, a vec4 holds two elements of the pool, and rows are stored twice.
        pool = pool / 2 + numbers +
               (columns(p.head_dim_qk) + (keys_are_held ? columns(p.head_dim_v) : 0)) *
                   TURNED_STRIDE(own.walked);
    if (pass == MatrixPass::query && turned && staged_v_steps(n, p) != 0)
        pool += n.q_held() * MATRIX_STRIDE(staged_v_steps(n, p) * s.k);
    if (n.layout == 0) pool += MATRIX_PLACES(s.m, s.n);
    // Behind the tiles each subgroup has a share: two steps of what it holds, or one matrix of a sum.
    if (pass == MatrixPass::mask)
        return pool + own.subgroups * std::max(s.m * (MATRIX_STEPS(2 * s.k, 8) + 1), block);
    const bool through_shared = n.move >= MOVE_SHARED;
    if (n.layout == 0 || through_shared) {
        const uint32_t of_p = through_shared ? s.m * MATRIX_STRIDE(block_of(s)) : 0;
        pool += own.subgroups * (n.move == MOVE_SHARED ? std::max(block, of_p) : block + of_p);
    }
    if (stages_masks(n, p)) {
        const uint32_t held = own.row_blocks * s.m;
        pool += own.subgroups *
                (keys_are_held ? own.walked * MATRIX_STRIDE(held) : held * MATRIX_STRIDE(own.walked));
    }
    if (keys_are_held && n.kv_paired != 0) {  // Pairs exchange weights, of two blocks if a tile has two.
        const uint32_t places = n.kv_paired == 2 ? 2 : std::min(own.walked / block_of(s), 2u);
        const uint32_t words = s.m * s.n / n.subgroup_size / (n.kv_paired == 2 ? 2 : 1);  // of an invocation
        const uint32_t weights =
            ceil_div(words, n.turned != 0 ? 2 : 4) * n.subgroup_size / (n.turned != 0 ? 2 : 1);
        pool += places * n.kv_owners() * own.row_blocks * (block_of(s) / s.n) * weights;
        if (n.kv_paired == 2) pool += own.walked * stride(p.head_dim_qk);  // a third tile of query
    }
    // Before and after the loop each subgroup has a share: the rows of one step of what it holds or of one matrix of a
    // sum, and two numbers for each row.
    const uint32_t share = s.m * std::max(MATRIX_STRIDE(s.k) + 1, MATRIX_FLOAT_STRIDE(s.n) + 1);
    return std::max(pool, own.subgroups * share);
}

Result<TileChoice> choose_backward_matrix(const DeviceCaps& caps, const Problem& p, const Options& options,
                                          KernelKind kind) {
    return choose_on_matrices(BackwardDirection{{caps, p, options}}, rows,
                              kind == KernelKind::backward_matrix_khr);
}

Result<Plan> plan_backward_matrix(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                                  const Options& options) {
    return plan_on_matrices(caps, problem, backward, options, KernelKind::backward_matrix);
}

Result<Plan> plan_backward_matrix_khr(const DeviceCaps& caps, const Problem& problem,
                                      const Backward& backward, const Options& options) {
    return plan_on_matrices(caps, problem, backward, options, KernelKind::backward_matrix_khr);
}

}  // namespace vkattn::core
