#include "plan_checks.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_model.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::DeviceCaps;
using core::Dispatch;
using core::Pipeline;
using core::Plan;
using core::Problem;
using core::TileNumbers;

struct Number {
    const char* name;
    uint32_t TileNumbers::*at;
};

constexpr Number all_numbers[] = {
    {"threads", &TileNumbers::threads},   {"lanes", &TileNumbers::lanes},
    {"rows", &TileNumbers::rows},         {"cols", &TileNumbers::cols},
    {"chunk", &TileNumbers::chunk},       {"p_blocks", &TileNumbers::p_blocks},
    {"v_keys", &TileNumbers::v_keys},     {"prefetch", &TileNumbers::prefetch},
    {"unroll", &TileNumbers::unroll},     {"rolled", &TileNumbers::rolled},
    {"q_slices", &TileNumbers::q_slices}, {"kv_slices", &TileNumbers::kv_slices},
};
static_assert(sizeof(TileNumbers) == sizeof(uint32_t) * std::size(all_numbers), "a number is missing above");

}  // namespace

bool far_apart(const Problem& p, uint64_t rows, uint64_t stride, uint64_t heads, uint64_t head_stride,
               uint64_t inner) {
    const uint64_t limit = (uint64_t{1} << 31) / p.element_bytes;
    if (rows > 1 && stride > limit) return true;
    if (heads > 1 && head_stride > limit) return true;
    return (rows - 1) * stride + (heads - 1) * head_stride + inner > limit;
}

namespace {

// The same with `slack` rows more than a tile has: 0 for what the shaders really address.
bool far_rows(const Problem& p, const Model& m, bool pack, uint64_t slack) {
    const uint64_t group = pack ? p.group_size : 1;
    // Packed: a tile that does not begin with a query's first head ends within one query more.
    const uint64_t all = (m.tile_q + 2 * (group - 1)) / group;
    const uint64_t queries = (slack != 0 ? all : std::min<uint64_t>(p.seqlen_q, all)) + slack;
    const uint64_t keys = (slack != 0 ? m.tile_kv : std::min(p.seqlen_kv, m.tile_kv)) + slack;
    const auto far = [&](uint64_t rows, const VkattnStrides& s, uint64_t heads) {
        return rows != 0 && far_apart(p, rows, s.seq, heads, s.head, slack != 0 ? VKATTN_MAX_HEAD_DIM : 1);
    };
    const auto mask = mask_strides(p);
    const bool far_mask =
        p.mask != VKATTN_MASK_NONE &&
        far_apart(p, queries, mask[2] + (slack != 0 ? p.seqlen_kv : 0), group, mask[1], mask_extents(p)[3]);
    return far(queries, p.query_strides, group) || far(queries, p.out_strides, group) ||
           far(keys, p.key_strides, 1) || far(keys, p.value_strides, 1) || far_mask;
}

}  // namespace

Values expected_constants(const Problem& p, const Model& m, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    Values values = problem_constants(p, m);
    for (const Number& number : all_numbers) values[number.name] = m.n.*number.at;
    if (kind == Kind::dquery) values["slices"] = m.n.q_slices;
    if (kind == Kind::dkey_dvalue) values["slices"] = m.n.kv_slices;
    if (kind == Kind::forward) values["is_split"] = m.span != 0;
    if (of_backward(kind)) values["has_arguments"] = 1;
    values["tile_q"] = m.tile_q;  // of the classes
    values["tile_kv"] = m.tile_kv;
    for (const char* choice : {"packed_heads", "far_rows"}) values[choice] = constant(pipeline, choice);
    return values;
}

std::string choices_flaw(const Problem& p, const Model& m, const Pipeline& pipeline) {
    const uint32_t packed = constant(pipeline, "packed_heads"), far = constant(pipeline, "far_rows");
    if (packed > 1 || far > 1) return "not a boolean";
    if ((packed != 0) != (m.group != 1)) return "not all pipelines pack";
    if (packed != 0 && p.seqlen_q >= m.tile_q) return "packed, though a head fills tiles of its own";
    if (far == 0 && far_rows(p, m, packed != 0, 0)) return "far_rows is needed";
    if (far != 0 && !far_rows(p, m, packed != 0, 2)) return "far_rows is needless";
    return "";
}

std::string module_flaw(const DeviceCaps& caps, VkattnDtype dtype, core::Module module) {
    const ModuleFacts facts = facts_of(module);
    const uint32_t needs = core::info_of(module).needs;
    if (facts.dtype != dtype) return fmt::format("{} for {}", core::name_of(module), core::name_of(dtype));
    if ((needs & core::NEED_16BIT_STORAGE) != 0 && !caps.storage_16bit)
        return fmt::format("{} needs 16-bit storage", core::name_of(module));
    if ((needs & core::NEED_MATRIX) != 0 && caps.matrices.empty())
        return fmt::format("{} needs matrix units", core::name_of(module));
    if ((needs & core::NEED_DOT) != 0 &&
        !(dtype == VKATTN_DTYPE_FLOAT16 ? caps.dot_float16 : caps.dot_bfloat16))
        return fmt::format("{} needs 16-bit dot products", core::name_of(module));
    if (facts.packed_words && caps.storage_16bit)
        return fmt::format("{} where there is 16-bit storage", core::name_of(module));
    return "";
}

std::string refusals_flaw(const Plan& plan, const std::vector<std::string>& all) {
    std::multiset<std::string> names{plan.kernel};
    for (const core::Refusal& r : plan.refused) {
        if (r.reason.empty()) return r.kernel + " was refused without a reason";
        names.insert(r.kernel);
    }
    if (names != std::multiset<std::string>(all.begin(), all.end()))
        return "chosen and refused are not all kernels";
    return "";
}

namespace {

std::string rows_kernel_flaw(const TileNumbers& n) {
    if (n.threads == 0 || n.lanes == 0 || n.rows == 0 || n.unroll == 0) return "a number is 0";
    if (n.chunk != 0 || n.p_blocks != 0 || n.v_keys != 0) return "a number it does not have";
    if (n.prefetch + n.rolled > 1) return "prefetched in rolled loops";
    if (n.threads % n.lanes != 0) return "a group of lanes is not whole";
    if (n.rows % 4 != 0) return "not a multiple of 4";
    if (n.lanes % n.unroll != 0) return "loops do not unroll evenly";
    if (n.rolled > 1) return "rolled is not a boolean";
    if (n.tile_q() != n.rows || n.tile_kv() != n.threads) return "tiles";
    return "";
}

// backward_key_value.comp: other groups of invocations for the sums over query rows.
std::string sums_flaw(const TileNumbers& n, uint32_t line) {
    if (n.kv_slices > 1 && n.kv_slices % 2 != 0) return "dkey and dvalue have different numbers of slices";
    if (n.tile_kv() % n.rows != 0) return "keys do not divide into groups of rows";
    if (n.threads % (n.tile_kv() / n.rows) != 0) return "a group of key lanes is not whole";
    if (n.rows % (line * n.p_blocks) != 0) return "rows do not divide into blocks of P";
    if (line * (n.threads / n.lanes) * n.p_blocks % n.v_keys != 0)
        return "slots do not divide into stages of rows";
    return "";
}

}  // namespace

std::string numbers_flaw(const TileNumbers& n, bool backward, bool dot) {
    if (n.of_rows_kernel() && dot && n.unroll % 2 != 0) return "half a pair of keys";
    if (n.of_rows_kernel()) return backward ? "numbers of the kernel for few rows" : rows_kernel_flaw(n);
    for (const Number& number : all_numbers)
        if (number.at != &TileNumbers::prefetch && number.at != &TileNumbers::rolled && n.*number.at == 0)
            return std::string(number.name) + " is 0";
    if (n.threads % n.lanes != 0) return "a group of lanes is not whole";
    if (n.rows % 4 != 0 || n.cols % 4 != 0 || n.chunk % 4 != 0 || (n.v_keys % 4 != 0 && !backward))
        return "not a multiple of 4";
    if (n.cols % (4 * n.p_blocks) != 0) return "P does not divide into its blocks";
    if (4 * n.p_blocks * n.lanes % n.v_keys != 0) return "a block of P does not divide into stages of V";
    const uint32_t line = dot ? 2 : 1;
    if (n.v_keys % line != 0) return "half a pair of keys";
    for (const uint32_t steps :
         {n.chunk / line, n.v_keys / line})  // a loop shorter than unroll is unrolled whole
        if (n.unroll < steps && steps % n.unroll != 0) return "loops do not unroll evenly";
    if (n.prefetch > 1 || n.rolled > 1) return "not a boolean";
    if ((n.q_slices != 1 || n.kv_slices != 1) && !backward) return "slices of a forward";
    if (n.prefetch + n.rolled > 1) return "the module for CPUs does not prefetch";
    if (n.tile_q() != n.threads / n.lanes * n.rows || n.tile_kv() != n.lanes * n.cols) return "tiles";
    return backward ? sums_flaw(n, line) : "";
}

uint32_t pool_of_maps(const TileNumbers& n, uint32_t head_dim_v, bool dot) {
    uint32_t v_vecs = 0;  // lanes take turns, so a row of V is a whole number of vec4 for each
    while (v_vecs * 4 < head_dim_v) v_vecs += n.lanes;
    if (n.of_rows_kernel()) {
        const uint32_t keys = n.threads, row_vecs = n.rows / 4;
        const uint32_t parts = keys * (n.lanes + 1) * row_vecs, scores = keys * row_vecs, p = keys * row_vecs;
        return std::max(parts + scores + p, n.threads / n.lanes * v_vecs);
    }
    const auto odd = [](uint32_t x) { return x | 1; };
    const uint32_t q_vecs = n.threads / n.lanes * n.rows / 4, k_vecs = n.lanes * n.cols / 4;
    const uint32_t p_keys = 4 * n.p_blocks * n.lanes;
    const uint32_t line = dot ? 2 : 1;  // elements side by side
    const uint32_t scores = (n.chunk * odd(q_vecs) + n.chunk * odd(k_vecs)) / line;
    const uint32_t output = (p_keys * odd(q_vecs) + n.v_keys * v_vecs) / line;
    const uint32_t maxima = n.threads * (n.rows / 4);
    const uint32_t softmax_rows = n.threads;  // materialized_softmax: one entry an invocation
    return std::max({scores, output, maxima, softmax_rows});
}

TileNumbers parse_numbers(const std::string& text) {
    std::map<std::string, uint32_t> values = values_in(text);
    const bool rows_kernel = values.count("cols") == 0;  // it has six of them
    if (!rows_kernel)
        for (const char* name : {"q_slices", "kv_slices"}) values.try_emplace(name, 1);
    if (values.size() != (rows_kernel ? 6 : std::size(all_numbers)))
        throw std::runtime_error("not all numbers: " + text);
    TileNumbers numbers{};
    numbers.q_slices = numbers.kv_slices = 1;
    for (const Number& number : all_numbers)
        if (!rows_kernel || values.count(number.name) != 0) numbers.*number.at = values.at(number.name);
    return numbers;
}

uint64_t matrix_bytes(const Problem& p) {
    return std::max<uint64_t>(16, p.seqlen_q * round_up(p.seqlen_kv, 4) * 4);
}

std::string workgroup_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan,
                           const core::Options& options) {
    if (is_of_matrix_kernel(plan)) return matrix_workgroup_flaw(caps, p, plan, options);
    const bool dot = plan.kernel.ends_with("_dot");
    if (plan.operands != (dot ? p.dtype : VKATTN_DTYPE_FLOAT32)) return "operands";
    if (dot && p.dtype == VKATTN_DTYPE_FLOAT32) return "rounded float32";
    const TileNumbers n = parse_numbers(plan.tuning);
    if (const std::string flaw = numbers_flaw(n, false, dot); !flaw.empty()) return "tuning: " + flaw;
    const core::Tiles& t = plan.tiles;
    if (t.threads != n.threads || t.tile_q != n.tile_q() || t.tile_kv != n.tile_kv())
        return "tiles against tuning";
    if (t.threads > caps.max_invocations) return fmt::format("{} invocations", t.threads);
    if (t.threads > caps.max_workgroup_size[0]) return fmt::format("a workgroup of {}", t.threads);
    if (t.shared_bytes > caps.max_shared_bytes)
        return fmt::format("{} bytes of shared memory", t.shared_bytes);
    if (const uint32_t bytes = pool_of_maps(n, p.head_dim_v, dot) * 16; bytes != t.shared_bytes)
        return fmt::format("{} shared bytes, the maps come to {}", t.shared_bytes, bytes);
    if (plan.kernel.starts_with("rows") != n.of_rows_kernel())
        return "numbers of another kernel than " + plan.kernel;
    const Model m = model_of(p, plan);
    for (const Pipeline& pipeline : plan.pipelines) {
        if (const std::string flaw = module_flaw(caps, p.dtype, pipeline.module); !flaw.empty()) return flaw;
        if (const std::string flaw = form_flaw(pipeline, n.rolled); !flaw.empty()) return flaw;
        const Kind kind = kind_of(pipeline);
        if (kind == Kind::combine) continue;
        if (kind == Kind::forward && facts_of(pipeline.module).rows_kernel != n.of_rows_kernel())
            return fmt::format("{} with numbers of another kernel", name_of(pipeline));
        if (facts_of(pipeline.module).dot != (dot && kind == Kind::forward))
            return fmt::format("{} of {}", name_of(pipeline), plan.kernel);
        for (const auto& flaw :
             {choices_flaw(p, m, pipeline), constants_flaw(pipeline, expected_constants(p, m, pipeline))})
            if (!flaw.empty()) return flaw;
    }
    return "";
}

std::string of_row_flaw(const Plan& plan) {
    for (const Pipeline& p : plan.pipelines) {
        // The portable kernel for dbias has a row of its own where the other gradients are found on matrix units.
        const bool other_row = kind_of(p) == Kind::dbias && plan.kernel.starts_with("matrix") &&
                               !facts_of(p.module).matrix_kernel;
        const bool own = kind_of(p) == Kind::forward || (recomputes(kind_of(p)) && !other_row);
        if (p.of_tuning_row != own)
            return fmt::format("{} may have the row rejected: {}", name_of(p), p.of_tuning_row);
    }
    return "";
}

std::string flaw_of(const DeviceCaps& caps, const Problem& p, const Plan& plan,
                    const core::Options& options) {
    if (core::max_push_bytes > caps.max_push_constant_bytes) return "more push constants than the device has";
    if (plan.combine) return "a plan of vkattn_combine_create";
    if (p.empty_output() && (!plan.dispatches.empty() || !plan.pipelines.empty() || plan.scratch_bytes != 0))
        return "work for an empty output";
    // The later checks divide by numbers that the first have found to be sound.
    std::string flaw = pipelines_flaw(plan, plan.kernel == "materialized");
    if (flaw.empty()) flaw = nonfinite_flaw(caps, options, plan);
    if (flaw.empty()) flaw = workgroup_flaw(caps, p, plan, options);
    if (flaw.empty()) flaw = work_flaw(caps, p, plan);
    if (flaw.empty()) flaw = cost_flaw(p, plan, options);
    if (flaw.empty()) flaw = push_flaw(p, plan);
    if (flaw.empty()) flaw = scratch_flaw(caps, p, plan);
    if (flaw.empty()) flaw = arguments_flaw(p, plan);
    if (flaw.empty()) flaw = barrier_flaw(plan);
    if (flaw.empty()) flaw = of_row_flaw(plan);
    if (flaw.empty()) flaw = refusals_flaw(plan, core::kernel_names());
    if (flaw.empty()) flaw = caller_arrays_flaw(p, plan);
    return flaw;
}

std::string flaw_of(const DeviceCaps& caps, const core::Combine& combine, const Plan& plan) {
    if (!plan.combine || plan.kernel != "combine") return "not a plan of vkattn_combine_create";
    if (plan.scratch_bytes != 0 || !plan.scratch.empty() || !plan.arguments.empty()) return "scratch";
    if (const std::string flaw = pipelines_flaw(plan, false); !flaw.empty()) return flaw;
    if (const std::string flaw = nonfinite_flaw(caps, {}, plan); !flaw.empty()) return flaw;
    if (const std::string flaw = caller_arrays_flaw(combine, plan); !flaw.empty()) return flaw;
    for (const Pipeline& pipeline : plan.pipelines)
        if (const std::string flaw = module_flaw(caps, combine.dtype, pipeline.module); !flaw.empty())
            return flaw;
    for (const Dispatch& d : plan.dispatches)
        if (d.barrier_before) return "a barrier between dispatches that do not depend on each other";
    if (auto flaw = of_row_flaw(plan); !flaw.empty()) return flaw;
    return combine_flaw(caps, combine, plan, 0, false, true);
}

namespace {

bool same(const core::Patch& a, const core::Patch& b) {
    return a.at == b.at && a.region == b.region && a.add == b.add;
}
bool same(const core::CallerArray& a, const core::CallerArray& b) {
    return a.region == b.region && a.alignment_bytes == b.alignment_bytes && a.may_be_null == b.may_be_null;
}
bool same(const core::Refusal& a, const core::Refusal& b) {
    return a.kernel == b.kernel && a.reason == b.reason;
}
bool same(const core::ScratchRegion& a, const core::ScratchRegion& b) {
    return a.region == b.region && a.offset_bytes == b.offset_bytes && a.size_bytes == b.size_bytes;
}

template <class T>
bool all_same(const std::vector<T>& a, const std::vector<T>& b);

bool same(const Pipeline& a, const Pipeline& b) {
    return a.module == b.module && a.rolled == b.rolled && a.constants == b.constants && a.push == b.push &&
           all_same(a.patches, b.patches) && a.reads == b.reads && a.writes == b.writes &&
           a.of_tuning_row == b.of_tuning_row;
}

bool same(const Dispatch& a, const Dispatch& b) {
    return a.pipeline == b.pipeline && a.barrier_before == b.barrier_before && a.groups == b.groups &&
           a.cut.first == b.cut.first && a.cut.first_step == b.cut.first_step &&
           a.cut.end_step == b.cut.end_step && a.flops == b.flops;
}

template <class T>
bool all_same(const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const T& x, const T& y) { return same(x, y); });
}

}  // namespace

std::string difference(const Plan& a, const Plan& b) {
    if (a.kernel != b.kernel) return "kernel " + a.kernel + " / " + b.kernel;
    if (a.tuning_row != b.tuning_row) return "row " + a.tuning_row + " / " + b.tuning_row;
    if (a.tuning != b.tuning) return "tuning " + a.tuning + " / " + b.tuning;
    if (a.tiles.tile_q != b.tiles.tile_q || a.tiles.tile_kv != b.tiles.tile_kv ||
        a.tiles.threads != b.tiles.threads || a.tiles.shared_bytes != b.tiles.shared_bytes)
        return "tiles";
    if (a.num_splits != b.num_splits) return "num_splits";
    if (!all_same(a.pipelines, b.pipelines)) return "pipelines";
    if (!all_same(a.dispatches, b.dispatches)) return "dispatches";
    if (a.arguments != b.arguments || !all_same(a.argument_patches, b.argument_patches)) return "arguments";
    if (a.scratch_bytes != b.scratch_bytes || !all_same(a.scratch, b.scratch)) return "scratch";
    if (!all_same(a.refused, b.refused)) return "refused";
    if (!all_same(a.caller_arrays, b.caller_arrays)) return "arrays of the caller";
    return "";
}

}  // namespace vkattn::test
