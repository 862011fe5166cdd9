#include "plan_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

namespace vkattn::test {
namespace {

using core::bit;
using core::DeviceCaps;
using core::Dispatch;
using core::Plan;
using core::Problem;
using core::Region;
using core::TileNumbers;
using core::Variant;
using Push = shared::ForwardPush;

struct Number {
    const char* name;
    uint32_t TileNumbers::*at;
    uint32_t specialization;
};

constexpr Number all_numbers[] = {
    {"threads", &TileNumbers::threads, SPEC_THREADS}, {"lanes", &TileNumbers::lanes, SPEC_LANES},
    {"rows", &TileNumbers::rows, SPEC_ROWS},          {"cols", &TileNumbers::cols, SPEC_COLS},
    {"chunk", &TileNumbers::chunk, SPEC_CHUNK},       {"p_blocks", &TileNumbers::p_blocks, SPEC_P_BLOCKS},
    {"v_keys", &TileNumbers::v_keys, SPEC_V_KEYS},    {"prefetch", &TileNumbers::prefetch, SPEC_PREFETCH},
    {"unroll", &TileNumbers::unroll, SPEC_UNROLL},
};
static_assert(sizeof(TileNumbers) == sizeof(uint32_t) * std::size(all_numbers), "a number is missing above");

uint64_t round_up(uint64_t x, uint64_t to) {
    return (x + to - 1) / to * to;
}

// What a variant's shader does: the push constant through which it reaches each region, and what it writes.
struct Touch {
    size_t at;
    Region region;
    bool writes;
};

std::vector<Touch> touches_of(Variant variant) {
    switch (variant) {
        case Variant::forward_tiles_f32:
            return {{offsetof(Push, query), Region::query, false},
                    {offsetof(Push, key), Region::key, false},
                    {offsetof(Push, value), Region::value, false},
                    {offsetof(Push, outp), Region::out, true},
                    {offsetof(Push, lse), Region::lse, true}};
        case Variant::materialized_scores_f32:
            return {{offsetof(Push, query), Region::query, false},
                    {offsetof(Push, key), Region::key, false},
                    {offsetof(Push, outp), Region::scores, true}};
        case Variant::materialized_softmax_f32:
            return {{offsetof(Push, outp), Region::scores, true}, {offsetof(Push, lse), Region::lse, true}};
        case Variant::materialized_output_f32:
            return {{offsetof(Push, query), Region::scores, false},
                    {offsetof(Push, value), Region::value, false},
                    {offsetof(Push, outp), Region::out, true}};
        default:
            throw std::runtime_error("plan_checks.cpp does not know what this variant touches");
    }
}

Push push_of(const Dispatch& d) {
    Push push;
    static_assert(sizeof push == sizeof d.push);
    std::memcpy(&push, d.push.data(), sizeof push);
    return push;
}

// Strides in bytes, in the order of WideStrides.
std::array<uint64_t, 12> stride_bytes(const Problem& p) {
    std::array<uint64_t, 12> out{};
    for (size_t t = 0; t < 4; t++) {
        const VkattnStrides& s = p.strides(static_cast<int>(t));
        out[3 * t] = s.batch * 4;
        out[3 * t + 1] = s.head * 4;
        out[3 * t + 2] = s.seq * 4;
    }
    return out;
}

bool needs_wide(const Problem& p) {
    const auto strides = stride_bytes(p);
    return std::any_of(strides.begin(), strides.end(), [](uint64_t s) { return s > UINT32_MAX; });
}

std::array<uint32_t, SPEC_COUNT> specialization_of(const Problem& p, const TileNumbers& n) {
    std::array<uint32_t, SPEC_COUNT> s{};
    for (const Number& number : all_numbers) s[number.specialization] = n.*number.at;
    s[SPEC_HEAD_DIM_QK] = p.head_dim_qk;
    s[SPEC_HEAD_DIM_V] = p.head_dim_v;
    s[SPEC_WIDE_LOADS] = p.alignment_bytes >= 16;
    s[SPEC_WIDE_STRIDES] = needs_wide(p);
    // Rows of a tile that lie so far apart that the last element's offset in bytes would pass 31 bits.
    const uint64_t rows = std::max(n.rows * (n.threads / n.lanes), n.cols * n.lanes);
    for (int t = 0; t < 4; t++)
        if (p.strides(t).seq > UINT64_MAX / rows ||
            p.strides(t).seq * rows + VKATTN_MAX_HEAD_DIM > uint64_t{1} << 29)
            s[SPEC_WIDE_ROWS] = 1;
    s[SPEC_SOFTCAP] = p.softcap > 0;
    s[SPEC_POOL_VEC4] = pool_of_maps(n, p.head_dim_v);
    return s;
}

// The steps of a plan: how many tiles (or rows) each has to cover in y and z.
struct Step {
    Variant variant;
    uint64_t tiles;      // over y, continued in z
    uint64_t z_exactly;  // 0: z continues y
};

std::vector<Step> steps_of(const Problem& p, const Plan& plan) {
    const uint64_t q_tiles = round_up(p.seqlen_q, plan.tiles.tile_q) / plan.tiles.tile_q;
    const uint64_t kv_tiles = round_up(p.seqlen_kv, plan.tiles.tile_kv) / plan.tiles.tile_kv;
    if (p.empty_output()) return {};
    if (plan.kernel == "tiles") return {{Variant::forward_tiles_f32, q_tiles, 0}};
    if (plan.kernel != "materialized")
        throw std::runtime_error("plan_checks.cpp does not know kernel " + plan.kernel);
    std::vector<Step> steps;
    if (kv_tiles != 0) steps.push_back({Variant::materialized_scores_f32, q_tiles, kv_tiles});
    steps.push_back({Variant::materialized_softmax_f32, p.seqlen_q, 0});
    steps.push_back({Variant::materialized_output_f32, q_tiles, 0});
    return steps;
}

std::string step_flaw(const DeviceCaps& caps, const Step& step, const Dispatch& d) {
    if (d.variant != step.variant)
        return fmt::format("{} where {} belongs", name_of(d.variant), name_of(step.variant));
    for (size_t i = 0; i < 3; i++)
        if (d.groups[i] == 0 || d.groups[i] > caps.max_workgroup_count[i])
            return fmt::format("{} workgroups in dimension {}, the device has {}", d.groups[i], i,
                               caps.max_workgroup_count[i]);
    const uint64_t y = d.groups[1], z = d.groups[2];
    if (step.z_exactly != 0) {
        if (y != step.tiles || z != step.z_exactly)
            return fmt::format("grid {} x {} for {} x {} tiles", y, z, step.tiles, step.z_exactly);
    } else if (y * z < step.tiles || y * (z - 1) >= step.tiles) {
        return fmt::format("grid {} x {} does not fit {} tiles", y, z, step.tiles);
    }
    return "";
}

}  // namespace

std::string numbers_flaw(const TileNumbers& n) {
    for (const Number& number : all_numbers)
        if (number.at != &TileNumbers::prefetch && n.*number.at == 0)
            return std::string(number.name) + " is 0";
    if (n.threads % n.lanes != 0) return "a group of lanes is not whole";
    if (n.rows % 4 != 0 || n.cols % 4 != 0 || n.chunk % 4 != 0 || n.v_keys % 4 != 0)
        return "not a multiple of 4";
    if (n.cols % (4 * n.p_blocks) != 0) return "P does not divide into its blocks";
    if (4 * n.p_blocks * n.lanes % n.v_keys != 0) return "a block of P does not divide into stages of V";
    for (const uint32_t steps : {n.chunk, n.v_keys})  // a loop shorter than unroll is unrolled whole
        if (n.unroll < steps && steps % n.unroll != 0) return "loops do not unroll evenly";
    if (n.prefetch > 1) return "prefetch is not a boolean";
    if (n.tile_q() != n.threads / n.lanes * n.rows || n.tile_kv() != n.lanes * n.cols) return "tiles";
    return "";
}

uint32_t pool_of_maps(const TileNumbers& n, uint32_t head_dim_v) {
    const auto odd = [](uint32_t x) { return x | 1; };
    const uint32_t q_vecs = n.threads / n.lanes * n.rows / 4, k_vecs = n.lanes * n.cols / 4;
    const uint32_t p_keys = 4 * n.p_blocks * n.lanes;
    uint32_t v_vecs = 0;  // lanes take turns, so a row of V is a whole number of vec4 for each
    while (v_vecs * 4 < head_dim_v) v_vecs += n.lanes;
    const uint32_t scores = n.chunk * odd(q_vecs) + n.chunk * odd(k_vecs);
    const uint32_t output = p_keys * odd(q_vecs) + n.v_keys * v_vecs;
    const uint32_t maxima = n.threads * (n.rows / 4);
    const uint32_t softmax_rows = n.threads;  // materialized_softmax: one entry an invocation
    return std::max({scores, output, maxima, softmax_rows});
}

TileNumbers parse_numbers(const std::string& text) {
    std::map<std::string, uint32_t> values;
    for (size_t at = 0; at < text.size();) {
        const size_t equals = text.find('=', at), end = std::min(text.find(',', at), text.size());
        if (equals >= end) throw std::runtime_error("not key=value,...: " + text);
        const unsigned long value = std::stoul(text.substr(equals + 1, end - equals - 1));
        values[text.substr(at, equals - at)] = static_cast<uint32_t>(value);
        at = end + 1;
    }
    if (values.size() != std::size(all_numbers)) throw std::runtime_error("not all numbers: " + text);
    TileNumbers numbers{};
    for (const Number& number : all_numbers) numbers.*number.at = values.at(number.name);
    return numbers;
}

uint64_t matrix_bytes(const Problem& p) {
    return std::max<uint64_t>(16, p.seqlen_q * round_up(p.seqlen_kv, 4) * 4);
}

std::string workgroup_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const TileNumbers n = parse_numbers(plan.tuning);
    if (const std::string flaw = numbers_flaw(n); !flaw.empty()) return "tuning: " + flaw;
    const core::Tiles& t = plan.tiles;
    if (t.threads != n.threads || t.tile_q != n.tile_q() || t.tile_kv != n.tile_kv())
        return "tiles against tuning";
    if (t.threads > caps.max_invocations) return fmt::format("{} invocations", t.threads);
    if (t.threads > caps.max_workgroup_size[0]) return fmt::format("a workgroup of {}", t.threads);
    if (t.shared_bytes > caps.max_shared_bytes)
        return fmt::format("{} bytes of shared memory", t.shared_bytes);
    if (const uint32_t bytes = pool_of_maps(n, p.head_dim_v) * 16; bytes != t.shared_bytes)
        return fmt::format("{} shared bytes, the maps come to {}", t.shared_bytes, bytes);
    const auto specialization = specialization_of(p, n);
    for (const Dispatch& d : plan.dispatches)
        if (d.specialization != specialization)
            return fmt::format("specialization of {}", name_of(d.variant));
    return "";
}

std::string grid_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const std::vector<Step> steps = steps_of(p, plan);
    const uint64_t heads = p.empty_output() ? 0 : uint64_t{p.batch} * p.num_heads_q;
    uint64_t next = 0;  // the first head that no piece has covered
    size_t at = 0;
    for (; next < heads; at += steps.size()) {
        if (at + steps.size() > plan.dispatches.size())
            return fmt::format("heads from {} on are not covered", next);
        const uint64_t count = plan.dispatches[at].groups[0];
        for (size_t i = 0; i < steps.size(); i++) {
            const Dispatch& d = plan.dispatches[at + i];
            if (const std::string flaw = step_flaw(caps, steps[i], d); !flaw.empty()) return flaw;
            if (push_of(d).first_head != next || d.groups[0] != count)
                return fmt::format("piece of {} heads from {}, not {} from {}", d.groups[0],
                                   push_of(d).first_head, count, next);
        }
        next += count;
    }
    if (next != heads) return fmt::format("{} heads are covered, there are {}", next, heads);
    if (at != plan.dispatches.size()) return "dispatches without work";
    return "";
}

namespace {

std::string numbers_in_push_flaw(const Problem& p, const Dispatch& d) {
    const Push c = push_of(d);
    if (c.query != 0 || c.key != 0 || c.value != 0 || c.outp != 0 || c.lse != 0 || c.extra != 0)
        return "an address";
    const uint32_t narrow[12] = {c.query_batch, c.query_head, c.query_seq,   c.key_batch,
                                 c.key_head,    c.key_seq,    c.value_batch, c.value_head,
                                 c.value_seq,   c.out_batch,  c.out_head,    c.out_seq};
    const auto strides = stride_bytes(p);
    for (size_t i = 0; i < 12; i++)
        if (narrow[i] != (needs_wide(p) ? 0 : strides[i]))
            return fmt::format("stride {} is {}", i, narrow[i]);
    if (c.seqlen_q != p.seqlen_q || c.seqlen_kv != p.seqlen_kv) return "seqlens";
    if ((c.heads & 0xffff) != p.num_heads_q || c.heads >> 16 != p.num_heads_q / p.num_heads_kv)
        return "heads";
    if (c.bound_lo != p.bound_lo || c.bound_hi != p.bound_hi) return "bounds";
    const double log2_e = 1.4426950408889634, scale = p.softmax_scale, cap = p.softcap;
    const auto near = [](double a, double b) { return std::abs(a - b) <= 2e-7 * std::abs(b); };
    if (!near(c.scale_log2, cap > 0 ? scale / cap : scale * log2_e))
        return fmt::format("scale {}", c.scale_log2);
    if (!near(c.softcap_log2, cap * log2_e)) return fmt::format("softcap {}", c.softcap_log2);
    return "";
}

std::string patches_flaw(const Problem& p, const Dispatch& d) {
    std::vector<Touch> expected = touches_of(d.variant);
    if (needs_wide(p)) expected.push_back({offsetof(Push, extra), Region::arguments, false});
    uint32_t touched = 0, written = 0;
    for (const Touch& t : expected) {
        touched |= bit(t.region);
        if (t.writes) written |= bit(t.region);
    }
    if (d.writes != written) return fmt::format("writes {:#x}, the shader {:#x}", d.writes, written);
    if ((d.reads | d.writes) != touched)
        return fmt::format("touches {:#x}, the shader {:#x}", d.reads | d.writes, touched);
    if (d.variant == Variant::materialized_softmax_f32 && (d.reads & bit(Region::scores)) == 0)
        return "scores not read";
    if (d.patches.size() != expected.size()) return fmt::format("{} patches", d.patches.size());
    for (const core::Patch& patch : d.patches) {
        if (patch.at % 8 != 0 || patch.at + sizeof(uint64_t) > sizeof(Push))
            return fmt::format("patch at {}", patch.at);
        if (((d.reads | d.writes) & bit(patch.region)) == 0)
            return fmt::format("patch of {}", name_of(patch.region));
        const auto fits = [&](const Touch& t) { return t.at == patch.at && t.region == patch.region; };
        if (std::none_of(expected.begin(), expected.end(), fits))
            return fmt::format("{} patched in at {}", name_of(patch.region), patch.at);
    }
    return "";
}

}  // namespace

std::string push_flaw(const Problem& p, const Plan& plan) {
    for (const Dispatch& d : plan.dispatches) {
        if (const std::string flaw = numbers_in_push_flaw(p, d); !flaw.empty())
            return "push constants: " + flaw;
        if (const std::string flaw = patches_flaw(p, d); !flaw.empty()) return flaw;
    }
    return "";
}

std::string scratch_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    uint64_t end = 0;
    uint32_t there = 0, used = 0;
    for (const core::ScratchRegion& r : plan.scratch) {
        if (r.offset_bytes % core::scratch_alignment != 0)
            return fmt::format("{} misaligned", name_of(r.region));
        if (r.offset_bytes != end)
            return fmt::format("{} at {}, not at {}", name_of(r.region), r.offset_bytes, end);
        if (r.size_bytes == 0 || (there & bit(r.region)) != 0)
            return fmt::format("{} empty or twice", name_of(r.region));
        there |= bit(r.region);
        end = round_up(r.offset_bytes + r.size_bytes, core::scratch_alignment);
    }
    if (plan.scratch_bytes != end)
        return fmt::format("{} scratch bytes, regions end at {}", plan.scratch_bytes, end);
    if (plan.scratch_bytes > caps.max_buffer_bytes)
        return fmt::format("{} bytes of scratch", plan.scratch_bytes);
    for (const Dispatch& d : plan.dispatches) {
        used |= (d.reads | d.writes) & (bit(Region::arguments) | bit(Region::scores));
        for (const core::ScratchRegion& r : plan.scratch)
            if (r.region == Region::scores && r.size_bytes < d.groups[0] * matrix_bytes(p))
                return "a piece has more scores than its region holds";
    }
    if (used != there) return fmt::format("regions {:#x} are used, {:#x} reserved", used, there);
    const bool wide = needs_wide(p) && !p.empty_output();
    if (plan.arguments.size() != (wide ? sizeof(shared::WideStrides) : 0)) return "argument block";
    if (wide && std::memcmp(plan.arguments.data(), stride_bytes(p).data(), plan.arguments.size()) != 0)
        return "strides in the argument block";
    if (wide &&
        (plan.scratch[0].region != Region::arguments || plan.scratch[0].size_bytes < plan.arguments.size()))
        return "no room for the argument block";
    return "";
}

std::string barrier_flaw(const Plan& plan) {
    const std::vector<Dispatch>& all = plan.dispatches;
    // Pieces of one problem write disjoint heads of the outputs, so two writers of an output do not wait.
    const uint32_t outputs = bit(Region::out) | bit(Region::lse);
    const auto depend = [outputs](const Dispatch& a, const Dispatch& b) {
        return (a.writes & (b.reads | (b.writes & ~outputs))) != 0 || (a.reads & b.writes) != 0;
    };
    if (!all.empty() && all[0].barrier_before) return "a barrier before the first dispatch";
    for (size_t begin = 0, before = 0; begin < all.size();) {  // runs without a barrier
        size_t end = begin + 1;
        while (end < all.size() && !all[end].barrier_before) end++;
        for (size_t i = begin; i < end; i++)
            for (size_t j = i + 1; j < end; j++)
                if (depend(all[i], all[j]))
                    return fmt::format("no barrier between dispatches {} and {}", i, j);
        bool separates = begin == 0;
        for (size_t i = before; i < begin && !separates; i++)
            for (size_t j = begin; j < end && !separates; j++) separates = depend(all[i], all[j]);
        if (!separates) return fmt::format("the barrier before dispatch {} separates nothing", begin);
        before = begin;
        begin = end;
    }
    return "";
}

namespace {

std::string refusals_flaw(const Plan& plan) {
    std::multiset<std::string> names{plan.kernel};
    for (const core::Refusal& r : plan.refused) {
        if (r.reason.empty()) return r.kernel + " was refused without a reason";
        names.insert(r.kernel);
    }
    const std::vector<std::string> all = core::kernel_names();
    if (names != std::multiset<std::string>(all.begin(), all.end()))
        return "chosen and refused are not all kernels";
    return "";
}

}  // namespace

std::string flaw_of(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    if (sizeof(Push) > caps.max_push_constant_bytes) return "more push constants than the device has";
    if (p.empty_output() && (!plan.dispatches.empty() || plan.scratch_bytes != 0))
        return "work for an empty output";
    for (const std::string& flaw :
         {workgroup_flaw(caps, p, plan), grid_flaw(caps, p, plan), push_flaw(p, plan),
          scratch_flaw(caps, p, plan), barrier_flaw(plan), refusals_flaw(plan)})
        if (!flaw.empty()) return flaw;
    return "";
}

namespace {

bool same(const core::Patch& a, const core::Patch& b) {
    return a.at == b.at && a.region == b.region;
}
bool same(const core::Refusal& a, const core::Refusal& b) {
    return a.kernel == b.kernel && a.reason == b.reason;
}
bool same(const core::ScratchRegion& a, const core::ScratchRegion& b) {
    return a.region == b.region && a.offset_bytes == b.offset_bytes && a.size_bytes == b.size_bytes;
}

bool same(const Dispatch& a, const Dispatch& b) {
    return a.variant == b.variant && a.specialization == b.specialization && a.groups == b.groups &&
           a.push == b.push &&
           std::equal(a.patches.begin(), a.patches.end(), b.patches.begin(), b.patches.end(),
                      [](const core::Patch& x, const core::Patch& y) { return same(x, y); }) &&
           a.reads == b.reads && a.writes == b.writes && a.barrier_before == b.barrier_before;
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
    if (!all_same(a.dispatches, b.dispatches)) return "dispatches";
    if (a.arguments != b.arguments) return "arguments";
    if (a.scratch_bytes != b.scratch_bytes || !all_same(a.scratch, b.scratch)) return "scratch";
    if (!all_same(a.refused, b.refused)) return "refused";
    return "";
}

}  // namespace vkattn::test
