// What must hold of the baseline's backward plan: P, then dS in a matrix each, for pieces of whole groups of heads.
#include <algorithm>
#include <bit>
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
using core::Pipeline;
using core::Plan;
using core::Problem;
using core::Region;
using Block = shared::ForwardArguments;

constexpr size_t backward_block = sizeof(shared::BackwardArguments);

// A step of a piece: what it is about, in the forward's terms, and its grid.
struct Step {
    Kind kind;
    size_t block;  // where its arguments are
    Problem view;
    Touches touches;
    uint64_t heads_of_x = 1;      // a workgroup has so many heads
    uint64_t y = 0, z = 0;        // z = 0: it continues y
    bool scales_nothing = false;  // its scale is 1
};

Step scores_step(const Problem& p, const Backward& b, bool gradient) {
    Step s{Kind::scores, 0, p, Touches(core::Kernel::materialized_scores)};
    if (gradient) {
        s.block = backward_block;
        s.view.query_strides = b.dout_strides;
        s.view.key_strides = p.value_strides;
        s.view.head_dim_qk = p.head_dim_v;
        s.scales_nothing = true;
    }
    s.touches.reads_arguments(s.block);
    s.touches.reads_at("query", gradient ? Region::dout : Region::query);
    s.touches.reads_at("key", gradient ? Region::value : Region::key);
    s.touches.writes_at("scores", gradient ? Region::score_gradients : Region::scores);
    return s;
}

// In place, a row a workgroup.
Step softmax_step(const Problem& p) {
    Step s{Kind::softmax, 0, p, Touches(core::Kernel::materialized_softmax)};
    s.y = p.seqlen_q;
    s.touches.reads_arguments();
    s.touches.reads |= bit(Region::scores);
    s.touches.writes_at("scores", Region::scores);
    return s;
}

Step gradient_step(const Problem& p) {
    Step s{Kind::gradient, 0, p, Touches(core::Kernel::materialized_gradient)};
    s.y = p.seqlen_q;
    s.touches.reads_arguments();
    s.touches.reads_at("weights", Region::scores);
    s.touches.reads |= bit(Region::statistics) | bit(Region::score_gradients);
    s.touches.writes_at("score_gradients", Region::score_gradients);
    return s;
}

// The `index`-th of dquery, dvalue, dkey.
Step product_step(const Problem& p, const Backward& b, size_t index) {
    const size_t block = backward_block + (index + 1) * sizeof(Block);
    const bool transposed = index != 0;
    Step s{transposed ? Kind::transposed : Kind::output, block, p,
           Touches(transposed ? core::Kernel::materialized_transposed : core::Kernel::materialized_output)};
    s.z = 1;
    if (transposed) s.heads_of_x = p.num_heads_q / p.num_heads_kv;
    const Region outs[] = {Region::dquery, Region::dvalue, Region::dkey},
                 rows[] = {Region::key, Region::dout, Region::query};
    const VkattnStrides *const out_strides[] = {&b.dquery_strides, &b.dvalue_strides, &b.dkey_strides},
                               *const row_strides[] = {&p.key_strides, &b.dout_strides, &p.query_strides};
    s.view.out_strides = *out_strides[index];
    s.view.value_strides = *row_strides[index];
    if (index != 1) s.view.head_dim_v = p.head_dim_qk;
    s.touches.reads_arguments(block);
    s.touches.reads_at("weights", index == 1 ? Region::scores : Region::score_gradients);
    s.touches.reads_at("value", rows[index]);
    s.touches.writes_at("out_rows", outs[index]);
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
        steps.push_back(softmax_step(p));
        steps.push_back(gradient_step(p));
    }
    for (size_t i = 0; i < 3; i++) {
        if ((i == 0 ? p.seqlen_q : p.seqlen_kv) == 0) continue;
        steps.push_back(product_step(p, b, i));
        steps.back().y = i == 0 ? tiles : tiles_of(p.seqlen_kv, m.n.tile_q());
    }
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

// Constants and push constants of a pipeline of this view of the problem.
std::string pipeline_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const Model& m,
                          const Problem& view, const Pipeline& pipeline) {
    for (const auto& flaw : {module_flaw(caps, p.dtype, pipeline.module), form_flaw(pipeline, m.n.rolled)})
        if (!flaw.empty()) return flaw;
    Values expected = expected_constants(view, m, pipeline);
    expected["has_arguments"] = 1;
    if (kind_of(pipeline) == Kind::delta)
        if (auto flaw = delta_workgroup_flaw(caps, p, pipeline); !flaw.empty()) return flaw;
    if (kind_of(pipeline) == Kind::delta) {
        for (const char* own : {"threads", "lanes"}) expected[own] = constant(pipeline, own);
        expected["dout_type"] = 0;  // nothing is rounded
    }
    if (constant(pipeline, "packed_heads") != 0) return "packed";
    const uint32_t most = std::max({m.n.tile_q(), m.n.tile_kv(), 64u}), far = constant(pipeline, "far_rows");
    if (far > 1 ||
        (far != 0 ? !far_rows(p, b, most + 2) : far_rows(p, b, std::max(m.n.tile_q(), m.n.tile_kv()))))
        return "far_rows";
    return constants_flaw(pipeline, expected);
}

// Its pipeline's, apart from constants.
std::string push_flaw(const Step& s, const Pipeline& pipeline) {
    Words words = words_of(s.view, pipeline);
    words["operand_layout"] = layout_words(s.view, true);
    if (s.scales_nothing) words["score_scale"] = {std::bit_cast<uint32_t>(1.0f)};
    const std::string flaw = words_flaw(pipeline, words);
    return flaw.empty() ? touches_flaw(s.touches, pipeline) : flaw;
}

std::string step_flaw(const DeviceCaps& caps, const Problem& p, const Step& s, const Dispatch& d,
                      uint64_t heads, uint64_t first) {
    if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
    const uint64_t y = d.groups[1], z = d.groups[2];
    if (d.groups[0] * s.heads_of_x != heads)
        return fmt::format("{} workgroups for {} heads", d.groups[0], heads);
    if (s.z != 0 && (y != s.y || z != s.z)) return fmt::format("grid {} x {} for {} x {}", y, z, s.y, s.z);
    if (s.z == 0)
        if (auto flaw = rows_grid_flaw(d, s.y); !flaw.empty()) return flaw;
    // Heads of a group are added up by one workgroup, whose x counts heads of keys.
    if (d.cut.first[0] * s.heads_of_x != first || d.cut.first[1] != 0 || d.cut.first[2] != 0)
        return "begins elsewhere";
    if (heads % (p.num_heads_q / p.num_heads_kv) != 0) return "a group is cut";
    return "";
}

// The statistics of all rows come first.
std::string delta_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const BackwardModel& m,
                       const Plan& plan, size_t& at) {
    if (m.rows == 0) return "";
    if (plan.dispatches.empty() || kind_of(plan, plan.dispatches[0]) != Kind::delta) return "no statistics";
    const uint32_t index = plan.dispatches[0].pipeline;
    const Pipeline& pipeline = plan.pipelines[index];
    Touches t(pipeline);
    t.reads_arguments();
    t.reads_at("out_rows", Region::out);
    t.reads |= bit(Region::dout) | bit(Region::lse);
    t.writes = bit(Region::statistics);
    for (const auto& flaw : {pipeline_flaw(caps, p, b, m.of_tiles, p, pipeline), touches_flaw(t, pipeline),
                             words_flaw(pipeline, words_of(p, pipeline))})
        if (!flaw.empty()) return flaw;
    Cover cover;
    for (; at < plan.dispatches.size() && plan.dispatches[at].pipeline == index; at++) {
        const Dispatch& d = plan.dispatches[at];
        if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
        cover.add(begin_of(d), groups_of(d));
    }
    return cover.is({0, 0, 0}, grid_of(p, m, pipeline)) ? "" : "not all rows";
}

// All pieces have the same pipelines, so only those of the first are looked at.
std::string pieces_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const Model& m,
                        const Plan& plan, size_t at, uint64_t& piece) {
    const std::vector<Step> steps = steps_of(p, b, m);
    const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
    const size_t begin = at;
    for (uint64_t first = 0, count = 0; first < heads; first += count, at += steps.size()) {
        if (at + steps.size() > plan.dispatches.size()) return fmt::format("no heads from {} on", first);
        count = plan.dispatches[at].groups[0] * steps[0].heads_of_x;
        piece = std::max(piece, count);
        for (size_t i = 0; i < steps.size(); i++) {
            const Dispatch& d = plan.dispatches[at + i];
            const Pipeline& pipeline = pipeline_of(plan, d);
            if (d.pipeline != plan.dispatches[begin + i].pipeline || kind_of(pipeline) != steps[i].kind)
                return fmt::format("{}: {} out of turn", i, name_of(pipeline));
            std::string flaw = step_flaw(caps, p, steps[i], d, count, first);
            if (flaw.empty() && first == 0) flaw = pipeline_flaw(caps, p, b, m, steps[i].view, pipeline);
            if (flaw.empty() && first == 0) flaw = push_flaw(steps[i], pipeline);
            if (!flaw.empty()) return fmt::format("{} {}: {}", i, name_of(pipeline), flaw);
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
    if (auto flaw = backward_arguments_flaw(p, b, m.of_tiles, plan.arguments); !flaw.empty()) return flaw;
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
    if (plan.tiles.threads != m.of_tiles.n.threads || plan.tiles.tile_q != m.of_tiles.n.tile_q() ||
        plan.tiles.tile_kv != m.of_tiles.n.tile_kv())
        return "tiles against tuning";
    if (plan.tiles.threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("{} invocations", plan.tiles.threads);
    // Products have rows of either head dim.
    if (plan.tiles.shared_bytes != 16 * pool_of_maps(m.of_tiles.n, std::max(p.head_dim_qk, p.head_dim_v)))
        return "shared memory is not what the maps come to";
    if (plan.pipelines.size() != 7 + (m.rows != 0 ? 1 : 0)) return "pipelines of no step";
    size_t at = 0;
    uint64_t piece = 0;
    std::string flaw = delta_flaw(caps, p, b, m, plan, at);
    if (flaw.empty()) flaw = pieces_flaw(caps, p, b, m.of_tiles, plan, at, piece);
    if (!flaw.empty()) return flaw;
    const auto used = [&](Region region) -> uint64_t {
        if (region == Region::arguments) return plan.arguments.size();
        if (region == Region::statistics) return m.rows * 4 * sizeof(float);
        return region == Region::scores || region == Region::score_gradients ? piece * matrix_bytes(p) : 0;
    };
    flaw = blocks_flaw(p, b, m, plan);
    if (flaw.empty()) flaw = regions_flaw(caps, plan, used);
    if (flaw.empty()) flaw = of_row_flaw(plan);
    return flaw.empty() ? barrier_flaw(plan) : flaw;
}

}  // namespace vkattn::test
