// Pieces that the kernels of the backward share: arguments, the statistics of query rows, how far rows lie apart.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "backward_parts.hpp"
#include "quirks.hpp"

namespace vkattn::core {
namespace {

using shared::BackwardArguments;

constexpr uint32_t delta_threads = 64;  // not measured: the pass is short, and bound by memory

uint32_t delta_lanes(const Problem& p) {
    uint32_t lanes = 1;
    while (lanes < 16 && 4 * lanes < p.head_dim_v) lanes *= 2;
    return lanes;
}

BackwardArguments make_arguments(const Problem& p, const Backward& b) {
    BackwardArguments a{};
    a.forward = forward_arguments(p);
    std::ranges::copy(b.stride_bytes(p), a.stride);
    a.scale = p.softmax_scale;
    a.batch = p.batch;
    a.dbias_batches = static_cast<uint32_t>(b.dbias_extents[0]);
    a.dbias_heads = static_cast<uint32_t>(b.dbias_extents[1]);
    a.dbias_queries = static_cast<uint32_t>(b.dbias_extents[2]);
    a.dbias_keys = static_cast<uint32_t>(b.dbias_extents[3]);
    return a;
}

}  // namespace

uint32_t delta_rows(const Problem& p) {
    return delta_threads / delta_lanes(p);
}

Launch<kernels::backward_delta> delta_launch(const DeviceCaps& caps, const Problem& p,
                                             const Backward& backward, const TileChoice& tiles) {
    Launch<kernels::backward_delta> launch;
    // It reads out, dout and a mask, whose types are constants of every module that has 16-bit types.
    launch.module =
        module_for(Kernel::backward_delta, p.has_mixed_types() ? VKATTN_DTYPE_FLOAT16 : p.dtype, caps);
    set_problem(launch, p, tiles, true);
    launch.constants.has_dlse = backward.dlse != 0;
    launch.constants.threads = delta_threads;
    launch.constants.lanes = delta_lanes(p);
    if (tiles.backward_matrix && p.dtype == VKATTN_DTYPE_FLOAT32)
        launch.constants.dout_type = type_of(tiles.backward_matrix->shape.dtype);
    VKATTN_PATCH(launch, out_rows, Region::out);
    launch.reads |= bit(Region::out) | bit(Region::dout) | bit(Region::lse);
    if (p.sinks != 0 && p.mask != VKATTN_MASK_NONE)
        launch.reads |= bit(Region::mask);  // of rows that see no key
    if (backward.dlse != 0) launch.reads |= bit(Region::dlse);
    launch.writes = bit(Region::statistics);
    return launch;
}

Result<bool> has_far_rows(const DeviceCaps& caps, const Problem& p, const Backward& b, uint32_t tile_q,
                          uint32_t tile_kv) {
    const uint32_t rows = std::max(tile_q, delta_threads);
    bool far = !p.narrow_rows(rows, tile_kv, false);
    for (int t = 0; t < 4; t++)  // dout and dquery have query rows, dkey and dvalue keys
        far |= b.strides(t).seq >
               narrow_elements(p.element_bytes_of(Backward::like(t))) / (t < 2 ? rows : tile_kv);
    if (far && quirk_no_divergent_addresses(caps))
        return unsupported(
            "", "rows of a tile lie 2^31 bytes apart, which this driver's compiler does not survive");
    return far;
}

Result<bool> check_statistics(const DeviceCaps& caps, const Problem& p) {
    constexpr uint64_t unit = scratch_alignment, block = (sizeof(BackwardArguments) + unit - 1) / unit * unit;
    const uint64_t left = (caps.max_buffer_bytes - std::min(caps.max_buffer_bytes, block)) / unit * unit;
    if (rows_of(p) <= left / 16) return true;
    return unsupported("", fmt::format("16 bytes of scratch for each of {} query rows exceed the device's "
                                       "largest allocation of {}",
                                       rows_of(p), caps.max_buffer_bytes));
}

void add_backward_arguments(const Backward& b, Plan& plan,
                            const std::vector<shared::ForwardArguments>& more) {
    const BackwardArguments a = make_arguments(plan.problem, b);
    const size_t more_bytes = more.size() * sizeof(shared::ForwardArguments);
    plan.arguments.resize(sizeof a + more_bytes);
    std::memcpy(plan.arguments.data(), &a, sizeof a);
    if (more_bytes != 0) std::memcpy(plan.arguments.data() + sizeof a, more.data(), more_bytes);
    place_arguments(plan);
    const std::pair<size_t, Region> addresses[] = {{offsetof(BackwardArguments, dout), Region::dout},
                                                   {offsetof(BackwardArguments, lse), Region::lse},
                                                   {offsetof(BackwardArguments, dquery), Region::dquery},
                                                   {offsetof(BackwardArguments, dkey), Region::dkey},
                                                   {offsetof(BackwardArguments, dvalue), Region::dvalue}};
    for (const auto& [at, region] : addresses)
        plan.argument_patches.push_back({static_cast<uint32_t>(at), region});
#define BACKWARD_ARRAY(name, role, bytes, count, asked) \
    if (asked) plan.argument_patches.push_back({offsetof(BackwardArguments, name), Region::name});
#include "interface/arrays.def"
    if (rows_of(plan.problem) == 0) return;
    plan.argument_patches.push_back({offsetof(BackwardArguments, statistics), Region::statistics});
    reserve_scratch(plan, Region::statistics, rows_of(plan.problem) * 16);
}

}  // namespace vkattn::core
