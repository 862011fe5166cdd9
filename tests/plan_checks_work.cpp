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
using core::Plan;
using core::Problem;
using Triple = Cover::Triple;

}  // namespace

std::string groups_flaw(const DeviceCaps& caps, const Dispatch& d) {
    for (size_t i = 0; i < 3; i++)
        if (d.groups[i] == 0 || d.groups[i] > caps.max_workgroup_count[i])
            return fmt::format("{} workgroups in dimension {}, the device has {}", d.groups[i], i,
                               caps.max_workgroup_count[i]);
    return "";
}

namespace {

Triple groups_of(const Dispatch& d) {
    return {d.groups[0], d.groups[1], d.groups[2]};
}

}  // namespace

uint64_t masks_of(const Problem& p, const Model& m) {
    const auto strides = mask_strides(p);
    return (strides[0] != 0 ? p.batch : 1) * (strides[1] != 0 ? p.num_heads_q / m.group : 1);
}

std::string classes_flaw(const Problem& p, const Model& m, const Dispatch& d) {
    if (p.mask == VKATTN_MASK_NONE) return "classes without a mask";
    if (groups_of(d) != Triple{masks_of(p, m), m.query_tiles, m.key_tiles})
        return fmt::format("classes of {} x {} x {} tiles", d.groups[0], d.groups[1], d.groups[2]);
    return "";
}

namespace {

// [classes] forward ... [combine ...]
std::string tiles_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    Cover cover;
    size_t at = 0;
    const auto is = [&](Kind kind) {
        return at < plan.dispatches.size() && facts_of(plan.dispatches[at].variant).kind == kind;
    };
    if (is(Kind::classes)) {
        if (auto flaw = groups_flaw(caps, plan.dispatches[at]); !flaw.empty()) return flaw;
        if (auto flaw = classes_flaw(p, m, plan.dispatches[at]); !flaw.empty()) return flaw;
        at++;
    }
    for (; is(Kind::forward); at++) {
        const Dispatch& d = plan.dispatches[at];
        if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
        const auto push = push_of(d);
        const Triple first{push.first_head, push.first_tile, push.splits & 0xffff};
        if ((push.splits >> 16) * uint64_t{m.tile_kv} != m.span) return "parts of different spans";
        if (m.span == 0 && push.splits != 0) return "a part where there are none";
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
    if (m.first_part + m.parts > 65536) return "a part's index needs more than 16 bits";
    if (m.span == 0) return at == plan.dispatches.size() ? "" : "dispatches without work";
    if (m.begin >= m.end) return "parts of no keys";
    return combine_flaw(caps, combine_of(p, m), plan.dispatches, at, true);
}

// The steps of the baseline: how many tiles (or rows) each has to cover in y and z.
struct Step {
    Kind kind;
    uint64_t tiles;      // over y, continued in z
    uint64_t z_exactly;  // 0: z continues y
};

std::string step_flaw(const DeviceCaps& caps, const Step& step, const Dispatch& d) {
    if (facts_of(d.variant).kind != step.kind) return fmt::format("{} out of turn", name_of(d.variant));
    if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
    const uint64_t y = d.groups[1], z = d.groups[2];
    if (step.z_exactly != 0) {
        if (y != step.tiles || z != step.z_exactly)
            return fmt::format("grid {} x {} for {} x {} tiles", y, z, step.tiles, step.z_exactly);
    } else if (y * z < step.tiles || y * (z - 1) >= step.tiles) {
        return fmt::format("grid {} x {} does not fit {} tiles", y, z, step.tiles);
    }
    return "";
}

std::string baseline_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    std::vector<Step> steps;
    if (m.key_tiles != 0) steps.push_back({Kind::scores, m.query_tiles, m.key_tiles});
    steps.push_back({Kind::softmax, p.seqlen_q, 0});
    steps.push_back({Kind::output, m.query_tiles, 0});
    const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
    uint64_t next = 0;  // the first head that no piece has covered
    size_t at = 0;
    for (; next < heads; at += steps.size()) {
        if (at + steps.size() > plan.dispatches.size())
            return fmt::format("heads from {} on are not covered", next);
        const uint64_t count = plan.dispatches[at].groups[0];
        for (size_t i = 0; i < steps.size(); i++) {
            const Dispatch& d = plan.dispatches[at + i];
            if (auto flaw = step_flaw(caps, steps[i], d); !flaw.empty()) return flaw;
            if (push_of(d).first_head != next || d.groups[0] != count)
                return fmt::format("piece of {} heads from {}, not {} from {}", d.groups[0],
                                   push_of(d).first_head, count, next);
        }
        next += count;
    }
    if (next != heads) return fmt::format("{} heads are covered, there are {}", next, heads);
    return at == plan.dispatches.size() ? "" : "dispatches without work";
}

// A workgroup of the forward against what the dispatch says each costs; a few of them, first and last included.
std::string forward_cost_flaw(const Problem& p, const Model& m, const Dispatch& d) {
    const auto push = push_of(d);
    const uint64_t workgroups = uint64_t{d.groups[0]} * d.groups[1] * d.groups[2],
                   each = d.flops / workgroups;
    const uint64_t tile = 2ull * m.tile_q * m.tile_kv * (p.head_dim_qk + p.head_dim_v);
    for (const uint64_t y : {uint64_t{0}, uint64_t{d.groups[1]} / 2, uint64_t{d.groups[1]} - 1})
        for (const uint64_t z : {uint64_t{0}, uint64_t{d.groups[2]} - 1}) {
            const uint64_t keys =
                key_tiles_of(p, m, m.query_tiles - 1 - (push.first_tile + y), (push.splits & 0xffff) + z);
            if (keys * tile > each)
                return fmt::format("a workgroup costs {}, the dispatch says {}", keys * tile, each);
        }
    return "";
}

// Least work that the other kernels do for what they write.
uint64_t least_cost(const Problem& p, const Model& m, const Dispatch& d) {
    switch (facts_of(d.variant).kind) {
        case Kind::classes:
            return d.groups[0] * std::min<uint64_t>(p.seqlen_q * m.group, m.tile_q) * d.groups[1] / 2 *
                   std::min<uint64_t>(p.key_limit, m.tile_kv);
        case Kind::combine:
            return 2ull * d.groups[0] * (d.groups[1] - 1) * p.head_dim_v * m.parts;
        default:
            return 0;
    }
}

}  // namespace

std::string work_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    if (p.empty_output()) return plan.dispatches.empty() ? "" : "dispatches without work";
    if (plan.kernel == "tiles" || plan.kernel == "rows" || is_of_matrix_kernel(plan))
        return tiles_flaw(caps, p, plan);
    if (plan.kernel == "materialized") return baseline_flaw(caps, p, plan);
    return "plan_checks_work.cpp does not know kernel " + plan.kernel;
}

std::string cost_flaw(const Problem& p, const Plan& plan, const core::Options& options) {
    const Model m = model_of(p, plan);
    for (const Dispatch& d : plan.dispatches) {
        if (options.max_dispatch_flops != 0 && d.flops > options.max_dispatch_flops)
            return fmt::format("{} costs {}, the limit is {}", name_of(d.variant), d.flops,
                               options.max_dispatch_flops);
        if (d.flops < least_cost(p, m, d)) return fmt::format("{} costs more", name_of(d.variant));
        if (facts_of(d.variant).kind != Kind::forward) continue;
        if (auto flaw = forward_cost_flaw(p, m, d); !flaw.empty()) return flaw;
    }
    return "";
}

namespace {

using Push = shared::CombinePush;

Push combine_push_of(const Dispatch& d) {
    Push push;
    static_assert(sizeof push <= sizeof d.push);
    std::memcpy(&push, d.push.data(), sizeof push);
    return push;
}

// The last row's offset in bytes from its workgroup's first one.
bool far_rows(const VkattnStrides& s, uint64_t rows, uint64_t bytes) {
    return s.seq > (uint64_t{1} << 31) / bytes || (rows - 1) * s.seq * bytes > uint64_t{1} << 31;
}

std::string combine_specialization_flaw(const DeviceCaps& caps, const core::Combine& c, const Dispatch& d,
                                        bool own_parts) {
    const uint32_t bytes = c.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2,
                   part_bytes = c.parts_dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    auto s = d.specialization;
    const uint32_t threads = s[SPEC_THREADS], lanes = s[SPEC_LANES], teams = s[SPEC_TEAMS];
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
    if (far && s[SPEC_WIDE_ROWS] == 0) return "combine: WIDE_ROWS is needed";
    if (!nearly && s[SPEC_WIDE_ROWS] != 0) return "combine: WIDE_ROWS is needless";
    std::array<uint32_t, SPEC_COUNT> expected{};
    expected[SPEC_THREADS] = threads;
    expected[SPEC_LANES] = lanes;
    expected[SPEC_TEAMS] = teams;
    expected[SPEC_UNROLL] = caps.type == core::DeviceType::cpu ? 1 : 4;
    expected[SPEC_WIDE_ROWS] = s[SPEC_WIDE_ROWS];
    expected[SPEC_HEAD_DIM_V] = c.head_dim_v;
    expected[SPEC_WIDE_LOADS] = c.alignment_bytes >= 4 * std::max(bytes, part_bytes);
    expected[SPEC_PARTS_FLOAT32] = part_bytes == 4;
    expected[SPEC_PARTS_MAX_SUM] = own_parts;
    return s == expected ? "" : "specialization of combine";
}

std::string combine_push_flaw(const core::Combine& c, const Push& push) {
    const uint64_t bytes = c.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2,
                   part_bytes = c.parts_dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    if (push.parts != 0 || push.parts_lse != 0 || push.outp != 0 || push.lse != 0)
        return "combine: an address";
    const std::array<uint64_t, 7> strides{push.part_stride, push.part_batch, push.part_head, push.part_seq,
                                          push.out_batch,   push.out_head,   push.out_seq};
    const std::array<uint64_t, 7> expected{
        c.part_stride * part_bytes,        c.parts_strides.batch * part_bytes,
        c.parts_strides.head * part_bytes, c.parts_strides.seq * part_bytes,
        c.out_strides.batch * bytes,       c.out_strides.head * bytes,
        c.out_strides.seq * bytes};
    if (strides != expected) return "combine: strides";
    if (push.num_parts != c.num_parts || push.num_heads != c.num_heads || push.seqlen_q != c.seqlen_q ||
        push.num_heads_all != uint64_t{c.batch} * c.num_heads)
        return "combine: counts";
    return "";
}

std::string combine_patches_flaw(const Dispatch& d) {
    using core::Region;
    const core::Patch expected[] = {{offsetof(Push, parts), Region::parts},
                                    {offsetof(Push, parts_lse), Region::parts_lse},
                                    {offsetof(Push, outp), Region::out},
                                    {offsetof(Push, lse), Region::lse}};
    if (d.patches.size() != std::size(expected)) return "combine: patches";
    for (const core::Patch& e : expected)
        if (std::none_of(d.patches.begin(), d.patches.end(), [&](const core::Patch& x) {
                return x.at == e.at && x.region == e.region && x.add == 0;
            }))
            return fmt::format("combine: no patch of {}", name_of(e.region));
    if (d.reads != (bit(Region::parts) | bit(Region::parts_lse)) ||
        d.writes != (bit(Region::out) | bit(Region::lse)))
        return "combine: reads and writes";
    return "";
}

}  // namespace

std::string combine_flaw(const DeviceCaps& caps, const core::Combine& c, const std::vector<Dispatch>& all,
                         size_t first, bool own_parts) {
    const uint64_t heads = uint64_t{c.batch} * c.num_heads;
    if (heads * c.seqlen_q == 0) return first == all.size() ? "" : "combine: work for an empty output";
    if (first == all.size()) return "nothing combines the parts";
    const auto& s = all[first].specialization;
    const uint64_t of_row = uint64_t{s[SPEC_LANES]} * s[SPEC_TEAMS];
    if (of_row == 0 || s[SPEC_THREADS] < of_row) return "combine: lanes";
    const uint64_t rows = s[SPEC_THREADS] / of_row;
    Cover cover;
    for (size_t i = first; i < all.size(); i++) {
        const Dispatch& d = all[i];
        if (facts_of(d.variant).kind != Kind::combine)
            return fmt::format("{} out of turn", name_of(d.variant));
        const Push push = combine_push_of(d);
        for (const auto& flaw : {groups_flaw(caps, d), combine_push_flaw(c, push), combine_patches_flaw(d)})
            if (!flaw.empty()) return flaw;
        if (i == first || d.specialization != all[first].specialization)
            if (auto flaw = combine_specialization_flaw(caps, c, d, own_parts); !flaw.empty()) return flaw;
        cover.add({push.first_head, push.first_rows, 0}, groups_of(d));
    }
    if (!cover.is({0, 0, 0}, {heads, tiles_of(c.seqlen_q, rows), 1}))
        return fmt::format("combine: {} heads of {} rows are not covered exactly once", heads, c.seqlen_q);
    return "";
}

}  // namespace vkattn::test
