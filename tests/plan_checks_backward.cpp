// What must hold of a plan of vkattn_backward_create.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_backward_model.hpp"
#include "plan_checks.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Backward;
using core::bit;
using core::DeviceCaps;
using core::Dispatch;
using core::Pipeline;
using core::Plan;
using core::Problem;
using core::Region;
using Arguments = shared::BackwardArguments;

const VkattnStrides& strides_of(const Backward& b, int tensor) {
    const VkattnStrides* const all[] = {&b.dout_strides, &b.dquery_strides, &b.dkey_strides,
                                        &b.dvalue_strides};
    return *all[tensor];
}

std::string rows_flaw(const Problem& p, const Backward& b, const BackwardModel& m, const Pipeline& pipeline) {
    if (m.on_matrices) return "";  // backward_matrix_flaw
    const core::TileNumbers& n = m.of_tiles.n;
    if (constant(pipeline, "packed_heads") != 0) return "packed";
    const uint32_t far = constant(pipeline, "far_rows");
    if (far > 1) return "not a boolean";
    const uint64_t rows = kind_of(pipeline) == Kind::delta
                              ? constant(pipeline, "threads") / constant(pipeline, "lanes")
                              : n.tile_q();
    if (far == 0 && far_rows(p, b, rows, n.tile_kv(), 0)) return "far_rows is needed";
    if (far != 0 && !far_rows(p, b, std::max(64u, n.tile_q()), n.tile_kv(), 2)) return "far_rows is needless";
    return "";
}

std::string pipeline_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b, const BackwardModel& m,
                          const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    if (auto flaw = module_flaw(caps, p.dtype, pipeline.module); !flaw.empty()) return flaw;
    if (kind != Kind::classes && !of_backward(kind))
        return fmt::format("{} in a plan of the backward", name_of(pipeline));
    if (kind == Kind::delta)
        if (auto flaw = delta_workgroup_flaw(caps, p, pipeline); !flaw.empty()) return flaw;
    const std::string rows =
        kind == Kind::classes ? choices_flaw(p, m.of_tiles, pipeline) : rows_flaw(p, b, m, pipeline);
    if (!rows.empty()) return fmt::format("{}: {}", name_of(pipeline), rows);
    Values expected = expected_constants(p, m.of_tiles, pipeline);
    if (kind == Kind::delta) {
        for (const char* own : {"threads", "lanes"}) expected[own] = constant(pipeline, own);
        expected["dout_type"] = 0;  // nothing is rounded
    }
    expected["has_dlse"] = b.dlse != 0;
    // Only these passes can be cut. Whether they are: coverage_flaw.
    if (kind == Kind::dquery || kind == Kind::dkey_dvalue) expected["is_resumed"] = is_cut(pipeline);
    if (auto flaw = form_flaw(pipeline, m.of_tiles.n.rolled); !flaw.empty()) return flaw;
    return constants_flaw(pipeline, expected);
}

std::string workgroups_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b,
                            const BackwardModel& m, const Plan& plan) {
    if (m.on_matrices) return backward_matrix_flaw(caps, p, b, plan);
    const core::TileNumbers n = parse_numbers(plan.tuning);
    const bool dot = plan.kernel.ends_with("_dot");
    if (auto flaw = numbers_flaw(n, true, dot); !flaw.empty()) return "tuning: " + flaw;
    const core::Tiles& t = plan.tiles;
    if (t.threads != n.threads || t.tile_q != n.tile_q() || t.tile_kv != n.tile_kv())
        return "tiles against tuning";
    if (t.threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("{} invocations", t.threads);
    if (t.shared_bytes > caps.max_shared_bytes)
        return fmt::format("{} bytes of shared memory", t.shared_bytes);
    if (const uint32_t bytes = pool_of_backward_maps(n, p.head_dim_qk, p.head_dim_v, dot) * 16;
        bytes != t.shared_bytes)
        return fmt::format("{} shared bytes, the maps come to {}", t.shared_bytes, bytes);
    for (const Pipeline& pipeline : plan.pipelines) {
        if (auto flaw = pipeline_flaw(caps, p, b, m, pipeline); !flaw.empty()) return flaw;
        if (facts_of(pipeline.module).dot != (dot && recomputes(kind_of(pipeline))))
            return fmt::format("{} of {}", name_of(pipeline), plan.kernel);
    }
    return "";
}

// The boxes of a pass, and how far the spans of each have come. Spans of a box go in order, from the first step to the
// last, since each continues what the one before left in scratch.
class Boxes {
  public:
    std::string add(const Dispatch& d, const std::optional<Steps>& span, uint64_t steps) {
        const Triple begin = begin_of(d), count = groups_of(d);
        if (!span) {
            if (d.cut.first_step != 0 || d.cut.end_step != 0) return "a span where none is";
            cover_.add(begin, count);
            return "";
        }
        if (count[2] != 1) return "cut loops of slices at a time: they share the sums of P";
        auto [box, is_new] = open_.try_emplace(begin, Open{count, 0});
        if (box->second.count != count) return "spans of different boxes";
        if (span->begin != box->second.next || span->end <= span->begin)
            return fmt::format("a span {} .. {}, after {}", span->begin, span->end, box->second.next);
        if (span->end > steps) return fmt::format("a span to {}, of {} steps", span->end, steps);
        box->second.next = span->end;
        if (span->end >= steps) {
            cover_.add(begin, count);
            open_.erase(box);
        }
        return "";
    }
    bool covers(const Triple& grid) const { return open_.empty() && cover_.is({0, 0, 0}, grid); }

  private:
    struct Open {
        Triple count;
        uint64_t next;
    };
    std::map<Triple, Open> open_;
    Cover cover_;
};

// Every workgroup exactly once and, where loops are cut, each with all its steps.
std::string coverage_flaw(const DeviceCaps& caps, const Problem& p, const BackwardModel& m,
                          const Plan& plan) {
    const std::vector<Dispatch>& all = plan.dispatches;
    size_t at = 0;
    for (const Kind kind : kinds_of(m)) {
        if (at == all.size() || kind_of(plan, all[at]) != kind) return "a pass is missing, or out of turn";
        const Dispatch& first = all[at];
        const Pipeline& pipeline = pipeline_of(plan, first);
        const Triple grid = kind == Kind::classes ? Triple{} : grid_of(p, m, pipeline);
        Boxes boxes;
        for (; at < all.size() && all[at].pipeline == first.pipeline; at++) {
            const Dispatch& d = all[at];
            if (auto flaw = groups_flaw(caps, d); !flaw.empty()) return flaw;
            if (kind == Kind::classes) {
                if (auto flaw = classes_flaw(p, m.of_tiles, d); !flaw.empty() || &d != &first)
                    return "classes: " + flaw;
                continue;
            }
            for (size_t i = 0; i < 3; i++)
                if (begin_of(d)[i] + d.groups[i] > grid[i])
                    return fmt::format("{}: workgroups {} .. {} of {} in dimension {}", name_of(pipeline),
                                       begin_of(d)[i], begin_of(d)[i] + d.groups[i], grid[i], i);
            if (auto flaw = boxes.add(d, span_of(plan, d), recomputes(kind) ? steps_of(p, m, pipeline) : 1);
                !flaw.empty())
                return fmt::format("{}: {}", name_of(pipeline), flaw);
        }
        if (kind != Kind::classes && !boxes.covers(grid))
            return fmt::format("{}: not every workgroup and step exactly once", name_of(pipeline));
    }
    return at == all.size() ? "" : "dispatches without work";
}

// A few workgroups of each dispatch against what it says that each costs.
std::string costs_flaw(const Problem& p, const BackwardModel& m, const Plan& plan,
                       const core::Options& options) {
    for (const Dispatch& d : plan.dispatches) {
        const uint64_t limit = options.max_dispatch_flops;
        const Pipeline& pipeline = pipeline_of(plan, d);
        const Kind kind = kind_of(pipeline);
        if (limit != 0 && d.flops > limit)
            return fmt::format("{} costs {}, the limit is {}", name_of(pipeline), d.flops, limit);
        if (kind == Kind::classes && d.flops < least_cost_of_classes(p, m.of_tiles, d))
            return "classes cost more";
        if (kind == Kind::classes) continue;
        const double each = double(d.flops) / (double(d.groups[0]) * d.groups[1] * d.groups[2]);
        const Triple begin = begin_of(d);
        const auto some = [](uint32_t of) {
            return of == 1 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{0, of / 2, of - 1};
        };
        for (const uint32_t y : some(d.groups[1]))
            for (const uint32_t z : some(d.groups[2])) {
                const uint64_t steps =
                    steps_done(p, m, pipeline, {begin[0], begin[1] + y, begin[2] + z}, span_of(plan, d));
                const double cost = cost_of_step(p, m, pipeline);
                if (double(steps) * cost > each * (1 + 1e-9))
                    return fmt::format("{}: {} steps of {}, the dispatch says {}", name_of(pipeline), steps,
                                       cost, each);
            }
    }
    return "";
}

Touches touches_of(const Problem& p, const Backward& b, const BackwardModel& m, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    const uint32_t of_batch = given_arrays(p);
    const uint32_t dlse = b.dlse != 0 ? bit(Region::dlse) : 0;
    Touches t(pipeline);
    t.reads_arguments();
    if (kind == Kind::classes) {
        t.reads |= bit(Region::mask);
        t.may_read = of_batch;
        t.writes_at("classes", Region::mask_classes);
        return t;
    }
    t.reads |= bit(Region::dout);
    if (kind == Kind::delta) {
        t.reads_at("out_rows", Region::out);
        t.reads |= bit(Region::lse) | dlse;
        t.may_read = of_batch;
        t.writes = bit(Region::statistics);
        return t;
    }
    t.reads_at("query", Region::query);
    t.reads_at("key", Region::key);
    t.reads_at("value", Region::value);
    t.reads |= (m.rows != 0 ? bit(Region::statistics) : 0) | of_batch;
    if (p.mask != VKATTN_MASK_NONE) t.reads |= bit(Region::mask);
    if (m.of_tiles.classified) t.reads |= bit(Region::mask_classes);
    if (kind == Kind::dquery) t.writes = bit(Region::dquery) | bit(Region::statistics);
    if (kind == Kind::dkey_dvalue) {
        const uint32_t gradients = m.on_matrices ? constant(pipeline, "gradients") : 3;
        t.writes = (gradients & 1 ? bit(Region::dvalue) : 0) | (gradients & 2 ? bit(Region::dkey) : 0);
    }
    if (kind == Kind::dbias) {
        if (!facts_of(pipeline.module).matrix_kernel) t.reads |= bit(Region::lse) | dlse;
        t.writes = bit(Region::dbias);
    }
    if (is_cut(pipeline)) {
        t.reads |= bit(Region::accumulators);
        t.writes |= bit(Region::accumulators);
    }
    return t;
}

std::string pushes_flaw(const Problem& p, const Backward& b, const BackwardModel& m, const Plan& plan) {
    for (const Pipeline& pipeline : plan.pipelines) {
        const Kind kind = kind_of(pipeline);
        Words words = words_of(p, pipeline);
        if (kind == Kind::dquery || kind == Kind::dkey_dvalue)
            words["num_steps"] = {
                static_cast<uint32_t>(std::min<uint64_t>(steps_of(p, m, pipeline), UINT32_MAX))};
        // The gradient of the mask is never cut, so its shader does not read this.
        if (kind == Kind::dbias)
            words["num_steps"] = {facts_of(pipeline.module).matrix_kernel
                                      ? push_of<core::kernels::backward_matrix_mask>(pipeline).num_steps
                                      : push_of<core::kernels::backward_mask>(pipeline).num_steps};
        for (const auto& flaw :
             {words_flaw(pipeline, words), touches_flaw(touches_of(p, b, m, pipeline), pipeline)})
            if (!flaw.empty()) return flaw;
    }
    return "";
}

std::string block_flaw(const Problem& p, const Backward& b, const BackwardModel& m, const Plan& plan) {
    if (plan.arguments.size() != sizeof(Arguments)) return "argument block";
    return backward_arguments_flaw(p, b, m.of_tiles, plan.arguments);
}

std::string block_patches_flaw(const Problem& p, const Backward& b, const BackwardModel& m,
                               const Plan& plan) {
    std::vector<core::Patch> expected = argument_patches(p, m.of_tiles);
    const auto add = [&](bool wanted, size_t at, Region region) {
        if (wanted) expected.push_back({static_cast<uint32_t>(at), region});
    };
    add(true, offsetof(Arguments, dout), Region::dout);
    add(true, offsetof(Arguments, lse), Region::lse);
    add(b.dlse != 0, offsetof(Arguments, dlse), Region::dlse);
    add(true, offsetof(Arguments, dquery), Region::dquery);
    add(true, offsetof(Arguments, dkey), Region::dkey);
    add(true, offsetof(Arguments, dvalue), Region::dvalue);
    add(b.dbias != 0, offsetof(Arguments, dbias), Region::dbias);
    add(m.rows != 0, offsetof(Arguments, statistics), Region::statistics);
    add(is_cut(plan), offsetof(Arguments, accumulators), Region::accumulators);
    const std::string flaw = patch_flaw(plan.argument_patches, expected);
    return flaw.empty() ? "" : "argument block: " + flaw;
}

// Passes follow each other, so that they share the scratch for accumulators.
uint64_t kept_bytes(const Problem& p, const BackwardModel& m, const Plan& plan) {
    uint64_t most = 0;
    for (const Pipeline& pipeline : plan.pipelines)
        if (is_cut(pipeline)) most = std::max(most, kept_bytes(p, m, pipeline));
    return most;
}

// The formula that vkattn.h gives: linear in the sequences.
std::string scratch_formula_flaw(const Problem& p, const BackwardModel& m, const Plan& plan) {
    const uint64_t classes = m.of_tiles.classified
                                 ? 4 * masks_of(p, m.of_tiles) * m.of_tiles.query_tiles * m.of_tiles.key_tiles
                                 : 0;
    const uint64_t most = round_up(376, 256) + round_up(16 * m.rows, 256) + round_up(classes, 256) +
                          round_up(kept_bytes(p, m, plan), 256);
    if (plan.scratch_bytes != most)
        return fmt::format("{} bytes of scratch, the formula gives {}", plan.scratch_bytes, most);
    return classes > uint64_t{256} << 20 ? "more classes than 256 MiB" : "";
}

std::string memory_flaw(const DeviceCaps& caps, const Problem& p, const BackwardModel& m, const Plan& plan) {
    const auto used = [&](Region region) -> uint64_t {
        if (region == Region::arguments) return sizeof(Arguments);
        if (region == Region::statistics) return m.rows * 4 * sizeof(float);
        if (region == Region::mask_classes)
            return masks_of(p, m.of_tiles) * m.of_tiles.query_tiles * m.of_tiles.key_tiles * 4;
        return region == Region::accumulators ? kept_bytes(p, m, plan) : 0;
    };
    if (auto flaw = regions_flaw(caps, plan, used); !flaw.empty()) return flaw;
    return scratch_formula_flaw(p, m, plan);
}

}  // namespace

bool far_rows(const Problem& p, const Backward& b, uint64_t tile_q, uint64_t tile_kv, uint64_t slack) {
    const bool exact = slack == 0;
    const uint64_t queries = (exact ? std::min<uint64_t>(p.seqlen_q, tile_q) : tile_q) + slack,
                   keys = (exact ? std::min<uint64_t>(p.seqlen_kv, tile_kv) : tile_kv) + slack;
    const auto far = [&](uint64_t rows, const VkattnStrides& s) {
        return rows != 0 && far_apart(p, rows, s.seq, 1, 0, exact ? 1 : VKATTN_MAX_HEAD_DIM);
    };
    if (p.mask != VKATTN_MASK_NONE && queries != 0 &&
        far_apart(p, queries, mask_strides(p)[2] + (exact ? 0 : p.seqlen_kv), 1, 0, mask_extents(p)[3]))
        return true;
    return far(queries, p.query_strides) || far(queries, p.out_strides) || far(keys, p.key_strides) ||
           far(keys, p.value_strides) || far(queries, b.dout_strides) || far(queries, b.dquery_strides) ||
           far(keys, b.dkey_strides) || far(keys, b.dvalue_strides);
}

std::string delta_workgroup_flaw(const DeviceCaps& caps, const Problem& p, const Pipeline& pipeline) {
    const uint32_t threads = constant(pipeline, "threads"), lanes = constant(pipeline, "lanes");
    if (threads == 0 || threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("delta: {} invocations", threads);
    if (!std::has_single_bit(threads)) return "delta: invocations that leave a part of a subgroup idle";
    if (lanes == 0 || threads % lanes != 0) return fmt::format("delta: {} lanes of {}", lanes, threads);
    if (lanes > 1 && 4 * lanes >= 2 * round_up(p.head_dim_v, 4)) return "delta: lanes without work";
    if ((2 * threads + 1) * 16 > caps.max_shared_bytes) return "delta: shared memory";
    return "";
}

std::string backward_arguments_flaw(const Problem& p, const Backward& b, const Model& m,
                                    const std::vector<std::byte>& block) {
    Arguments a;
    std::memcpy(&a, block.data(), sizeof a);
    if (auto flaw = arguments_flaw(p, m, a.forward); !flaw.empty()) return flaw;
    const uint64_t bytes = p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    for (int t = 0; t < 4; t++) {
        const VkattnStrides& s = strides_of(b, t);
        if (a.stride[3 * t] != s.batch * bytes || a.stride[3 * t + 1] != s.head * bytes ||
            a.stride[3 * t + 2] != s.seq * bytes)
            return fmt::format("strides of gradient {}", t);
    }
    if ((a.dout | a.lse | a.dlse | a.dquery | a.dkey | a.dvalue | a.dbias | a.statistics | a.accumulators |
         a.padding) != 0)
        return "an address in the argument block";
    if (a.scale != p.softmax_scale || a.batch != p.batch) return "scale or batch";
    const auto bias = b.dbias != 0 ? mask_extents(p) : std::array<uint64_t, 4>{};
    if (a.dbias_batches != bias[0] || a.dbias_heads != bias[1] || a.dbias_queries != bias[2] ||
        a.dbias_keys != bias[3])
        return "extents of dbias";
    return "";
}

uint32_t pool_of_backward_maps(const core::TileNumbers& n, uint32_t head_dim_qk, uint32_t head_dim_v,
                               bool dot) {
    const auto odd = [](uint32_t x) { return x | 1; };
    const auto row = [](uint32_t head_dim, uint32_t lanes, uint32_t slices) {  // of a slice
        return static_cast<uint32_t>(round_up(head_dim, 4 * lanes * slices)) / 4 / slices;
    };
    const uint32_t q_vecs = odd(n.tile_q() / 4), k_vecs = odd(n.tile_kv() / 4);
    const uint32_t line = dot ? 2 : 1;  // elements side by side
    const uint32_t scores = n.chunk / line * (q_vecs + k_vecs);
    const uint32_t sums_of_rows = n.threads * (n.rows / 4), sums_of_columns = n.threads * (n.cols / 4);
    // backward_query: dS, then keys.
    const uint32_t query =
        (4 * n.p_blocks * n.lanes * q_vecs + n.v_keys * row(head_dim_qk, n.lanes, n.q_slices)) / line;
    // backward_key_value: P and dS of some rows, or pairs of rows, of every group, then dout and query.
    const uint32_t slots = n.threads / n.lanes * n.p_blocks, lanes = n.threads / (n.tile_kv() / n.rows);
    const uint32_t key_value =
        2 * slots * k_vecs + n.v_keys / line *
                                 (n.kv_slices == 1
                                      ? row(head_dim_v, lanes, 1) + row(head_dim_qk, lanes, 1)
                                      : row(std::max(head_dim_v, head_dim_qk), lanes, n.kv_slices / 2));
    const uint32_t sums_of_dlse = n.threads;
    // Statistics of the tile's rows stand behind them all.
    return std::max({scores, sums_of_rows, sums_of_columns, query, key_value, sums_of_dlse}) + n.tile_q();
}

std::string flaw_of(const DeviceCaps& caps, const Problem& p, const Backward& b, const Plan& plan,
                    const core::Options& options) {
    if (!plan.backward || plan.combine) return "not a plan of a backward";
    if (plan.num_splits != 1) return "parts of the keys";
    const bool matrix = plan.kernel == "matrix" || plan.kernel == "matrix_khr";
    const bool dot = plan.kernel == "tiles_dot";
    if (!matrix && plan.operands != (dot ? p.dtype : VKATTN_DTYPE_FLOAT32)) return "operands";
    if (dot && p.dtype == VKATTN_DTYPE_FLOAT32) return "rounded float32";
    if (auto flaw = refusals_flaw(plan, {"matrix", "matrix_khr", "tiles_dot", "tiles", "materialized"});
        !flaw.empty())
        return flaw;
    if (auto flaw = pipelines_flaw(plan, plan.kernel == "materialized"); !flaw.empty()) return flaw;
    if (auto flaw = nonfinite_flaw(caps, options, plan); !flaw.empty()) return flaw;
    if (auto flaw = caller_arrays_flaw(p, b, plan); !flaw.empty()) return flaw;
    if (plan.kernel == "materialized") return baseline_backward_flaw(caps, p, b, plan);
    if (plan.kernel != "tiles" && !dot && !matrix)
        return "plan_checks_backward.cpp does not know kernel " + plan.kernel;
    const BackwardModel m = model_of(p, b, plan);
    if (kinds_of(m).empty()) {
        const bool nothing = plan.dispatches.empty() && plan.pipelines.empty() && plan.scratch_bytes == 0 &&
                             plan.scratch.empty() && plan.arguments.empty() && plan.argument_patches.empty();
        return nothing ? "" : "work or scratch, though there is nothing to write";
    }
    // The later checks divide by numbers that the first has found to be sound.
    std::string flaw = workgroups_flaw(caps, p, b, m, plan);
    if (flaw.empty()) flaw = coverage_flaw(caps, p, m, plan);
    if (flaw.empty()) flaw = costs_flaw(p, m, plan, options);
    if (flaw.empty()) flaw = pushes_flaw(p, b, m, plan);
    if (flaw.empty()) flaw = block_flaw(p, b, m, plan);
    if (flaw.empty()) flaw = block_patches_flaw(p, b, m, plan);
    if (flaw.empty()) flaw = memory_flaw(caps, p, m, plan);
    if (flaw.empty()) flaw = of_row_flaw(plan);
    if (flaw.empty()) flaw = barrier_flaw(plan);
    return flaw;
}

}  // namespace vkattn::test
