// Plans that begin by decoding keys or values. The dispatches that do it are judged here, and the others as the plan of
// a problem whose keys and values lie in scratch as numbers of 16 bits.
#include "plan_checks_decoding.hpp"

#include <algorithm>
#include <bit>
#include <set>

#include <fmt/format.h>

#include "plan/caller_arrays.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::bit;
using core::Pipeline;
using core::Region;

bool decodes(const Pipeline& pipeline) {
    return find_field(pipeline, "decoded") != nullptr;
}

// The rows of key or of value, and what a pipeline that decodes them must be given.
struct Rows {
    const Given& g;
    bool of_key;

    Region region() const { return of_key ? Region::key : Region::value; }
    Region region_of_scales() const { return of_key ? Region::key_scales : Region::value_scales; }
    VkattnScales scales() const { return of_key ? g.p.key_scales : g.p.value_scales; }
    uint64_t dim() const { return of_key ? g.p.head_dim_qk : g.p.head_dim_v; }
    bool is_decoded() const {
        return has_blocks(dtype_of(g.p, region())) && (of_key || g.p.value_in_key == 0);
    }
    uint64_t bytes() const {
        return is_decoded() ? round_up(g.key_heads() * g.p.seqlen_kv * dim() * 2, core::scratch_alignment)
                            : 0;
    }
    uint64_t begin() const { return of_key ? 0 : Rows{g, true}.bytes(); }

    std::string flaw(const Pipeline& pipeline) const {
        const uint32_t threads = constant(pipeline, "threads"),
                       most = std::min({256u, g.caps.max_invocations, g.caps.max_workgroup_size[0]});
        if (!std::has_single_bit(threads) || threads > most || 2 * threads <= most) return "threads";
        if (pipeline.module != core::Module{pipeline.module.kernel, core::macros::MIXED} ||
            pipeline.of_tuning_row)
            return "another module";
        const auto stride = stride_bytes(strides_of(g, region()), dtype_of(g.p, region()));
        if (const uint64_t tile = stride[2] * DECODED_ROWS;
            constant(pipeline, "far_rows") == 0 ? tile > uint64_t{1} << 31 : tile < uint64_t{1} << 28)
            return "far_rows";
        Values constants{{"threads", threads},
                         {"head_dim", static_cast<uint32_t>(dim())},
                         {"load_bytes", 2},
                         {"has_lengths", g.p.kv_lengths != 0},
                         {"far_rows", constant(pipeline, "far_rows")},
                         {"out_type", static_cast<uint32_t>(g.plan.operands)},
                         {"query_type", TYPE_FLOAT32},
                         {"key_type", static_cast<uint32_t>(dtype_of(g.p, region()))},
                         {"value_type", TYPE_FLOAT32},
                         {"key_scales", static_cast<uint32_t>(scales())},
                         {"value_scales", SCALES_NONE}};
        std::string flaw = constants_flaw(pipeline, constants);
        const auto words = [](uint64_t x) {
            return std::vector{static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
        };
        if (flaw.empty())
            flaw = words_flaw(pipeline, {{"batch_stride", words(stride[0])},
                                         {"head_stride", words(stride[1])},
                                         {"row_stride", words(stride[2])},
                                         {"num_heads", {g.p.num_heads_kv}},
                                         {"num_rows", {g.p.seqlen_kv}}});
        if (!flaw.empty()) return flaw;
        const auto leads = [&](std::string_view field, Region to, uint64_t add) {
            const core::Patch* const patch = find_patch(pipeline, field);
            return patch != nullptr && patch->region == to && patch->add == add;
        };
        const bool scaled = scales() != VKATTN_SCALES_NONE, has_lengths = g.p.kv_lengths != 0;
        if (!leads("rows", region(), 0) || !leads("decoded", Region::decoded, begin()) ||
            !leads("scales", scaled ? region_of_scales() : region(), 0) ||
            (has_lengths && !leads("kv_lengths", Region::kv_lengths, 0)) ||
            pipeline.patches.size() != (has_lengths ? 4 : 3))
            return "addresses";
        const uint32_t reads = bit(region()) | (scaled ? bit(region_of_scales()) : 0) |
                               (has_lengths ? bit(Region::kv_lengths) : 0);
        return pipeline.reads == reads && pipeline.writes == bit(Region::decoded) ? "" : "reads or writes";
    }

    // Every workgroup once.
    std::string work_flaw(uint32_t pipeline) const {
        uint64_t workgroups = 0;
        std::set<std::array<uint32_t, 3>> firsts;
        const std::array<uint64_t, 3> grid{g.key_heads(), tiles_of(g.p.seqlen_kv, DECODED_ROWS), 1};
        for (const core::Dispatch& d : g.plan.dispatches) {
            if (d.pipeline != pipeline) continue;
            firsts.insert(d.cut.first);
            workgroups += uint64_t{d.groups[0]} * d.groups[1] * d.groups[2];
            for (size_t i = 0; i < 3; i++)
                if (uint64_t{d.cut.first[i]} + d.groups[i] > grid[i]) return "workgroups without rows";
            if (d.cut.first_step != 0 || d.cut.end_step != 0) return "steps";
            if (d.flops < uint64_t{d.groups[0]} * d.groups[1] * DECODED_ROWS * dim()) return "flops";
        }
        const auto count = std::ranges::count(g.plan.dispatches, pipeline, &core::Dispatch::pipeline);
        return firsts.size() == static_cast<size_t>(count) && workgroups == grid[0] * grid[1]
                   ? ""
                   : "not every row exactly once";
    }
};

}  // namespace

std::string decoding_flaw(const Given& g) {
    const Rows rows[] = {{g, true}, {g, false}};
    size_t wanted = 0, found = 0;
    for (const Rows& r : rows) {
        wanted += r.is_decoded();
        for (uint32_t i = 0; i < g.plan.pipelines.size(); i++) {
            const Pipeline& pipeline = g.plan.pipelines[i];
            if (!decodes(pipeline) || (pipeline.reads & bit(r.region())) == 0) continue;
            found++;
            std::string flaw = r.flaw(pipeline);
            if (flaw.empty()) flaw = r.work_flaw(i);
            if (!flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
        }
    }
    if (found != wanted) return "not every tensor is decoded once";
    for (const Pipeline& pipeline : g.plan.pipelines)
        for (const Rows& r : rows)
            if (!decodes(pipeline) && r.is_decoded() && (pipeline.reads & bit(r.region())) != 0)
                return fmt::format("{} reads what is decoded", name_of(pipeline));
    bool is_read = false;
    for (const core::Dispatch& d : g.plan.dispatches) {
        const Pipeline& pipeline = pipeline_of(g.plan, d);
        if (is_read && decodes(pipeline)) return "rows are decoded after they are read";
        is_read = is_read || (pipeline.reads & bit(Region::decoded)) != 0;
    }
    // It lies behind all other regions.
    uint64_t end = 0;
    for (const core::ScratchRegion& r : g.plan.scratch) {
        if (r.region == Region::decoded && r.offset_bytes != end) return "where the decoded rows lie";
        end = round_up(r.offset_bytes + r.size_bytes, core::scratch_alignment);
    }
    if (g.plan.scratch.empty()) return "no scratch";
    const core::ScratchRegion& last = g.plan.scratch.back();
    if (last.region != Region::decoded || last.size_bytes != rows[0].bytes() + rows[1].bytes() ||
        g.plan.scratch_bytes != end)
        return "the size of what is decoded";
    return barrier_flaw(g.plan) + caller_arrays_flaw(g);
}

std::optional<Undecoded> behind_decoding(const Given& g) {
    if (std::ranges::none_of(g.plan.pipelines, decodes)) return std::nullopt;
    VkattnProblem p = g.p;
    constexpr VkattnStrides contiguous{VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    const auto decode = [&](VkattnDtype& dtype, VkattnScales& scales, VkattnStrides& strides) {
        if (!has_blocks(dtype)) return;
        dtype = g.plan.operands;
        scales = VKATTN_SCALES_NONE;
        strides = contiguous;
    };
    decode(p.key_dtype, p.key_scales, p.key_strides);
    decode(p.value_dtype, p.value_scales, p.value_strides);
    Undecoded rest{*core::resolve(p), g.plan};
    core::Plan& plan = rest.plan;
    std::vector<uint32_t> places;
    std::erase_if(plan.dispatches, [&](const core::Dispatch& d) { return decodes(pipeline_of(g.plan, d)); });
    uint32_t kept = 0;
    for (const Pipeline& pipeline : g.plan.pipelines) places.push_back(decodes(pipeline) ? kept : kept++);
    for (core::Dispatch& d : plan.dispatches) d.pipeline = places.at(d.pipeline);
    std::erase_if(plan.pipelines, decodes);
    for (Pipeline& pipeline : plan.pipelines)
        for (core::Patch& patch : pipeline.patches) {
            if (patch.region != Region::decoded) continue;
            const Rows rows{g, g.p.value_in_key != 0 || find_patch(pipeline, "key") == &patch};
            patch.region = rows.region();
            patch.add -= rows.begin();
            pipeline.reads = (pipeline.reads & ~bit(Region::decoded)) | bit(patch.region);
        }
    std::erase_if(plan.scratch, [](const core::ScratchRegion& r) { return r.region == Region::decoded; });
    plan.scratch_bytes = 0;
    for (const core::ScratchRegion& r : plan.scratch)
        plan.scratch_bytes = round_up(r.offset_bytes + r.size_bytes, core::scratch_alignment);
    plan.problem = rest.p;
    plan.caller_arrays = core::caller_arrays_of(rest.p);
    return rest;
}

}  // namespace vkattn::test
