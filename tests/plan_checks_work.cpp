// Who does which part of the work, in which order, and what it costs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "plan_pieces.hpp"

namespace vkattn::test {

uint64_t steps_of(const Given& g, const core::Pipeline& pipeline) {
    const Tile t = tile_of(pipeline);
    if (kind_of(pipeline) == Kind::dquery) return tiles_of(visible_keys(g.p).end, t.kv);
    return g.p.num_heads_q / g.p.num_heads_kv * tiles_of(g.p.seqlen_q, t.q);
}

namespace {

using core::bit;
using core::Dispatch;
using core::Pipeline;
using core::Problem;
using core::Region;

// The workgroups that a pipeline's dispatches must be, together; `first`: where they begin.
struct Whole {
    Triple first, count;
    bool rows_in_z = false;  // rows of y go on in z
};

Whole whole_of(const Given& g, const Pipeline& pipeline) {
    const Problem& p = g.p;
    const Tile t = tile_of(pipeline);
    const Triple begin{};
    const auto bias = bias_extents(g);
    switch (kind_of(pipeline)) {
        case Kind::forward: {
            const uint64_t group = group_of(p, pipeline);
            const Parts parts = parts_of(g);
            return {{0, 0, parts.first},
                    {g.heads() / group * t.slices, tiles_of(p.seqlen_q * group, t.q), parts.count}};
        }
        case Kind::classes: {
            const uint64_t group = group_of(p, pipeline);
            return {begin,
                    {class_heads(p, group) * class_batches(p), tiles_of(p.seqlen_q * group, t.q),
                     tiles_of(p.seqlen_kv, t.kv)}};
        }
        case Kind::links: {
            const auto word = [&](const char* name) {
                return words_in(pipeline, name).front();
            };  // see words_flaw
            const uint64_t held = tiles_of(word("held_rows"), word("held_tile"));
            return {begin, {uint64_t{word("num_heads")} * p.block_map_batches, held, 1}};
        }
        case Kind::combine: {
            const core::Combine c = combine_of(g);
            return {begin, {uint64_t{c.batch} * c.num_heads, tiles_of(c.seqlen_q, t.q), 1}};
        }
        case Kind::delta:
        case Kind::product:
            return {begin, {g.heads(), tiles_of(p.seqlen_q, t.q), 1}};
        case Kind::dquery:
            return {begin, {g.heads(), tiles_of(p.seqlen_q, t.q), t.slices}};
        case Kind::dkey_dvalue:
            return {begin, {g.key_heads(), tiles_of(p.seqlen_kv, t.kv), t.slices}};
        case Kind::spilled:
            return {begin, {g.key_heads(), p.num_heads_q / p.num_heads_kv * tiles_of(p.seqlen_q, t.q), 1}};
        case Kind::spilled_bias:
        case Kind::dbias:
            return {begin, {bias[0] * bias[1], tiles_of(bias[2], t.q), tiles_of(bias[3], t.kv)}};
        case Kind::scores:
            return {begin, {g.heads(), tiles_of(p.seqlen_q, t.q), tiles_of(p.seqlen_kv, t.kv)}};
        case Kind::in_place:
            return {begin, {g.heads(), p.seqlen_q, 1}, true};
        case Kind::transposed:
            return {begin, {g.key_heads(), tiles_of(p.seqlen_kv, t.kv), 1}};
        case Kind::arguments:
            return {begin, {1, 1, 1}};
        case Kind::dsinks:
            return {begin, {p.num_heads_q, 1, 1}};
        case Kind::decoding:
        case Kind::none:
            break;
    }
    throw std::runtime_error("no kind");
}

std::string groups_flaw(const core::DeviceCaps& caps, const Dispatch& d) {
    for (size_t i = 0; i < 3; i++)
        if (d.groups[i] == 0 || d.groups[i] > caps.max_workgroup_count[i])
            return fmt::format("{} workgroups in dimension {}, the device has {}", d.groups[i], i,
                               caps.max_workgroup_count[i]);
    return "";
}

// Rows that go on in z where y is too short have as many layers as they need.
std::string layers_flaw(const Dispatch& d, uint64_t rows) {
    const uint64_t y = d.groups[1], z = d.groups[2];
    return y * z < rows || y * (z - 1) >= rows || (z == 1 && y != rows)
               ? fmt::format("grid {} x {} does not fit {} rows", y, z, rows)
               : "";
}

// The boxes of a pipeline, and how far the spans of each have come. Spans of a box go in order, from the first step to
// the last, since each continues what the one before left in scratch.
class Boxes {
  public:
    Boxes(const Given& g, const Pipeline& pipeline)
        : whole_(whole_of(g, pipeline)),
          steps_(is_cut(pipeline) ? steps_of(g, pipeline) : 0),
          cut_(is_cut(pipeline)),
          of_strips_(reads_spill(kind_of(pipeline))) {}

    std::string add(const Dispatch& d) {
        const Triple begin = begin_of(d);
        Triple count = groups_of(d);
        if (whole_.rows_in_z) {
            if (auto flaw = layers_flaw(d, whole_.count[1]); !flaw.empty()) return flaw;
            count = {count[0], whole_.count[1], 1};
        }
        for (size_t i = 0; i < 3; i++)  // ends in other boxes as well, so that no sum can be right by chance
            if (begin[i] < whole_.first[i] || begin[i] + count[i] > whole_.first[i] + whole_.count[i])
                return fmt::format("workgroups {} .. {} of {} in dimension {}", begin[i], begin[i] + count[i],
                                   whole_.first[i] + whole_.count[i], i);
        if (cut_) return add_span(d, begin, count);
        if (!of_strips_ && (d.cut.first_step != 0 || d.cut.end_step != 0)) return "a span where none is";
        cover_.add(begin, count);
        return "";
    }
    bool is_whole() const { return open_.empty() && cover_.is(whole_.first, whole_.count); }
    bool is_nothing() const { return whole_.count[0] * whole_.count[1] * whole_.count[2] == 0; }

  private:
    struct Open {
        Triple count;
        uint64_t next;
    };
    std::string add_span(const Dispatch& d, const Triple& begin, const Triple& count) {
        if (count[2] != 1) return "cut loops of slices at a time: they share the sums of P";
        const auto [box, is_new] = open_.try_emplace(begin, Open{count, 0});
        if (box->second.count != count) return "spans of different boxes";
        const uint64_t first = d.cut.first_step, end = d.cut.end_step;
        if (first != box->second.next || end <= first || end > steps_)
            return fmt::format("a span {} .. {} of {}, after {}", first, end, steps_, box->second.next);
        box->second.next = end;
        if (end != steps_) return "";
        cover_.add(begin, count);
        open_.erase(box);
        return "";
    }

    Whole whole_;
    uint64_t steps_;
    bool cut_, of_strips_;
    std::map<Triple, Open> open_;
    Cover cover_;
};

// Regions that must be written in the end.
uint32_t results_of(const Given& g) {
    if (g.combine != nullptr)
        return uint64_t{g.combine->batch} * g.combine->num_heads * g.combine->seqlen_q != 0
                   ? bit(Region::out) | bit(Region::lse)
                   : 0;
    const bool rows = g.rows() != 0;
    if (g.backward == nullptr) return rows ? bit(Region::out) | bit(Region::lse) : 0;
    const auto bias = bias_extents(g);
    return (rows ? bit(Region::dquery) : 0) | (g.has_keys() ? bit(Region::dkey) | bit(Region::dvalue) : 0) |
           (std::ranges::count(bias, 0u) == 0 ? bit(Region::dbias) : 0);
}

// The baseline has the scores as a matrix, for some heads at a time. It does not tell what it costs.
bool is_baseline(const core::Plan& plan) {
    return std::ranges::any_of(plan.pipelines,
                               [](const Pipeline& x) { return kind_of(x) == Kind::in_place; });
}

constexpr uint32_t all_results = bit(Region::out) | bit(Region::lse) | bit(Region::dquery) |
                                 bit(Region::dkey) | bit(Region::dvalue) | bit(Region::dbias);

}  // namespace

std::string pipelines_flaw(const core::Plan& plan, bool spare) {
    std::vector<bool> used(plan.pipelines.size());
    std::vector<std::array<bool, std::size(fields_of_cut)>> has(used.size());
    for (size_t p = 0; p < used.size(); p++)
        for (size_t i = 0; i < std::size(fields_of_cut); i++)
            has[p][i] = find_field(plan.pipelines[p], fields_of_cut[i]) != nullptr;
    for (const Dispatch& d : plan.dispatches) {
        if (d.pipeline >= used.size()) return fmt::format("pipeline {} of {}", d.pipeline, used.size());
        used[d.pipeline] = true;
        const uint32_t words[] = {d.cut.first[0], d.cut.first[1], d.cut.first[2], d.cut.first_step,
                                  d.cut.end_step};
        for (size_t i = 0; i < std::size(words); i++)
            if (words[i] != 0 && !has[d.pipeline][i])
                return fmt::format("{} has no {}", name_of(plan.pipelines[d.pipeline]), fields_of_cut[i]);
    }
    for (size_t i = 0; i < used.size(); i++)
        if (!used[i] && !spare)
            return fmt::format("no dispatch has pipeline {}, {}", i, name_of(plan.pipelines[i]));
    return "";
}

// Every workgroup of every pipeline exactly once and, where loops are cut, each with all its steps; every result by
// just one pipeline.
std::string coverage_flaw(const Given& g) {
    std::vector<Boxes> boxes;
    for (const Pipeline& pipeline : g.plan.pipelines) boxes.emplace_back(g, pipeline);
    std::vector<bool> used(boxes.size());
    for (const Dispatch& d : g.plan.dispatches) {
        const Pipeline& pipeline = pipeline_of(g.plan, d);
        std::string flaw = groups_flaw(g.caps, d);
        if (flaw.empty()) flaw = boxes[d.pipeline].add(d);
        if (!flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
        used[d.pipeline] = true;
    }
    uint32_t written = 0;
    size_t shares_of_dquery = 0;
    const bool spare = is_baseline(g.plan) && (g.rows() == 0 || !g.has_keys());
    for (size_t i = 0; i < boxes.size(); i++) {
        const Pipeline& pipeline = g.plan.pipelines[i];
        if (!used[i] && (spare || boxes[i].is_nothing())) continue;
        if (!used[i] || !boxes[i].is_whole())
            return fmt::format("{}: not every workgroup and step exactly once", name_of(pipeline));
        // The passes of a plan that spills dS share the tiles of dquery, and tell each other which.
        const uint32_t shared = (pipeline.reads & bit(Region::tile_states)) != 0 ? bit(Region::dquery) : 0;
        if ((written & pipeline.writes & all_results & ~shared) != 0) return "a result is written twice";
        shares_of_dquery += shared != 0;
        written |= pipeline.writes;
    }
    if ((written & all_results) != results_of(g))
        return fmt::format("results {:#x} are written, not {:#x}", written & all_results, results_of(g));
    if (reader_of(g.plan) != nullptr && shares_of_dquery != (skips_tiles(g.p) ? 2 : 1))
        return "the shares of dquery are not all, or more";
    const Parts parts = parts_of(g);
    if (g.plan.num_splits != parts.count)
        return fmt::format("num_splits {} of {}", g.plan.num_splits, parts.count);
    return parts.fixed_cuts && (parts.first + parts.count) * parts.span > INT32_MAX
               ? "keys of the last part pass 2^31"
               : "";
}

namespace {

// The strip of dS that scratch holds. Who spills it begins a new strip with another span or other heads.
class Strips {
  public:
    explicit Strips(const Given& g) : g_(g), most_(strip_of(g.plan)) {}

    std::string run(const Dispatch& d) {
        const Pipeline& pipeline = pipeline_of(g_.plan, d);
        const bool spills = writes(pipeline, Region::spill);
        if (!spills && !reads_spill(kind_of(pipeline))) return "";
        if (most_.heads == 0) return "strips of no heads";
        const auto [begin, end] = kind_of(pipeline) == Kind::spilled_bias ? sharing(d) : heads_of(d);
        const uint64_t first = begin / most_.heads * most_.heads;
        if (end > first + most_.heads) return "heads of two strips";
        const Open strip{first, d.cut.first_step, d.cut.end_step};
        if (!spills) return read(d, pipeline, strip);
        const uint64_t all = steps_of(g_, pipeline), steps = is_cut(pipeline) ? strip.end - strip.begin : all;
        if (strip != open_) there_ = {};
        open_ = strip;
        there_.add(begin_of(d), groups_of(d));
        writer_ = tile_of(pipeline);
        steps_end_ = strip.begin + steps;
        return steps > most_.steps ? "more steps than scratch has room for" : "";
    }

  private:
    struct Open {
        uint64_t first = 0, begin = 0, end = 0;
        bool operator==(const Open&) const = default;
    };
    using Range = std::pair<uint64_t, uint64_t>;  // begin .. end-1
    static Range heads_of(const Dispatch& d) { return {d.cut.first[0], d.cut.first[0] + d.groups[0]}; }
    uint64_t group() const { return g_.p.num_heads_q / g_.p.num_heads_kv; }

    // The query heads that share the masks of a dispatch, counted over all batches, or over the first if all share.
    Range query_heads(const Dispatch& d) const {
        const uint64_t each = g_.p.num_heads_q / bias_extents(g_)[1];
        return {heads_of(d).first * each, heads_of(d).second * each};
    }
    // Their kv heads, from the first batch's to the last one's.
    Range sharing(const Dispatch& d) const {
        const auto [begin, end] = query_heads(d);
        const uint64_t batches = bias_extents(g_)[0] == 1 ? g_.p.batch : 1;
        return {begin / group(), tiles_of(end, group()) + (batches - 1) * g_.p.num_heads_kv};
    }
    // The steps that are summed: the same of each query head, of which a kv head has some or all.
    Range summed_steps(const Dispatch& d) const {
        const auto [begin, end] = query_heads(d);
        const uint64_t in_head = tiles_of(g_.p.seqlen_q, writer_.q), last = end - 1;
        const bool one = begin / group() == last / group();
        return {(one ? begin % group() : 0) * in_head + d.cut.first[1],
                (one ? last % group() : group() - 1) * in_head + d.cut.first[1] + d.groups[1]};
    }
    // All steps of the tiles must be there, of all keys and all heads of the strip.
    std::string read(const Dispatch& d, const Pipeline& pipeline, const Open& strip) const {
        const uint64_t heads = std::min(most_.heads, g_.key_heads() - strip.first);
        if (strip != open_ ||
            !there_.is({strip.first, 0, 0}, {heads, tiles_of(g_.p.seqlen_kv, writer_.kv), 1}))
            return "the strip is not there";
        const char* const missing = "steps that the strip does not have";
        if (kind_of(pipeline) == Kind::spilled_bias) {
            const auto [begin, end] = summed_steps(d);
            return begin < strip.begin || end > steps_end_ ? missing : "";
        }
        const uint64_t held = tile_of(pipeline).q, tiles = tiles_of(g_.p.seqlen_q, held),
                       in_head = tiles_of(g_.p.seqlen_q, writer_.q), last = d.cut.first[1] + d.groups[1] - 1;
        const auto step = [&](uint64_t tile, uint64_t row) {
            return tile / tiles * in_head +
                   std::min<uint64_t>(tile % tiles * held + row, g_.p.seqlen_q - 1) / writer_.q;
        };
        return step(d.cut.first[1], 0) < strip.begin || step(last, held - 1) >= steps_end_ ? missing : "";
    }

    const Given& g_;
    Strip most_;
    Open open_;
    Cover there_;
    Tile writer_{1, 1, 1};
    uint64_t steps_end_ = 0;
};

// The dispatches, one after the other, on a machine that has only what earlier ones wrote.
class Machine {
  public:
    explicit Machine(const Given& g)
        : g_(g), strips_(g), done_(g.plan.pipelines.size()), left_(g.plan.pipelines.size()) {
        for (const Dispatch& d : g.plan.dispatches) left_[d.pipeline]++;
        for (const Pipeline& pipeline : g.plan.pipelines) {
            kinds_.push_back(kind_of(pipeline));
            made_ |= pipeline.writes & ~all_results;
        }
    }

    std::string run(const Dispatch& d) {
        const Pipeline& pipeline = pipeline_of(g_.plan, d);
        const uint32_t reads = pipeline.reads & made_;
        if (auto flaw = strips_.run(d); !flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
        constexpr uint32_t otherwise = bit(Region::accumulators) | bit(Region::spill);
        for (uint32_t left = reads & ~otherwise; left != 0; left &= left - 1) {
            const auto region = static_cast<Region>(std::countr_zero(left));
            const std::string flaw = is_matrix(region) ? matrix_flaw(region, d) : whole_flaw(region, d);
            if (!flaw.empty())
                return fmt::format("{} reads {}: {}", name_of(pipeline), name_of(region), flaw);
        }
        for (const Region region : {Region::scores, Region::score_gradients})
            if ((pipeline.writes & bit(region)) != 0) heads_[region] = heads_of(d);
        done_[d.pipeline] = --left_[d.pipeline] == 0;
        return "";
    }

  private:
    static bool is_matrix(Region region) {
        return region == Region::scores || region == Region::score_gradients;
    }

    // The query heads of a dispatch: a workgroup of dkey and dvalue has all those of its key head.
    std::pair<uint64_t, uint64_t> heads_of(const Dispatch& d) const {
        const uint64_t each =
            kinds_[d.pipeline] == Kind::transposed ? g_.p.num_heads_q / g_.p.num_heads_kv : uint64_t{1};
        return {d.cut.first[0] * each, d.groups[0] * each};
    }
    // Scratch has the matrices of the last heads that were written.
    std::string matrix_flaw(Region region, const Dispatch& d) const {
        const auto there = heads_.find(region);
        if (g_.rows() == 0 || !g_.has_keys()) return "";  // nothing to read
        return there != heads_.end() && there->second == heads_of(d) ? "" : "those of other heads";
    }
    // Anything else is written whole before it is read, and by nobody after.
    std::string whole_flaw(Region region, const Dispatch& d) const {
        bool found = false;
        for (size_t i = 0; i < done_.size(); i++) {
            if (i == d.pipeline || (g_.plan.pipelines[i].writes & bit(region)) == 0) continue;
            // The pass for dquery finishes what delta has begun, and reads it. What comes after the reader of spilled
            // dS does so for rows of which nobody needs it before.
            const bool late = kinds_[i] == Kind::dquery &&
                              core::constant_of(g_.plan.pipelines[i], "tiles") == TILE_NONFINITE;
            const bool after = late || (kinds_[d.pipeline] == Kind::dquery && kinds_[i] != Kind::delta);
            if (!done_[i] && !after)
                return fmt::format("{} has not written all of it", name_of(g_.plan.pipelines[i]));
            found = true;
        }
        return found ? "" : "nothing has written it";
    }

    const Given& g_;
    Strips strips_;
    std::vector<bool> done_;
    std::vector<size_t>
        left_;  // dispatches of each pipeline: coverage_flaw has found that they are all of its work
    std::vector<Kind> kinds_;
    uint32_t made_ = 0;
    std::map<Region, std::pair<uint64_t, uint64_t>> heads_;
};

}  // namespace

std::string flow_flaw(const Given& g) {
    // What is read of scratch must be written by someone, even where no pipeline says so.
    uint32_t read = 0, written = 0;
    uint32_t may_read = 0;  // by pipelines that the baseline has to spare
    for (const Dispatch& d : g.plan.dispatches) {
        read |= pipeline_of(g.plan, d).reads;
        written |= pipeline_of(g.plan, d).writes;
    }
    for (const Pipeline& pipeline : g.plan.pipelines) may_read |= pipeline.reads;
    constexpr uint32_t matrices = bit(Region::scores) | bit(Region::score_gradients);
    uint32_t made = bit(Region::mask_classes) | bit(Region::tile_links) | bit(Region::parts) |
                    bit(Region::parts_lse) | bit(Region::statistics) | bit(Region::accumulators) |
                    bit(Region::arguments) | bit(Region::spill) | bit(Region::tile_states);
    if (g.rows() != 0 && g.has_keys()) made |= matrices;  // else they are empty
    if (g.combine == nullptr && (read & made & ~written) != 0)
        return fmt::format("regions {:#x} are read, and nobody writes them", read & made & ~written);
    if (g.combine == nullptr && (written & made & ~may_read) != 0)
        return fmt::format("regions {:#x} are written, and nobody reads them", written & made & ~may_read);
    Machine machine(g);
    const bool baseline = is_baseline(g.plan);
    const auto readers = static_cast<size_t>(
        std::ranges::count_if(g.plan.pipelines, [](const Pipeline& x) { return reads_spill(kind_of(x)); }));
    size_t last = 0;
    for (const Dispatch& d : g.plan.dispatches) {
        if (auto flaw = machine.run(d); !flaw.empty()) return flaw;
        if (kind_of(g.plan, d) == Kind::arguments)
            continue;  // they are the plan's first, and its last pipelines
        const bool next_strip = writes(pipeline_of(g.plan, d), Region::spill) && last == d.pipeline + readers;
        if (d.pipeline < last && !baseline && !next_strip)
            return fmt::format("{} out of turn", name_of(pipeline_of(g.plan, d)));
        last = d.pipeline;
    }
    return "";
}

double cost_of_pair(const Given& g, const Pipeline& pipeline) {
    const double qk = g.p.head_dim_qk, v = g.p.head_dim_v, slices = double(tile_of(pipeline).slices);
    switch (kind_of(pipeline)) {
        case Kind::forward:  // q.k, P.v
            return 2 * (qk + v);
        case Kind::dquery:  // q.k, dout.v, dS.k
            return 2 * (qk + v + std::ceil(qk / slices));
        case Kind::dbias:  // q.k, dout.v
            return 2 * (qk + v);
        case Kind::spilled:  // dS.k
            return 2 * qk;
        case Kind::dkey_dvalue: {  // q.k; P.dout; dout.v and dS.q
            if (has_constant(pipeline, "gradients")) {
                const uint32_t gradients = constant(pipeline, "gradients");
                return 2 * (qk + (gradients & 1) * std::ceil(v / slices) +
                            (gradients >> 1) * (v + std::ceil(qk / slices)));
            }
            // Half of the slices are dkey's, and cost most.
            return slices == 1 ? 4 * (qk + v) : 2 * (qk + v + std::ceil(std::max(qk, v) / (slices / 2)));
        }
        default:
            return 0;
    }
}

namespace {

// A pipeline's workgroups, and what each costs at least.
class Costs {
  public:
    Costs(const Given& g, const Pipeline& pipeline)
        : p_(g.p),
          kind_(kind_of(pipeline)),
          t_(tile_of(pipeline)),
          parts_(parts_of(g)),
          bias_(bias_extents(g)),
          group_(kind_ == Kind::combine ? 1 : group_of(g.p, pipeline)),
          cut_(is_cut(pipeline)),
          merged_(kind_ == Kind::combine ? 2.0 * combine_of(g).head_dim_v * combine_of(g).num_parts : 0),
          pair_(cost_of_pair(g, pipeline)) {}

    double of(const Dispatch& d, const Triple& at) const {
        const double rows = double(std::min<uint64_t>(p_.seqlen_q * group_, t_.q));
        if (kind_ == Kind::arguments || kind_ == Kind::links) return 0;  // they multiply nothing
        if (kind_ == Kind::dsinks) return 2.0 * double(p_.batch) * double(p_.seqlen_q);
        if (kind_ == Kind::delta) return 2.0 * p_.head_dim_v * rows;
        if (kind_ == Kind::classes)  // of all its tiles, those at the edge being half full
            return rows / 2 * double(std::min<uint64_t>(p_.key_limit, t_.kv)) / double(d.groups[2]);
        if (kind_ == Kind::combine) return merged_ * (d.groups[1] - 1) / d.groups[1];
        if (kind_ == Kind::dbias && mask_extents(p_)[3] == 1)  // no product: a step is a row
            return double(heads_of_bias()) * (bias_[2] == 1 ? double(p_.seqlen_q) : rows);
        // 2 bytes an element, each of which takes memory as long as 60 operations.
        if (kind_ == Kind::spilled_bias)
            return double(heads_of_bias()) * double(t_.q) * double(t_.kv) * 2 * 60;
        if (kind_ == Kind::spilled) {
            const uint64_t first = at[1] % tiles_of(p_.seqlen_q, t_.q) * t_.q,
                           end = std::min<uint64_t>(first + t_.q, p_.seqlen_q);
            return pair_ * rows * double(key_tiles(p_, first, end, 1, 0, p_.key_limit).count());
        }
        return double(tiles(d, at)) * double(t_.q) * double(t_.kv) * pair_;
    }

  private:
    // Heads of all batches whose scores' gradients are summed into one element of dbias.
    uint64_t heads_of_bias() const { return (bias_[0] == 1 ? p_.batch : 1) * (p_.num_heads_q / bias_[1]); }

    // Tiles that a workgroup of a dispatch goes through at most.
    uint64_t tiles(const Dispatch& d, const Triple& at) const {
        const uint64_t rows = p_.seqlen_q * group_, all = tiles_of(rows, t_.q);
        const uint64_t first = (all - 1 - at[1]) * t_.q, end = std::min(first + t_.q, rows);
        if (kind_ == Kind::forward && parts_.span != 0 && !parts_.fixed_cuts) {
            const uint64_t own = key_tiles(p_, first / group_, (end - 1) / group_ + 1, t_.kv, 0, p_.key_limit)
                                     .count(),
                           share = parts_.shared_tiles(own, t_.kv);
            return std::min(own - std::min(own, at[2] * share), share);
        }
        if (kind_ == Kind::forward) {
            const uint64_t from = at[2] * parts_.span,
                           to = parts_.span != 0 ? from + parts_.span : p_.key_limit;
            return key_tiles(p_, first / group_, (end - 1) / group_ + 1, t_.kv, from, to).count();
        }
        const auto of_keys = [&](uint64_t tile) {
            return query_tiles(p_, tile * t_.kv, (tile + 1) * t_.kv, t_.q);
        };
        if (kind_ == Kind::dbias) return heads_of_bias() * (bias_[2] == 1 ? of_keys(at[2]).count() : 1);
        if (kind_ == Kind::dquery)
            return steps(d, 1, tiles_of(p_.seqlen_kv, t_.kv),
                         key_tiles(p_, first, end, t_.kv, 0, p_.key_limit));
        return steps(d, p_.num_heads_q / p_.num_heads_kv, all, of_keys(at[1]));
    }

    // Those of a dispatch's span. Steps are numbered head * in_head + tile.
    uint64_t steps(const Dispatch& d, uint64_t heads, uint64_t in_head, const Tiles& tiles) const {
        const uint64_t begin_step = d.cut.first_step, end_step = d.cut.end_step;
        if (!cut_ || in_head == 0) return heads * tiles.count();
        if (p_.dynamic_bounds) return std::min(heads * tiles.count(), end_step - begin_step);
        const auto before = [&](uint64_t step) {
            const uint64_t tile = std::clamp(step % in_head, tiles.begin, tiles.begin + tiles.count());
            return step / in_head * tiles.count() + (tile - tiles.begin);
        };
        return before(std::min(end_step, heads * in_head)) - before(std::min(begin_step, heads * in_head));
    }

    const Problem& p_;
    Kind kind_;
    Tile t_;
    Parts parts_;
    std::array<uint64_t, 4> bias_;
    uint64_t group_;
    bool cut_;
    double merged_, pair_;
};

}  // namespace

// Some workgroups of each dispatch, first and last included, against what it says that each costs.
std::string cost_flaw(const Given& g) {
    if (is_baseline(g.plan)) return "";
    const uint64_t limit = g.options.max_dispatch_flops;
    std::vector<Costs> costs;
    for (const Pipeline& pipeline : g.plan.pipelines) costs.emplace_back(g, pipeline);
    for (const Dispatch& d : g.plan.dispatches) {
        const std::string_view name = name_of(pipeline_of(g.plan, d));
        if (limit != 0 && d.flops > limit)
            return fmt::format("{} costs {}, the limit is {}", name, d.flops, limit);
        const double each = double(d.flops) / (double(d.groups[0]) * d.groups[1] * d.groups[2]);
        const Triple begin = begin_of(d);
        const auto some = [](uint32_t of) { return std::array<uint32_t, 3>{0, of / 2, of - 1}; };
        for (size_t y = 0; y < std::min(3u, d.groups[1]); y++)
            for (size_t z = 0; z < std::min(3u, d.groups[2]); z++)
                if (const double cost = costs[d.pipeline].of(
                        d, {begin[0], begin[1] + some(d.groups[1])[y], begin[2] + some(d.groups[2])[z]});
                    cost > each * (1 + 1e-9))
                    return fmt::format("{}: a workgroup costs {}, the dispatch says {}", name, cost, each);
    }
    return "";
}

}  // namespace vkattn::test
