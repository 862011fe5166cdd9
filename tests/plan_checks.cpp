// All properties together, and those of a plan as a whole. plan_checks.hpp tells of them.
#include "plan_checks.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

#include "plan/matrix.hpp"
#include "plan_checks_decoding.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Dispatch;
using core::Pipeline;
using core::Plan;
using core::TileNumbers;

// The chosen kernel and those that were refused are all that there are, each refused with a reason.
std::string refusals_flaw(const Given& g) {
    if (g.combine != nullptr)
        return g.plan.kernel == "combine" && g.plan.refused.empty() ? "" : "not a combine";
    std::vector<std::string_view> names{g.plan.kernel};
    for (const core::Refusal& r : g.plan.refused) {
        if (r.reason.empty()) return r.kernel + " was refused without a reason";
        names.push_back(r.kernel);
    }
    static const std::vector<std::string> kernels = core::kernel_names();
    const bool backward = g.backward != nullptr;
    const auto is_one = [&](std::string_view name) {
        return !backward || name.find("rows") == std::string_view::npos;
    };
    const auto is_named_once = [&](std::string_view name) {
        return !is_one(name) || std::ranges::count(names, name) == 1;
    };
    const bool all = std::ranges::all_of(kernels, is_named_once) &&
                     std::ranges::count_if(kernels, is_one) == std::ssize(names);
    return all ? "" : "chosen and refused are not all kernels";
}

// Just the pipelines that a tuning row is for may have the row rejected.
std::string of_row_flaw(const Given& g) {
    for (const Pipeline& p : g.plan.pipelines) {
        // The portable kernel for dbias has a row of its own where the other gradients are found on matrix units.
        const bool other_row =
            kind_of(p) == Kind::dbias && g.plan.kernel.starts_with("matrix") && !on_matrices(p);
        const bool own = kind_of(p) == Kind::forward || (walks(kind_of(p)) && !other_row);
        if (p.of_tuning_row != own)
            return fmt::format("{} may have the row rejected: {}", name_of(p), p.of_tuning_row);
    }
    return "";
}

// What products are rounded to: nothing in the portable kernels, the storage type or options.precision in the others.
std::string operands_flaw(const Given& g) {
    if (g.combine != nullptr) return "";
    const VkattnDtype asked = g.options.precision == VKATTN_PRECISION_FLOAT16    ? VKATTN_DTYPE_FLOAT16
                              : g.options.precision == VKATTN_PRECISION_BFLOAT16 ? VKATTN_DTYPE_BFLOAT16
                                                                                 : g.p.dtype;
    const bool matrix = g.plan.kernel.starts_with("matrix"), dot = g.plan.kernel.ends_with("_dot");
    const VkattnDtype wanted = matrix ? asked : dot ? g.p.dtype : VKATTN_DTYPE_FLOAT32;
    if (g.plan.operands != wanted) return fmt::format("operands of {}", core::name_of(g.plan.operands));
    return (matrix || dot) && wanted == VKATTN_DTYPE_FLOAT32 ? "rounded float32" : "";
}

// Spilled dS has 16 bits, and is the gradient of scores before a softcap. An element of the mask must belong to one row
// and one key, and have no factor.
bool is_sum_of_spilled(const Given& g) {
    return g.p.dtype != VKATTN_DTYPE_FLOAT32 && g.p.softcap == 0 && slopes_kind(g.p) != SLOPES_MASK &&
           g.p.block_map == 0 && bias_extents(g)[2] == g.p.seqlen_q && bias_extents(g)[3] > 1;
}

std::set<std::string> names_in(const std::string& text) {
    std::set<std::string> names;
    for (const auto& [name, value] : values_in(text)) names.insert(name);
    return names;
}

// The tuning's text has all numbers of its kind of row, the tiles are what the first pipeline of the row has, and
// kernels for CPUs are rolled.
std::string tuning_flaw(const Given& g) {
    const auto& tuning = g.tuning();
    if (g.options.tuning.empty() && (tuning.at("rolled") != 0) != (g.caps.type == core::DeviceType::cpu))
        return "the module of another type of device";
    if (!g.plan.kernel.starts_with("matrix")) return tiles_flaw(g);
    static const std::set<std::string> of_backward = names_in(
                                           core::to_text(core::backward_matrix_rows().front().numbers)),
                                       of_forward =
                                           names_in(core::to_text(core::matrix_rows().front().numbers));
    const std::set<std::string>& all = g.backward != nullptr ? of_backward : of_forward;
    if (!std::ranges::equal(tuning, all, {},
                            [](const auto& number) -> const std::string& { return number.first; }))
        return "tuning: not all numbers, or more";
    const std::pair<const char*, uint32_t> most[] = {{"rolled", 1},   {"turned", 1},    {"running", 1},
                                                     {"kv_apart", 1}, {"kv_paired", 2}, {"spill", 2}};
    for (const auto& [name, value] : most)
        if (const auto found = tuning.find(name); found != tuning.end() && found->second > value)
            return fmt::format("tuning: {} is more than {}", name, value);
    const core::Tiles& tiles = g.plan.tiles;
    uint64_t gradients = 0;
    for (const Pipeline& pipeline : g.plan.pipelines) {
        const Kind kind = kind_of(pipeline);
        if (kind == Kind::dkey_dvalue) {
            gradients += constant(pipeline, "gradients");
            if ((constant(pipeline, "gradients") != 3) != (tuning.at("kv_apart") != 0)) return "passes apart";
        }
        if (kind == Kind::dbias && on_matrices(pipeline) == (mask_extents(g.p)[3] == 1 || g.p.block_map != 0))
            return "the other kernel for dbias";
        if (kind == Kind::spilled_bias && !is_sum_of_spilled(g))
            return "dbias is no sum of dS that is spilled";
        if (kind == Kind::spilled && tuning.at("spill") == 0) return "spilled, though nobody wants that";
        if (kind != Kind::forward && kind != Kind::dquery) continue;
        const Tile tile = tile_of(pipeline);
        if (!on_matrices(pipeline) || tiles.tile_q != tile.q || tiles.tile_kv != tile.kv ||
            tiles.threads != constant(pipeline, "threads") ||
            tiles.shared_bytes != 16 * constant(pipeline, "pool_vec4"))
            return "tiles against constants";
    }
    return g.backward == nullptr || gradients == (g.has_keys() ? 3 : 0)
               ? ""
               : "dkey and dvalue are not found once";
}

// What the checks of single pipelines find.
std::string each_flaw(const Given& g) {
    for (const Pipeline& pipeline : g.plan.pipelines) {
        std::string flaw = module_flaw(g, pipeline);
        if (flaw.empty()) flaw = workgroup_flaw(g, pipeline);
        if (flaw.empty()) flaw = touches_flaw(g, pipeline);  // constants go by the arrays that are given
        if (flaw.empty() && on_matrices(pipeline)) flaw = matrix_flaw(g, pipeline);
        if (flaw.empty()) flaw = choices_flaw(g, pipeline);
        if (flaw.empty()) flaw = constants_flaw(g, pipeline);
        if (flaw.empty()) flaw = nonfinite_flaw(g, pipeline);
        if (flaw.empty()) flaw = words_flaw(g, pipeline);
        if (!flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
    }
    return "";
}

bool has_work(const Given& g) {
    if (g.combine != nullptr)
        return uint64_t{g.combine->batch} * g.combine->num_heads * g.combine->seqlen_q != 0;
    const auto bias = bias_extents(g);
    return g.rows() != 0 || (g.backward != nullptr && (g.has_keys() || g.backward->dsinks != 0 ||
                                                       std::count(bias.begin(), bias.end(), 0u) == 0));
}

// `is_rest`: dispatches that decode stood before these, so that decoding_flaw() has checked the barriers.
std::string all_flaws(const Given& g, bool is_rest) {
    const Plan& plan = g.plan;
    if (core::max_push_bytes > g.caps.max_push_constant_bytes)
        return "more push constants than the device has";
    if (plan.combine.has_value() != (g.combine != nullptr) ||
        plan.backward.has_value() != (g.backward != nullptr))
        return "a plan of something else";
    std::string flaw = operands_flaw(g);
    if (flaw.empty()) flaw = refusals_flaw(g);
    if (flaw.empty()) flaw = caller_arrays_flaw(g);
    if (!flaw.empty()) return flaw;
    if (!has_work(g))
        return plan.dispatches.empty() && plan.pipelines.empty() && plan.scratch.empty() &&
                       plan.scratch_bytes == 0 && plan.arguments.empty() && plan.argument_patches.empty() &&
                       plan.num_splits <= 1
                   ? ""
                   : "work or scratch, though there is nothing to write";
    // The later checks divide by numbers that the first have found to be sound.
    flaw = pipelines_flaw(plan, plan.kernel == "materialized");
    if (flaw.empty() && g.combine == nullptr) flaw = tuning_flaw(g);
    if (flaw.empty()) flaw = each_flaw(g);
    if (flaw.empty()) flaw = coverage_flaw(g);
    if (flaw.empty()) flaw = flow_flaw(g);
    if (flaw.empty()) flaw = cost_flaw(g);
    if (flaw.empty() && g.combine == nullptr) flaw = arguments_flaw(g);
    if (flaw.empty()) flaw = scratch_flaw(g);
    if (flaw.empty() && !is_rest) flaw = barrier_flaw(plan);
    if (flaw.empty()) flaw = of_row_flaw(g);
    return flaw;
}

// A plan that nobody can read has a flaw, too.
std::string flaw_of(const Given& g) {
    try {
        const auto rest = behind_decoding(g);
        if (!rest) return all_flaws(g, false);
        const std::string flaw = decoding_flaw(g);
        return flaw.empty() ? all_flaws({g.caps, rest->p, nullptr, nullptr, rest->plan, g.options}, true)
                            : flaw;
    } catch (const std::exception& why) {
        return why.what();
    }
}

}  // namespace

// The workgroup within the device's limits. Some have a size of their own, which the row's numbers have no say in.
std::string workgroup_flaw(const Given& g, const Pipeline& pipeline) {
    const core::DeviceCaps& caps = g.caps;
    const uint32_t threads = constant(pipeline, "threads");
    if (threads == 0 || threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("{} invocations", threads);
    if (has_constant(pipeline, "pool_vec4") && constant(pipeline, "pool_vec4") > caps.max_shared_bytes / 16)
        return fmt::format("{} vec4 of shared memory", constant(pipeline, "pool_vec4"));
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::spilled_bias) {  // it has no pool, but a tile in float32 with a column more
        const uint64_t rows = divisor(pipeline, "step_rows");
        if (uint64_t{threads} * 8 % (rows * divisor(pipeline, "matrix_m")) != 0 ||
            rows % divisor(pipeline, "matrix_k") != 0)
            return "a tile of dbias cuts a spilled matrix";
        return (uint64_t{threads} * 8 + rows) * 4 > caps.max_shared_bytes ? "shared memory" : "";
    }
    if (kind != Kind::delta && kind != Kind::classes) {
        if (!pipeline.of_tuning_row && kind == Kind::dbias) {
            // Slices of the other passes, which its pool has room for, do not show in its constants.
            const auto of = [&](const char* name) { return constant(pipeline, name); };
            const TileNumbers n{of("threads"),
                                of("lanes"),
                                of("rows"),
                                of("cols"),
                                of("chunk"),
                                of("p_blocks"),
                                of("v_keys"),
                                of("prefetch"),
                                of("unroll"),
                                1,
                                1,
                                pipeline.module.has(core::macros::ROLLED)};
            return numbers_flaw(n, true);
        }
        return "";
    }
    // A tuning's number is as it is.
    const bool own = kind == Kind::delta || number_of(g.tuning(), pipeline, "threads") == nullptr;
    if (own && !std::has_single_bit(threads)) return "invocations that leave a part of a subgroup idle";
    if (kind == Kind::classes) return "";
    const uint64_t lanes = divisor(pipeline, "lanes");
    if (threads % lanes != 0) return fmt::format("{} lanes of {}", lanes, threads);
    if (lanes > 1 && 4 * lanes >= 2 * round_up(g.p.head_dim_v, 4)) return "lanes without work";
    return (2 * threads + 1) * 16 > caps.max_shared_bytes ? "shared memory" : "";
}

// The numbers of the portable kernels, and the tiles and shared memory that they come to.
std::string tiles_flaw(const Given& g) {
    const TileNumbers n = parse_numbers(g.plan.tuning);
    const bool dot = g.plan.kernel.ends_with("_dot"),
               passes = g.backward != nullptr && g.plan.kernel != "materialized";
    if (const std::string flaw = numbers_flaw(n, passes, dot); !flaw.empty()) return "tuning: " + flaw;
    const core::Tiles& t = g.plan.tiles;
    if (t.threads != n.threads || t.tile_q != n.tile_q() || t.tile_kv != n.tile_kv())
        return "tiles against tuning";
    if (g.plan.kernel.starts_with("rows") != n.of_rows_kernel()) return "numbers of another kernel";
    for (const Pipeline& pipeline : g.plan.pipelines)
        if (kind_of(pipeline) == Kind::forward && has_constant(pipeline, "cols") == n.of_rows_kernel())
            return fmt::format("{} with numbers of another kernel", name_of(pipeline));
    // Products of the baseline's backward have rows of either head dim.
    const uint32_t widest =
        g.backward != nullptr ? std::max(g.p.head_dim_qk, g.p.head_dim_v) : g.p.head_dim_v;
    const uint32_t pool = passes ? pool_of_backward_maps(n, g.p.head_dim_qk, g.p.head_dim_v, dot)
                                 : pool_of_maps(n, widest, dot);
    return t.shared_bytes == 16 * pool
               ? ""
               : fmt::format("{} shared bytes, the maps come to {}", t.shared_bytes, 16 * pool);
}

std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& p, const Plan& plan,
                    const core::Options& options) {
    return flaw_of(Given{caps, p, nullptr, nullptr, plan, options});
}

std::string flaw_of(const core::DeviceCaps& caps, const core::Problem& p, const core::Backward& backward,
                    const Plan& plan, const core::Options& options) {
    return flaw_of(Given{caps, p, &backward, nullptr, plan, options});
}

std::string flaw_of(const core::DeviceCaps& caps, const core::Combine& combine, const Plan& plan) {
    return flaw_of(Given{caps, plan.problem, nullptr, &combine, plan, {}});
}

uint64_t matrix_bytes(const core::Problem& p) {
    return std::max<uint64_t>(16, p.seqlen_q * round_up(p.seqlen_kv, 4) * 4);
}

std::string difference(const Plan& a, const Plan& b) {
    if (a.kernel != b.kernel) return "kernel " + a.kernel + " / " + b.kernel;
    if (a.tuning_row != b.tuning_row) return "row " + a.tuning_row + " / " + b.tuning_row;
    if (a.tuning != b.tuning) return "tuning " + a.tuning + " / " + b.tuning;
    if (a.tiles != b.tiles) return "tiles";
    if (a.num_splits != b.num_splits) return "num_splits";
    if (a.pipelines != b.pipelines) return "pipelines";
    if (a.dispatches != b.dispatches) return "dispatches";
    if (a.arguments != b.arguments || a.argument_patches != b.argument_patches) return "arguments";
    if (a.scratch_bytes != b.scratch_bytes || a.scratch != b.scratch) return "scratch";
    if (a.refused != b.refused) return "refused";
    if (a.caller_arrays != b.caller_arrays) return "arrays of the caller";
    return "";
}

}  // namespace vkattn::test
