// Cuts the backward's passes into dispatches, and plans those that the portable backward and the one on matrix units
// share.
#include "backward_passes.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "loops.hpp"

namespace vkattn::core {
namespace {

// How a pass is cut: its grid into boxes, each workgroup's loop into spans of so many steps.
struct PassCut {
    std::vector<Box> boxes;
    uint64_t span, unit;  // steps of a span, and the most flops that a workgroup has in one
    bool loops = false;   // there is more than one span
    uint64_t limit = 0;   // of a pass that spills, whose strips are cut one by one
};

// Returns the steps of a workgroup's loop that a dispatch may have: all, if accumulators cannot be kept in between.
uint64_t span_of(const PassContext& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    const uint64_t most =
        std::max<uint64_t>(1, std::min(limit / pass.step_flops, longest_walk(c.caps, pass.step_iterations)));
    const bool can_be_cut = pass.kept_bytes != 0 && pass.steps <= UINT32_MAX &&
                            pass.kept_bytes <= scratch_left(c.caps, c.options, plan);
    return pass.longest > most && can_be_cut ? most : std::max<uint64_t>(1, pass.steps);
}

// Tiles of the reader that a span's steps are, begin .. end-1, over all query heads of a kv head.
std::array<uint64_t, 2> tiles_of(const SpillSizes& s, std::array<uint64_t, 2> span) {
    const auto tile = [&](uint64_t step) {
        return step / s.steps_of_head * ceil_div(s.steps_of_head, s.steps_of_tile) +
               step % s.steps_of_head / s.steps_of_tile;
    };
    return {tile(span[0]), tile(span[1] - 1) + 1};
}

// The workgroups that find dbias from a strip of so many kv heads and these steps.
Box mask_box(const Strips& s, uint64_t head, uint64_t heads, std::array<uint64_t, 2> span) {
    const SpilledMask& m = *s.mask;
    const uint64_t first = head * m.group / m.heads, end = (head + heads) * m.group / m.heads;
    const uint64_t steps = std::min(span[1] - span[0], s.sizes.steps_of_head);
    return {.first = {first, span[0] % s.sizes.steps_of_head, 0},
            .count = {std::min(end, m.masks) - first, steps, m.key_tiles}};
}

// Tells whether the strips of a pass can be cut so that no dispatch costs more than the limit.
Result<PassCut> cut_strips_within(const PassContext& c, const Pass& pass, uint64_t limit) {
    const Strips& s = *pass.strips;
    PassCut cut{.boxes = {}, .span = 0, .unit = 0, .loops = s.spans.size() > 1, .limit = limit};
    uint64_t boxes = 0;
    for (const auto& span : s.spans) {
        cut.span = std::max(cut.span, span[1] - span[0]);
        cut.unit = product(std::min(cut.span, std::max<uint64_t>(1, pass.longest)), pass.step_flops);
        const auto tiles = tiles_of(s.sizes, span);
        const auto writers = cut_grid(c.caps, {s.heads, pass.grid[1], pass.grid[2]}, cut.unit, limit);
        if (!writers) return writers.failure();
        const auto readers = cut_grid(c.caps, {s.heads, tiles[1] - tiles[0], 1}, s.sizes.tile_flops, limit);
        if (!readers) return readers.failure();
        boxes += writers->size() + readers->size();
        if (!s.mask) continue;
        const auto masks = cut_grid(c.caps, mask_box(s, 0, s.heads, span).count, s.mask->tile_flops, limit);
        if (!masks) return masks.failure();
        boxes += masks->size();
    }
    if (product(boxes, ceil_div(pass.grid[0], s.heads)) > max_boxes)
        return unsupported("options.max_dispatch_flops",
                           fmt::format("strips of dS would take more than {} dispatches", max_boxes));
    return cut;
}

// Cuts a pass so that no dispatch costs more than the limit.
Result<PassCut> cut_within(const PassContext& c, const Pass& pass, const Plan& plan, uint64_t limit) {
    if (pass.strips) return cut_strips_within(c, pass, limit);
    PassCut cut;
    cut.span = span_of(c, pass, plan, limit);
    cut.loops = cut.span < pass.steps;
    cut.unit = product(std::min(cut.span, std::max<uint64_t>(1, pass.longest)), pass.step_flops);
    const uint64_t walk = std::min(cut.span, pass.longest), most = longest_walk(c.caps, pass.step_iterations);
    if (walk > most) return loops_too_long(pass.walked, walk, most);
    // Slices of dquery keep their sums of P in one place, so those of a cut loop take turns.
    DeviceCaps caps = c.caps;
    if (cut.loops) caps.max_workgroup_count[2] = 1;
    auto boxes = cut_grid(caps, pass.grid, cut.unit, limit);
    if (!boxes) return boxes.failure();
    cut.boxes = std::move(*boxes);
    const uint64_t spans = cut.loops ? (pass.steps + cut.span - 1) / cut.span : 1;
    if (spans > max_boxes / std::max<size_t>(1, cut.boxes.size()))
        return unsupported("options.max_dispatch_flops",
                           fmt::format("this would take {} dispatches, at most {} are made",
                                       spans * cut.boxes.size(), max_boxes));
    return cut;
}

Result<PassCut> cut_pass(const PassContext& c, const Pass& pass, const Plan& plan) {
    return within_limit(c.caps, c.options, [&](uint64_t limit) { return cut_within(c, pass, plan, limit); });
}

// Adds the dispatches of a grid's part, of which each workgroup costs `unit`. It can be cut, because
// cut_strips_within() has cut a larger one.
void add_part(const DeviceCaps& caps, uint32_t pipeline, std::array<uint64_t, 3> first,
              std::array<uint64_t, 3> count, const Cut& steps, uint64_t unit, uint64_t limit, Plan& plan) {
    const auto boxes = cut_grid(caps, count, unit, limit);
    for (Box box : *boxes) {
        for (size_t i = 0; i < 3; i++) box.first[i] += first[i];
        Cut cut = cut_of(box);
        cut.first_step = steps.first_step;
        cut.end_step = steps.end_step;
        add_dispatch(plan, pipeline, box.count, cut, box.count[0] * box.count[1] * box.count[2] * unit);
    }
}

void add_strips(const DeviceCaps& caps, const Pass& pass, const PassCut& cut, Plan& plan) {
    const Strips& s = *pass.strips;
    const uint32_t writer = add_pipeline(plan, pass.pipeline(cut.loops));
    const uint32_t reader = add_pipeline(plan, s.reader());
    const uint32_t mask = s.mask ? add_pipeline(plan, s.mask->pipeline()) : 0;
    for (uint64_t head = 0; head < pass.grid[0]; head += s.heads) {
        const uint64_t heads = std::min(s.heads, pass.grid[0] - head);
        for (const auto& span : s.spans) {
            Cut steps;
            if (cut.loops) {
                steps.first_step = static_cast<uint32_t>(span[0]);
                steps.end_step = static_cast<uint32_t>(span[1]);
            }
            add_part(caps, writer, {head, 0, 0}, {heads, pass.grid[1], pass.grid[2]}, steps, cut.unit,
                     cut.limit, plan);
            const auto tiles = tiles_of(s.sizes, span);
            add_part(caps, reader, {head, tiles[0], 0}, {heads, tiles[1] - tiles[0], 1}, steps,
                     s.sizes.tile_flops, cut.limit, plan);
            if (!s.mask) continue;
            const Box box = mask_box(s, head, heads, span);
            add_part(caps, mask, box.first, box.count, steps, s.mask->tile_flops, cut.limit, plan);
        }
    }
}

void add_pass(const DeviceCaps& caps, const Pass& pass, const PassCut& cut, Plan& plan) {
    if (pass.strips) return add_strips(caps, pass, cut, plan);
    const uint32_t pipeline = add_pipeline(plan, pass.pipeline(cut.loops));
    for (const Box& box : cut.boxes) {
        Cut of_box = cut_of(box);
        const uint64_t flops = box.count[0] * box.count[1] * box.count[2] * cut.unit;
        for (uint64_t first = 0; first == 0 || first < pass.steps; first += cut.span) {
            if (cut.loops) {
                of_box.first_step = static_cast<uint32_t>(first);
                of_box.end_step = static_cast<uint32_t>(std::min(pass.steps, first + cut.span));
            }
            add_dispatch(plan, pipeline, box.count, of_box, flops);
        }
    }
}

}  // namespace

Pass delta_pass(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    Pass pass;
    const uint32_t rows = delta_rows(p);
    pass.grid = {uint64_t{p.batch} * p.num_heads_q, ceil_div(p.seqlen_q, rows), 1};
    pass.step_flops = uint64_t{rows} * 2 * p.head_dim_v;
    auto launch = delta_launch(c.caps, p, c.backward, c.tiles);
    launch.constants.far_rows = c.far_rows;
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
    return pass;
}

Pass sinks_pass(const PassContext& c, const Plan& plan) {
    const Problem& p = plan.problem;
    const uint32_t threads =
        c.caps.threads_up_to(256);  // not measured: the pass is short, and waits for memory
    Pass pass;
    pass.grid = {p.num_heads_q, 1, 1};
    pass.steps = pass.longest = uint64_t{p.batch} * ceil_div(p.seqlen_q, threads);
    pass.step_flops = uint64_t{threads} * 8;
    pass.step_iterations = 2;
    Launch<kernels::backward_sinks> launch;
    launch.module = {Kernel::backward_sinks, macros::F32};
    set_problem(launch, p, c.tiles, true);
    launch.constants.threads = threads;
    if (rows_of(p) != 0) launch.reads |= bit(Region::statistics);
    launch.writes = bit(Region::dsinks);
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
    return pass;
}

// One workgroup sums over all that share a tile of the mask, so its loop cannot be cut.
Pass mask_work(const PassContext& c, const Plan& plan, uint32_t tile_q, uint32_t tile_kv) {
    const Problem& p = plan.problem;
    const auto& extents = c.backward.dbias_extents;
    Pass pass;
    const uint64_t query_tiles = ceil_div(p.seqlen_q, tile_q);
    pass.grid = {extents[0] * extents[1], extents[2] == 1 ? 1 : query_tiles, ceil_div(extents[3], tile_kv)};
    const bool recomputes = p.mask_per_key || !reads_whole_mask(p);
    const uint64_t shared = (extents[0] == 1 ? p.batch : 1) * uint64_t{p.mask_group_size};
    const uint64_t seeing =  // rows that see no key count too if no tile is recomputed
        recomputes ? longest_loop(p, tile_kv, tile_q, query_tiles) : query_tiles;
    const uint64_t key_tiles = recomputes && !p.mask_per_key ? ceil_div(p.seqlen_kv, tile_kv) : 1;
    pass.steps = pass.longest = shared * (extents[2] == 1 ? seeing : 1) * key_tiles;
    const uint64_t tile = uint64_t{tile_q} * tile_kv;
    pass.step_flops = recomputes ? tile * 2 * (p.head_dim_qk + p.head_dim_v) : tile_q;
    return pass;
}

Pass mask_pass(const PassContext& c, const Plan& plan) {
    const TileNumbers& n = c.numbers();
    Pass pass = mask_work(c, plan, n.tile_q(), n.tile_kv());
    pass.step_iterations = iterations_of(plan.problem, std::max(n.tile_q(), n.tile_kv()), true);
    auto launch = tile_pass<kernels::backward_mask>(c, plan, pass.steps);
    launch.reads |= bit(Region::lse);
    if (c.backward.dlse != 0) launch.reads |= bit(Region::dlse);
    launch.writes = bit(Region::dbias);
    pass.pipeline = [launch](bool) { return launch.pipeline(); };
    return pass;
}

Result<bool> add_passes(const PassContext& c, const std::vector<Pass>& passes, Plan& plan) {
    std::vector<PassCut> cuts;
    uint64_t kept = 0;  // passes follow each other, so that they share it
    for (const Pass& pass : passes) {
        auto cut = cut_pass(c, pass, plan);
        if (!cut) return cut.failure();
        const uint64_t of_strip = pass.strips ? pass.kept_bytes / pass.grid[0] * pass.strips->heads : 0;
        if (cut->loops) kept = std::max(kept, pass.strips ? of_strip : pass.kept_bytes);
        cuts.push_back(std::move(*cut));
    }
    if (kept != 0) {
        reserve_scratch(plan, Region::accumulators, kept);
        plan.argument_patches.push_back(
            {offsetof(shared::BackwardArguments, accumulators), Region::accumulators});
    }
    for (size_t i = 0; i < passes.size(); i++) add_pass(c.caps, passes[i], cuts[i], plan);
    return true;
}

}  // namespace vkattn::core
