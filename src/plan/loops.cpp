// Counts the loops of the portable kernels in their form for CPUs (`rolled`), in which loops stay loops. A compiler may
// unroll some of them, and the form for GPUs has fewer.
//
// In Debian 12's lavapipe (Mesa 22.3.6, 256 bits) an invocation's loops end after 65,535 iterations together. There the
// smallest lengths that were wrong were bisected, in float32 and without splits:
//
//   kernel and its rows                                right      wrong   iterations of a tile   counted here
//   rows, head dims 4, one query                      24,671     25,437              21                 41
//   the same with slopes                              15,101     15,484              34                 41
//   tiles, head dims 8, 8 queries                     11,000     11,437              92                203
//   tiles, head dims 256, 8 queries                    1,843      1,887           1,111              1,181
//   dquery, head dims 128, 8 queries, keys               953        983           1,067              1,120
//   dkey and dvalue, head dims 128, 8 keys, queries      800        831           2,521              2,426
#include "loops.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "build.hpp"
#include "quirks.hpp"

namespace vkattn::core {
namespace {

// Half of what the driver has: the other half is for what is not a step.
constexpr uint64_t most_iterations = 65535 / 2;

// MULTIPLY_CHUNKS of shaders/lib/tiles.glsl: each chunk is staged, a block of four rows at a time, and multiplied.
uint64_t scores_of(const TileNumbers& n, uint64_t head_dim) {
    const uint64_t blocks = uint64_t{n.tile_q() + n.tile_kv()} / 4 * (n.chunk / 4);
    return uint64_t{ceil_div(head_dim, n.chunk)} * (1 + 5 * (ceil_div(blocks, n.threads) + 1) + n.chunk);
}

// Loops over what an invocation holds of a tile's scores, `loops` of them.
uint64_t over_scores(const TileNumbers& n, uint64_t loops) {
    return loops * n.rows * (1 + n.cols / 4);
}

// multiply_tile() of the same file: P times the rows of `keys` keys, each of so many vec4.
uint64_t sums_of(const TileNumbers& n, uint64_t keys, uint64_t row_vec4) {
    return uint64_t{ceil_div(keys, n.v_keys)} * (2 + ceil_div(n.v_keys * row_vec4, n.threads) + n.v_keys);
}

// class_of_blocks() of shaders/lib/term_blocks.glsl, which looks at each block of a tile up to three times, and at each
// score's once.
uint64_t blocks_of(const TileNumbers& n, const Problem& p) {
    if (p.block_map == 0) return 0;
    const uint64_t down = n.tile_q() / p.block_rows + 2, across = n.tile_kv() / p.block_keys + 2;
    return 3 * down * (across + 1) * std::min(n.tile_q(), p.group_size);
}

// find_gradients() of shaders/lib/backward.glsl.
uint64_t gradients_of(const TileNumbers& n, const Problem& p) {
    return 2 + ceil_div(n.tile_q(), n.threads) + scores_of(n, p.head_dim_qk) + scores_of(n, p.head_dim_v) +
           over_scores(n, 10) + blocks_of(n, p);
}

}  // namespace

uint32_t mesa_version_in(std::string_view text) {
    constexpr std::string_view mark = "Mesa ";
    const size_t found = text.find(mark);
    if (found == text.npos) return 0;
    std::array<uint32_t, 3> numbers{};
    const char* at = text.data() + found + mark.size();
    const char* const end = text.data() + text.size();
    for (uint32_t& number : numbers) {
        const auto read = std::from_chars(at, end, number);
        if (read.ec != std::errc{}) break;
        at = read.ptr;
        if (at == end || *at != '.') break;
        at++;
    }
    return mesa_version(numbers[0], numbers[1], numbers[2]);
}

uint64_t longest_walk(const DeviceCaps& caps, uint64_t iterations_of_step) {
    if (!quirk_loops_end_early(caps)) return UINT64_MAX;
    const uint64_t missed = iterations_of_step / 8;  // by the table above the counts may miss 8 %
    return most_iterations / std::max<uint64_t>(1, iterations_of_step + missed);
}

Failure loops_too_long(const char* field, uint64_t steps, uint64_t most) {
    return unsupported(field, fmt::format("{}: a workgroup would walk {} steps, and may walk {}",
                                          loops_end_early, steps, most));
}

uint64_t forward_iterations(const TileNumbers& n, const Problem& p) {
    const uint64_t row_vec4 = POOL_V_STRIDE(p.head_dim_v, n.lanes), out_vecs = row_vec4 / n.lanes;
    if (n.of_rows_kernel())
        return 1 + 2 * n.lanes + n.rows / 4 * (2 * n.lanes + 4) + n.rows * out_vecs + blocks_of(n, p);
    return 1 + scores_of(n, p.head_dim_qk) + over_scores(n, 6) + n.rows * out_vecs +
           sums_of(n, n.tile_kv(), row_vec4) + blocks_of(n, p);
}

uint64_t query_iterations(const TileNumbers& n, const Problem& p) {
    return gradients_of(n, p) +
           sums_of(n, n.tile_kv(), POOL_SLICE_STRIDE(p.head_dim_qk, n.lanes, n.q_slices));
}

uint64_t key_value_iterations(const TileNumbers& n, const Problem& p) {
    const uint64_t row_vec4 = kept_kv_vec4(n, p) / n.kv_slices, own_vecs = row_vec4 / key_lanes(n);
    const uint64_t stages =
        uint64_t{n.rows} / n.p_blocks * ceil_div(uint64_t{n.threads} / n.lanes * n.p_blocks, n.v_keys);
    const uint64_t of_stage =
        1 + ceil_div(n.v_keys * row_vec4, n.threads) + 1 + uint64_t{n.v_keys} * (2 + own_vecs);
    return gradients_of(n, p) + over_scores(n, 2) + stages * of_stage;
}

uint64_t mask_iterations(const TileNumbers& n, const Problem& p) {
    return gradients_of(n, p) + over_scores(n, 2) + 4;
}

Result<bool> check_baseline_loops(const DeviceCaps& caps, const TileNumbers& n, const Problem& p,
                                  bool backward) {
    const uint64_t lanes = n.lanes, keys = 4 * uint64_t{n.p_blocks} * lanes;
    const uint32_t widest = backward ? std::max(p.head_dim_qk, p.head_dim_v) : p.head_dim_v;
    const uint64_t staged = 5 * ceil_div(keys * n.tile_q() / 4, n.threads);
    const uint64_t step = staged + sums_of(n, keys, POOL_V_STRIDE(widest, lanes)),
                   most = longest_walk(caps, step);
    if (const uint64_t steps = ceil_div(p.seqlen_kv, keys); steps > most)
        return loops_too_long("problem.seqlen_kv", steps, most);
    if (const uint64_t steps = uint64_t{p.group_size} * ceil_div(p.seqlen_q, keys); backward && steps > most)
        return loops_too_long("problem.seqlen_q", steps, most);
    return true;
}

uint64_t combine_iterations(uint32_t head_dim_v, uint32_t lanes) {
    return 3 + uint64_t{ceil_div(head_dim_v, 4 * lanes)};
}

}  // namespace vkattn::core
