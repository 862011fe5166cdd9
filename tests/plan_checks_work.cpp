// Coverage and cost.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "plan_checks.hpp"
#include "plan_model.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::DeviceCaps;
using core::Dispatch;
using core::Pipeline;
using core::Plan;
using core::Problem;

}  // namespace

std::string groups_flaw(const DeviceCaps& caps, const Dispatch& d) {
    for (size_t i = 0; i < 3; i++)
        if (d.groups[i] == 0 || d.groups[i] > caps.max_workgroup_count[i])
            return fmt::format("{} workgroups in dimension {}, the device has {}", d.groups[i], i,
                               caps.max_workgroup_count[i]);
    return "";
}

uint64_t masks_of(const Problem& p, const Model& m) {
    const auto strides = mask_strides(p);
    return (strides[0] != 0 ? p.batch : 1) * class_heads(p, m);
}

std::string classes_flaw(const Problem& p, const Model& m, const Dispatch& d) {
    if (p.mask == VKATTN_MASK_NONE) return "classes without a mask";
    if (groups_of(d) != Triple{masks_of(p, m), m.query_tiles, m.key_tiles})
        return fmt::format("classes of {} x {} x {} tiles", d.groups[0], d.groups[1], d.groups[2]);
    return "";
}

uint64_t least_cost_of_classes(const Problem& p, const Model& m, const Dispatch& d) {
    return d.groups[0] * std::min<uint64_t>(p.seqlen_q * m.group, m.tile_q) * d.groups[1] / 2 *
           std::min<uint64_t>(p.key_limit, m.tile_kv);
}

namespace {

// [classes] forward ... [combine ...]
std::string tiles_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    Cover cover;
    size_t at = 0;
    const auto is = [&](Kind kind) {
        return at < plan.dispatches.size() && kind_of(plan, plan.dispatches[at]) == kind;
    };
    if (is(Kind::classes)) {
        if (auto flaw = groups_flaw(caps, plan.dispatches[at]); !flaw.empty()) return flaw;
        if (auto flaw = classes_flaw(p, m, plan.dispatches[at]); !flaw.empty()) return flaw;
        at++;
    }
    for (; is(Kind::forward); at++) {
        const Dispatch& d = plan.dispatches[at];
        if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
        const Triple first = begin_of(d);
        for (size_t i = 0; i < 3; i++)  // ends in other boxes as well, so that no sum can be right by chance
            if (first[i] + d.groups[i] > Triple{m.heads * m.slices, m.query_tiles, m.first_part + m.parts}[i])
                return fmt::format("workgroups {} .. {} in dimension {}", first[i], first[i] + d.groups[i],
                                   i);
        cover.add(first, groups_of(d));
    }
    if (!cover.is({0, 0, m.first_part}, {m.heads * m.slices, m.query_tiles, m.parts}))
        return fmt::format("{} heads, {} query tiles, parts {} .. {} are not covered exactly once", m.heads,
                           m.query_tiles, m.first_part, m.first_part + m.parts);
    if (plan.num_splits != m.parts) return fmt::format("num_splits {} of {}", plan.num_splits, m.parts);
    if ((m.first_part + m.parts) * m.span > INT32_MAX) return "keys of the last part pass 2^31";
    if (m.span == 0) return at == plan.dispatches.size() ? "" : "dispatches without work";
    if (m.begin >= m.end) return "parts of no keys";
    return combine_flaw(caps, combine_of(p, m), plan, at, true, p.mask == VKATTN_MASK_FLOAT);
}

}  // namespace

std::string rows_grid_flaw(const Dispatch& d, uint64_t tiles) {
    const uint64_t y = d.groups[1], z = d.groups[2];
    return y * z < tiles || y * (z - 1) >= tiles || (z == 1 && y != tiles)
               ? fmt::format("grid {} x {} does not fit {} rows", y, z, tiles)
               : "";
}

namespace {

// The steps of the baseline: how many tiles (or rows) each has to cover in y and z.
struct Step {
    Kind kind;
    uint64_t tiles;      // over y, continued in z
    uint64_t z_exactly;  // 0: z continues y
};

std::string step_flaw(const DeviceCaps& caps, const Step& step, const Pipeline& pipeline, const Dispatch& d) {
    if (kind_of(pipeline) != step.kind) return fmt::format("{} out of turn", name_of(pipeline));
    if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
    const uint64_t y = d.groups[1], z = d.groups[2];
    if (step.z_exactly != 0) {
        if (y != step.tiles || z != step.z_exactly)
            return fmt::format("grid {} x {} for {} x {} tiles", y, z, step.tiles, step.z_exactly);
        return "";
    }
    return rows_grid_flaw(d, step.tiles);
}

std::string baseline_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    if (plan.num_splits != 1) return "parts of the baseline's keys";
    std::vector<Step> steps;
    if (m.key_tiles != 0) steps.push_back({Kind::scores, m.query_tiles, m.key_tiles});
    steps.push_back({Kind::softmax, p.seqlen_q, 0});
    steps.push_back({Kind::output, m.query_tiles, 1});  // whose shader knows no z
    const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
    uint64_t next = 0;  // the first head that no piece has covered
    size_t at = 0;
    for (; next < heads; at += steps.size()) {
        if (at + steps.size() > plan.dispatches.size())
            return fmt::format("heads from {} on are not covered", next);
        const uint64_t count = plan.dispatches[at].groups[0];
        for (size_t i = 0; i < steps.size(); i++) {
            const Dispatch& d = plan.dispatches[at + i];
            if (auto flaw = step_flaw(caps, steps[i], pipeline_of(plan, d), d); !flaw.empty()) return flaw;
            if (begin_of(d) != Triple{next, 0, 0} || d.groups[0] != count)
                return fmt::format("piece of {} heads from {}, not {} from {}", d.groups[0], d.cut.first[0],
                                   count, next);
        }
        next += count;
    }
    if (next != heads) return fmt::format("{} heads are covered, there are {}", next, heads);
    return at == plan.dispatches.size() ? "" : "dispatches without work";
}

// A workgroup of the forward against what the dispatch says each costs; a few of them, first and last included.
std::string forward_cost_flaw(const Problem& p, const Model& m, const Dispatch& d) {
    const Triple first = begin_of(d);
    const uint64_t workgroups = uint64_t{d.groups[0]} * d.groups[1] * d.groups[2],
                   each = d.flops / workgroups;
    const uint64_t tile = 2ull * m.tile_q * m.tile_kv * (p.head_dim_qk + p.head_dim_v);
    for (const uint64_t y : {uint64_t{0}, uint64_t{d.groups[1]} / 2, uint64_t{d.groups[1]} - 1})
        for (const uint64_t z : {uint64_t{0}, uint64_t{d.groups[2]} - 1}) {
            const uint64_t keys = key_tiles_of(p, m, m.query_tiles - 1 - (first[1] + y), first[2] + z);
            if (keys * tile > each)
                return fmt::format("a workgroup costs {}, the dispatch says {}", keys * tile, each);
        }
    return "";
}

// Least work that the other kernels do for what they write.
uint64_t least_cost(const Problem& p, const Model& m, Kind kind, const Dispatch& d) {
    switch (kind) {
        case Kind::classes:
            return least_cost_of_classes(p, m, d);
        case Kind::combine:
            return 2ull * d.groups[0] * (d.groups[1] - 1) * p.head_dim_v * m.parts;
        default:
            return 0;
    }
}

}  // namespace

std::string work_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    if (p.empty_output()) return plan.dispatches.empty() ? "" : "dispatches without work";
    if (plan.kernel == "tiles" || plan.kernel == "tiles_dot" || plan.kernel == "rows" ||
        plan.kernel == "rows_dot" || is_of_matrix_kernel(plan))
        return tiles_flaw(caps, p, plan);
    if (plan.kernel == "materialized") return baseline_flaw(caps, p, plan);
    return "plan_checks_work.cpp does not know kernel " + plan.kernel;
}

std::string cost_flaw(const Problem& p, const Plan& plan, const core::Options& options) {
    const Model m = model_of(p, plan);
    for (const Dispatch& d : plan.dispatches) {
        const Pipeline& pipeline = pipeline_of(plan, d);
        const Kind kind = kind_of(pipeline);
        if (options.max_dispatch_flops != 0 && d.flops > options.max_dispatch_flops)
            return fmt::format("{} costs {}, the limit is {}", name_of(pipeline), d.flops,
                               options.max_dispatch_flops);
        if (d.flops < least_cost(p, m, kind, d)) return fmt::format("{} costs more", name_of(pipeline));
        if (kind != Kind::forward) continue;
        if (auto flaw = forward_cost_flaw(p, m, d); !flaw.empty()) return flaw;
    }
    return "";
}

namespace {

// The last row's offset in bytes from its workgroup's first one.
bool far_rows(const VkattnStrides& s, uint64_t rows, uint64_t bytes) {
    return s.seq > (uint64_t{1} << 31) / bytes || (rows - 1) * s.seq * bytes > uint64_t{1} << 31;
}

std::string combine_constants_flaw(const DeviceCaps& caps, const core::Combine& c, const Pipeline& pipeline,
                                   bool own_parts, bool natural) {
    const uint32_t bytes = c.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2,
                   part_bytes = c.parts_dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    const uint32_t threads = constant(pipeline, "threads"), lanes = constant(pipeline, "lanes"),
                   teams = constant(pipeline, "teams"), far_apart = constant(pipeline, "far_rows");
    if (threads == 0 || threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("combine: {} invocations", threads);
    if (lanes == 0 || teams == 0 || threads % (lanes * teams) != 0)
        return fmt::format("combine: {} lanes in {} teams of {}", lanes, teams, threads);
    if (!own_parts && teams != 1) return "combine: bits depend on the number of parts";
    const uint32_t rows = threads / (lanes * teams);
    // Each invocation of a row reads the statistics, 8 bytes a row at most, of a part of its own.
    const uint64_t statistics =
        uint64_t{c.batch} * c.num_heads * c.seqlen_q * 8 * std::min(lanes * teams, c.num_parts);
    const bool far = far_rows(c.parts_strides, rows, part_bytes) || far_rows(c.out_strides, rows, bytes) ||
                     statistics > uint64_t{1} << 31;
    const bool nearly = far_rows(c.parts_strides, rows + 2, part_bytes) ||
                        far_rows(c.out_strides, rows + 2, bytes) || statistics > uint64_t{1} << 30;
    if (far && far_apart == 0) return "combine: far_rows is needed";
    if ((!nearly && far_apart != 0) || far_apart > 1) return "combine: far_rows is needless";
    // Four elements of parts and of out at a time, or one.
    const uint32_t widest = std::max(bytes, part_bytes);
    return constants_flaw(pipeline, {{"threads", threads},
                                     {"lanes", lanes},
                                     {"teams", teams},
                                     {"step_parts", caps.type == core::DeviceType::cpu ? 1u : 4u},
                                     {"head_dim_v", c.head_dim_v},
                                     {"load_bytes", c.alignment_bytes >= 4 * widest ? 4 * widest : bytes},
                                     {"far_rows", far_apart},
                                     {"parts_are_float32", part_bytes == 4},
                                     {"parts_have_max_sum", own_parts},
                                     {"parts_are_natural", !own_parts || natural},
                                     {"out_type", type_constant(c.dtype)}});
}

std::string combine_push_flaw(const core::Combine& c, const Pipeline& pipeline) {
    const uint64_t bytes = c.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2,
                   part_bytes = c.parts_dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    const auto words = [](uint64_t x) {
        return std::vector<uint32_t>{static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
    };
    return words_flaw(pipeline, {{"part_stride", words(c.part_stride * part_bytes)},
                                 {"part_batch", words(c.parts_strides.batch * part_bytes)},
                                 {"part_head", words(c.parts_strides.head * part_bytes)},
                                 {"part_seq", words(c.parts_strides.seq * part_bytes)},
                                 {"out_batch", words(c.out_strides.batch * bytes)},
                                 {"out_head", words(c.out_strides.head * bytes)},
                                 {"out_seq", words(c.out_strides.seq * bytes)},
                                 {"num_parts", {c.num_parts}},
                                 {"num_heads", {c.num_heads}},
                                 {"seqlen_q", {c.seqlen_q}},
                                 {"num_heads_all", {c.batch * c.num_heads}}});
}

std::string combine_touches_flaw(const Pipeline& pipeline) {
    using core::Region;
    Touches t(pipeline);
    t.reads_at("parts", Region::parts);
    t.reads_at("parts_lse", Region::parts_lse);
    t.writes_at("out_rows", Region::out);
    t.writes_at("lse", Region::lse);
    return touches_flaw(t, pipeline);
}

}  // namespace

std::string combine_flaw(const DeviceCaps& caps, const core::Combine& c, const Plan& plan, size_t first,
                         bool own_parts, bool natural) {
    const std::vector<Dispatch>& all = plan.dispatches;
    const uint64_t heads = uint64_t{c.batch} * c.num_heads;
    if (heads * c.seqlen_q == 0) return first == all.size() ? "" : "combine: work for an empty output";
    if (first == all.size()) return "nothing combines the parts";
    const Pipeline& pipeline = pipeline_of(plan, all[first]);
    if (kind_of(pipeline) != Kind::combine) return fmt::format("{} out of turn", name_of(pipeline));
    for (const auto& flaw :
         {form_flaw(pipeline, 0), combine_constants_flaw(caps, c, pipeline, own_parts, natural),
          combine_push_flaw(c, pipeline), combine_touches_flaw(pipeline)})
        if (!flaw.empty()) return flaw;
    const uint64_t of_row = uint64_t{constant(pipeline, "lanes")} * constant(pipeline, "teams"),
                   rows = constant(pipeline, "threads") / of_row;
    Cover cover;
    for (size_t i = first; i < all.size(); i++) {
        if (all[i].pipeline != all[first].pipeline)
            return fmt::format("{} out of turn", name_of(pipeline_of(plan, all[i])));
        if (auto flaw = groups_flaw(caps, all[i]); !flaw.empty()) return flaw;
        cover.add(begin_of(all[i]), groups_of(all[i]));
    }
    if (!cover.is({0, 0, 0}, {heads, tiles_of(c.seqlen_q, rows), 1}))
        return fmt::format("combine: {} heads of {} rows are not covered exactly once", heads, c.seqlen_q);
    return "";
}

}  // namespace vkattn::test
