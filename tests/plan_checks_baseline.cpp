// What must hold of the baseline's backward plan: P, then dS in a matrix each, for pieces of whole groups of heads.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "plan_backward_model.hpp"
#include "plan_checks.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Backward;
using core::bit;
using core::DeviceCaps;
using core::Dispatch;
using core::Patch;
using core::Plan;
using core::Problem;
using core::Region;
using Push = shared::ForwardPush;
using Block = shared::ForwardArguments;

constexpr size_t backward_block = sizeof(shared::BackwardArguments);

// A step of a piece: what it is about, in the forward's terms, and its grid.
struct Step {
    Kind kind;
    size_t block;  // where its arguments are
    Problem view;
    Touches touches;
    uint64_t x, y, z;  // z = 0: it continues y
};

Touches touches(size_t block, Region query, Region other, size_t at, Region out) {
    Touches t;
    t.patches.push_back({offsetof(Push, query_batch), Region::arguments, block});
    t.reads = bit(Region::arguments);
    t.reads_at(offsetof(Push, query), query);
    t.reads_at(at, other);
    t.writes_at(offsetof(Push, outp), out);
    return t;
}

Step scores_step(const Problem& p, const Backward& b, bool gradient) {
    Step s{Kind::scores, 0, p, {}, 0, 0, 0};
    if (gradient) {
        s.block = backward_block;
        s.view.query_strides = b.dout_strides;
        s.view.key_strides = p.value_strides;
        s.view.head_dim_qk = p.head_dim_v;
        s.view.softmax_scale = 0.69314718f;  // 1 in base 2
    }
    s.touches =
        touches(s.block, gradient ? Region::dout : Region::query, gradient ? Region::value : Region::key,
                offsetof(Push, key), gradient ? Region::slopes : Region::scores);
    return s;
}

// In place, a row a workgroup.
Step row_step(const Problem& p, Kind kind) {
    Step s{kind, 0, p, {}, 0, p.seqlen_q, 0};
    s.touches.reads_at(offsetof(Push, query_batch), Region::arguments);
    if (kind == Kind::gradient) {
        s.touches.reads_at(offsetof(Push, query), Region::scores);
        s.touches.reads |= bit(Region::statistics);
    }
    const Region matrix = kind == Kind::gradient ? Region::slopes : Region::scores;
    s.touches.reads |= bit(matrix);
    s.touches.writes_at(offsetof(Push, outp), matrix);
    return s;
}

// The `index`-th of dquery, dvalue, dkey.
Step product_step(const Problem& p, const Backward& b, size_t index) {
    const size_t block = backward_block + (index + 1) * sizeof(Block);
    Step s{index == 0 ? Kind::output : Kind::transposed, block, p, {}, 0, 0, 1};
    const Region outs[] = {Region::dquery, Region::dvalue, Region::dkey},
                 rows[] = {Region::key, Region::dout, Region::query};
    const VkattnStrides *const out_strides[] = {&b.dquery_strides, &b.dvalue_strides, &b.dkey_strides},
                               *const row_strides[] = {&p.key_strides, &b.dout_strides, &p.query_strides};
    s.view.out_strides = *out_strides[index];
    s.view.value_strides = *row_strides[index];
    if (index != 1) s.view.head_dim_v = p.head_dim_qk;
    s.touches = touches(block, index == 1 ? Region::scores : Region::slopes, rows[index],
                        offsetof(Push, value), outs[index]);
    return s;
}

std::vector<Step> steps_of(const Problem& p, const Backward& b, const Model& m) {
    std::vector<Step> steps;
    const uint64_t tiles = tiles_of(p.seqlen_q, m.n.tile_q());
    if (p.seqlen_q != 0 && p.seqlen_kv != 0) {
        for (const bool gradient : {false, true}) {
            steps.push_back(scores_step(p, b, gradient));
            steps.back().y = tiles;
            steps.back().z = tiles_of(p.seqlen_kv, m.n.tile_kv());
        }
        steps.push_back(row_step(p, Kind::softmax));
        steps.push_back(row_step(p, Kind::gradient));
    }
    for (size_t i = 0; i < 3; i++) {
        if ((i == 0 ? p.seqlen_q : p.seqlen_kv) == 0) continue;
        steps.push_back(product_step(p, b, i));
        steps.back().y = i == 0 ? tiles : tiles_of(p.seqlen_kv, m.n.tile_q());
    }
    for (Step& s : steps) s.x = s.kind == Kind::transposed ? p.num_heads_q / p.num_heads_kv : 1;
    return steps;
}

bool far_rows(const Problem& p, const Backward& b, uint64_t rows) {
    const VkattnStrides* const all[] = {&p.query_strides,  &p.key_strides,   &p.value_strides,
                                        &p.out_strides,    &b.dout_strides,  &b.dkey_strides,
                                        &b.dvalue_strides, &b.dquery_strides};
    return std::any_of(std::begin(all), std::end(all), [&](const VkattnStrides* s) {
        return far_apart(p, rows, s->seq, 1, 0, VKATTN_MAX_HEAD_DIM);
    });
}

std::string specialization_flaw(const Problem& p, const Backward& b, const Model& m, const Problem& view,
                                const Dispatch& d) {
    const Kind kind = facts_of(d.variant).kind;
    Specialization expected = specialization_of(view, m, kind, d);
    expected[SPEC_ARGUMENTS] = 1;
    if (kind == Kind::delta)
        for (const size_t at : {size_t{SPEC_THREADS}, size_t{SPEC_LANES}})
            expected[at] = d.specialization[at];
    else
        expected[SPEC_POOL_VEC4] = pool_of_maps(m.n, std::max(p.head_dim_qk, p.head_dim_v));
    if (d.specialization[SPEC_PACK] != 0) return "packed";
    const uint32_t most = std::max({m.n.tile_q(), m.n.tile_kv(), 64u});
    const bool wide = d.specialization[SPEC_WIDE_ROWS] != 0;
    if (wide ? !far_rows(p, b, most + 2) : far_rows(p, b, std::max(m.n.tile_q(), m.n.tile_kv())))
        return "WIDE_ROWS";
    return d.specialization == expected ? "" : fmt::format("specialization of {}", name_of(d.variant));
}

std::string step_flaw(const DeviceCaps& caps, const Problem& p, const Step& s, const Dispatch& d,
                      uint64_t heads, uint64_t first) {
    if (facts_of(d.variant).kind != s.kind) return "out of turn";
    if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
    const uint64_t y = d.groups[1], z = d.groups[2];
    if (d.groups[0] * s.x != heads) return fmt::format("{} workgroups for {} heads", d.groups[0], heads);
    if (s.z != 0 ? y != s.y || z != s.z : y * z < s.y || y * (z - 1) >= s.y)
        return fmt::format("grid {} x {} for {} x {}", y, z, s.y, s.z);
    const Push push = push_of(d);
    if (push.first_head != first || push.first_tile != 0 || push.splits != 0) return "begins elsewhere";
    if (heads % (p.num_heads_q / p.num_heads_kv) != 0) return "a group is cut";
    for (const auto& flaw : {numbers_in_push_flaw(s.view, push), touches_flaw(s.touches, d)})
        if (!flaw.empty()) return flaw;
    return "";
}

// The statistics of all rows come first.
std::string delta_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const BackwardModel& m,
                       const Plan& plan, size_t& at) {
    Cover cover;
    Touches t;
    t.reads_at(offsetof(Push, query_batch), Region::arguments);
    t.reads_at(offsetof(Push, outp), Region::out);
    t.reads |= bit(Region::dout) | bit(Region::lse);
    t.writes = bit(Region::statistics);
    for (; at < plan.dispatches.size(); at++) {
        const Dispatch& d = plan.dispatches[at];
        if (facts_of(d.variant).kind != Kind::delta) break;
        for (const auto& flaw :
             {groups_flaw(caps, d), touches_flaw(t, d), specialization_flaw(p, b, m.of_tiles, p, d)})
            if (!flaw.empty()) return flaw;
        cover.add(begin_of(d), {d.groups[0], d.groups[1], d.groups[2]});
    }
    if (m.rows == 0) return at == 0 ? "" : "statistics of no rows";
    if (at == 0 || !cover.is({0, 0, 0}, grid_of(p, m, plan.dispatches[0]))) return "not all rows";
    return "";
}

std::string pieces_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const Model& m,
                        const Plan& plan, size_t at, uint64_t& piece) {
    const std::vector<Step> steps = steps_of(p, b, m);
    const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
    for (uint64_t first = 0, count = 0; first < heads; first += count, at += steps.size()) {
        if (at + steps.size() > plan.dispatches.size()) return fmt::format("no heads from {} on", first);
        count = plan.dispatches[at].groups[0] * steps[0].x;
        piece = std::max(piece, count);
        for (size_t i = 0; i < steps.size(); i++) {
            const Dispatch& d = plan.dispatches[at + i];
            for (const auto& flaw : {step_flaw(caps, p, steps[i], d, count, first),
                                     specialization_flaw(p, b, m, steps[i].view, d)})
                if (!flaw.empty()) return fmt::format("{} {}: {}", i, name_of(d.variant), flaw);
        }
        if (first + count > heads) return "more heads than there are";
    }
    return at == plan.dispatches.size() ? "" : "dispatches without work";
}

// Five blocks: the backward's own, and one for each step whose tensors are not the forward's.
std::string blocks_flaw(const Problem& p, const Backward& b, const BackwardModel& m, const Plan& plan) {
    const Step views[] = {scores_step(p, b, true), product_step(p, b, 0), product_step(p, b, 1),
                          product_step(p, b, 2)};
    if (plan.arguments.size() != backward_block + std::size(views) * sizeof(Block)) return "argument blocks";
    using All = shared::BackwardArguments;
    std::vector<Patch> expected = argument_patches(p, m.of_tiles);
    for (const auto& [at, region] : {std::pair{offsetof(All, dout), Region::dout},
                                     {offsetof(All, lse), Region::lse},
                                     {offsetof(All, dquery), Region::dquery},
                                     {offsetof(All, dkey), Region::dkey},
                                     {offsetof(All, dvalue), Region::dvalue},
                                     {offsetof(All, statistics), Region::statistics}})
        if (region != Region::statistics || m.rows != 0)
            expected.push_back({static_cast<uint32_t>(at), region});
    for (const Step& s : views) {
        Block a;
        std::memcpy(&a, plan.arguments.data() + s.block, sizeof a);
        if (auto flaw = arguments_flaw(s.view, m.of_tiles, a); !flaw.empty()) return flaw;
        for (Patch patch : argument_patches(p, m.of_tiles)) {
            patch.at += static_cast<uint32_t>(s.block);
            expected.push_back(patch);
        }
    }
    All a;
    std::memcpy(&a, plan.arguments.data(), sizeof a);
    if (a.scale != p.softmax_scale) return "scale";
    if (auto flaw = arguments_flaw(p, m.of_tiles, a.forward); !flaw.empty()) return flaw;
    return patch_flaw(plan.argument_patches, expected);
}

}  // namespace

std::string baseline_backward_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b,
                                   const Plan& plan) {
    const BackwardModel m = model_of(p, b, plan);
    if (m.rows == 0 && m.keys == 0)
        return plan.dispatches.empty() && plan.scratch_bytes == 0 ? "" : "work for nothing";
    if (plan.tiles.shared_bytes > caps.max_shared_bytes) return "shared memory";
    if (auto flaw = numbers_flaw(m.of_tiles.n); !flaw.empty()) return "tuning: " + flaw;
    size_t at = 0;
    uint64_t piece = 0;
    for (const auto& flaw :
         {delta_flaw(caps, p, b, m, plan, at), pieces_flaw(caps, p, b, m.of_tiles, plan, at, piece)})
        if (!flaw.empty()) return flaw;
    const auto used = [&](Region region) -> uint64_t {
        if (region == Region::arguments) return plan.arguments.size();
        if (region == Region::statistics) return m.rows * 4 * sizeof(float);
        return region == Region::scores || region == Region::slopes ? piece * matrix_bytes(p) : 0;
    };
    for (const auto& flaw :
         {blocks_flaw(p, b, m, plan), regions_flaw(caps, plan, used), barrier_flaw(plan), of_row_flaw(plan)})
        if (!flaw.empty()) return flaw;
    return "";
}

}  // namespace vkattn::test
