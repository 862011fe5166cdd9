// Reading a plan: constants, push constants and patches by the names of the kernels' interfaces, the kind of a pipeline
// by what it is given and what it writes, its tile by its constants. Written from the contract and from shaders/, not
// from src/plan. No kernel is known by its name here.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"
#include "plan/tuning.hpp"

namespace vkattn::test {

// What a check looks at. A forward has neither `backward` nor `combine`; of a combine the problem says nothing.
struct Given {
    const core::DeviceCaps& caps;
    const core::Problem& p;
    const core::Backward* backward;
    const core::Combine* combine;
    const core::Plan& plan;
    const core::Options& options;
    mutable std::map<std::string, uint32_t> numbers{};  // of tuning(), once they have been read

    // The numbers of the plan's tuning; throws as values_in does.
    const std::map<std::string, uint32_t>& tuning() const;
    uint64_t heads() const { return uint64_t{p.batch} * p.num_heads_q; }
    uint64_t key_heads() const { return uint64_t{p.batch} * p.num_heads_kv; }
    uint64_t rows() const { return heads() * p.seqlen_q; }
    bool has_keys() const { return key_heads() * p.seqlen_kv != 0; }
};

// The part that a pipeline has in attention. Its fields and what it writes tell it, whatever the kernel is called.
enum class Kind {
    forward,
    classes,
    links,
    combine,
    decoding,  // of keys or values: plan_checks_decoding.hpp
    delta,
    dquery,
    dkey_dvalue,
    spilled,       // dquery from dS that the pass for dkey has spilled
    spilled_bias,  // dbias from dS that was spilled
    dbias,
    dsinks,
    scores,    // the four of the baseline, which has the scores as a matrix
    in_place,  // a row a workgroup
    product,
    transposed,
    arguments,  // a part of the argument block
    none
};
Kind kind_of(const core::Pipeline& pipeline);
// Passes of the backward that walk through tiles.
inline bool walks(Kind kind) {
    return kind == Kind::dquery || kind == Kind::dkey_dvalue || kind == Kind::spilled || kind == Kind::dbias;
}

// Passes that read dS which the pass for dkey has spilled.
inline bool reads_spill(Kind kind) {
    return kind == Kind::spilled || kind == Kind::spilled_bias;
}

// The pipeline of a dispatch; throws if the plan has no such pipeline.
inline const core::Pipeline& pipeline_of(const core::Plan& plan, const core::Dispatch& d) {
    return plan.pipelines.at(d.pipeline);
}
inline Kind kind_of(const core::Plan& plan, const core::Dispatch& d) {
    return kind_of(pipeline_of(plan, d));
}
// Dispatches of this kind.
size_t count_of(const core::Plan& plan, Kind kind);
inline std::string_view name_of(const core::Pipeline& pipeline) {
    return core::name_of(core::in_gpu_form(pipeline.module));
}
inline bool needs(const core::Pipeline& pipeline, core::Need need) {
    return (core::needs_of(pipeline.module) & need) != 0;
}
inline bool on_matrices(const core::Pipeline& pipeline) {
    return needs(pipeline, core::NEED_MATRIX);
}
bool on_matrices(const core::Plan& plan);
// Whether the module is compiled with the macro that this part of its name stands for: "_turned", "_bias".
bool has_part(const core::Module& module, std::string_view part);

// Constants by their names.
using Values = std::map<std::string_view, uint32_t>;
Values constants_of(const core::Pipeline& pipeline);
bool has_constant(const core::Pipeline& pipeline, std::string_view name);
// One of them; throws if the kernel has none of this name.
uint32_t constant(const core::Pipeline& pipeline, std::string_view name);
// The same as a divisor; throws if it is 0.
uint64_t divisor(const core::Pipeline& pipeline, std::string_view name);

// A member of a kernel's push constants; null if it has none of this name.
const core::FieldInfo* find_field(core::Kernel kernel, std::string_view name);
const core::FieldInfo* find_field(const core::Pipeline& pipeline, std::string_view name);
// Words of a field; throws if there is none.
std::vector<uint32_t> words_in(const core::Pipeline& pipeline, std::string_view field);
// What the address in a field is patched with; null if it is not.
const core::Patch* find_patch(const core::Pipeline& pipeline, std::string_view field);

inline uint64_t round_up(uint64_t x, uint64_t to) {
    if (to == 0) throw std::runtime_error("a tile of nothing");
    return (x + to - 1) / to * to;
}
inline uint64_t tiles_of(uint64_t x, uint64_t tile) {
    return round_up(x, tile) / tile;
}

// The numbers of a plan's tuning, by name; throws if the text has another form.
std::map<std::string, uint32_t> values_in(const std::string& text);
// A number for this pipeline: that of its pass ("q_walked") or, without one, that of all; null if the text has neither.
const uint32_t* number_of(const std::map<std::string, uint32_t>& tuning, const core::Pipeline& pipeline,
                          std::string_view name);

// Rows and keys of a workgroup's tile, and how many workgroups share a result, each with its own head dims.
struct Tile {
    uint64_t q, kv, slices;
};
Tile tile_of(const core::Pipeline& pipeline);
// Query heads whose rows share a tile.
uint64_t group_of(const core::Problem& problem, const core::Pipeline& pipeline);

// Whether a pass's loops are cut into dispatches, which pass their accumulators on.
bool is_cut(const core::Pipeline& pipeline);
bool is_cut(const core::Plan& plan);

// How a forward's keys are cut: keys of a part at most (0: not cut), and the parts that exist.
struct Parts {
    uint64_t span = 0, first = 0, count = 1;
    bool fixed_cuts = false;  // each part has `span` keys, counted from key 0
    // Otherwise the parts share the tiles of keys that a query tile goes through: how many each has, of `all`.
    uint64_t shared_tiles(uint64_t all, uint64_t tile) const {
        return std::max(tiles_of(all, count), std::min(span / tile, tiles_of(LEAST_KEYS_OF_SPLIT, tile)));
    }
};
Parts parts_of(const Given& g);
inline uint32_t slopes_kind(const core::Problem& p) {
    const bool distance = p.slopes_apply == VKATTN_SLOPES_APPLY_DISTANCE;
    return p.slopes == VKATTN_SLOPES_NONE ? SLOPES_NONE : distance ? SLOPES_DISTANCE : SLOPES_MASK;
}
// A part tells so many bytes of a row: row_max, row_sum and, where scores are shifted, by how much.
inline uint64_t bytes_of_statistics(const Given& g) {
    return slopes_kind(g.p) == SLOPES_DISTANCE ? 12 : 8;
}
// The merge of a plan's parts, or the one that the plan is.
core::Combine combine_of(const Given& g);

// Tiles of the other sequence.
struct Tiles {
    uint64_t begin, end;
    uint64_t count() const { return end > begin ? end - begin : 0; }
};
// Those that rows first .. end-1 of a head go through, of the keys `from` .. `to`-1. Where bounds are the batch's own,
// as many as there can be.
Tiles key_tiles(const core::Problem& p, uint64_t first, uint64_t end, uint64_t tile, uint64_t from,
                uint64_t to);
Tiles query_tiles(const core::Problem& p, uint64_t first, uint64_t end, uint64_t tile);
// Keys that some row may see, each of them once.
Tiles visible_keys(const core::Problem& p);

// In elements: batch, head, seq; in bytes. 0 without a mask.
std::array<uint64_t, 3> mask_strides(const core::Problem& problem);
// The extents of a mask, aligned to batch, num_heads_q, seqlen_q, seqlen_kv; 1 without one.
std::array<uint64_t, 4> mask_extents(const core::Problem& problem);
// Extents of the gradient of the mask; 0 if it is not wanted.
std::array<uint64_t, 4> bias_extents(const Given& g);
// Masks of which tiles are classified by this pipeline.
uint64_t class_heads(const core::Problem& problem, uint64_t group);
uint64_t class_batches(const core::Problem& problem);
bool is_classified(const core::Plan& plan);
// Returns the pass that finds dquery from spilled dS, or null.
const core::Pipeline* reader_of(const core::Plan& plan);
// Scratch holds dS of so many kv heads and steps of each at a time, as the push constants of its reader tell.
struct Strip {
    uint64_t heads, steps;
};
Strip strip_of(const core::Plan& plan);
inline bool writes(const core::Pipeline& pipeline, core::Region region) {
    return (pipeline.writes & core::bit(region)) != 0;
}
inline bool skips_tiles(const core::Problem& p) {
    return p.mask != VKATTN_MASK_NONE || p.block_map != 0;
}
// Returns the pass for links that a pipeline follows, or null. follower_of() returns the first pipeline that follows
// such a pass, or null.
const core::Pipeline* links_of(const core::Plan& plan, const core::Pipeline& follower);
const core::Pipeline* follower_of(const core::Plan& plan, const core::Pipeline& links);

// Returns the bytes of an element or, if the type has blocks, of a block.
uint32_t bytes_of(VkattnDtype dtype);
bool has_blocks(VkattnDtype dtype);
// Returns the type of the tensor, or of the gradient, that the region holds.
VkattnDtype dtype_of(const core::Problem& p, core::Region region);
VkattnDtype dtype_of_mask(const core::Problem& p);
bool has_own_types(const core::Problem& p);  // some operand is not of the problem's type
// In bytes, in the order batch, head, seq.
std::array<uint64_t, 3> stride_bytes(const VkattnStrides& s, VkattnDtype dtype);
// Of a tensor that the region holds, of the problem or of its gradients; throws for other regions.
const VkattnStrides& strides_of(const Given& g, core::Region region);
uint32_t head_dim_of(const core::Problem& p, core::Region region);

bool needs_arguments(const core::Problem& problem);

// Boxes of workgroups against the box that they must cover exactly once. Not by enumeration: the number of boxes over
// a place is known by its mixed differences, which are the signed corners of the boxes; sums of hashes stand for them.
class Cover {
  public:
    using Triple = std::array<uint64_t, 3>;
    void add(const Triple& first, const Triple& count) { sum_ += corners(first, count); }
    bool is(const Triple& first, const Triple& count) const { return sum_ == corners(first, count); }

  private:
    static uint64_t corners(const Triple& first, const Triple& count);
    uint64_t sum_ = 0;
};
using Triple = Cover::Triple;

// Where a dispatch begins in its pipeline's whole grid, and its workgroups.
inline Triple begin_of(const core::Dispatch& d) {
    return {d.cut.first[0], d.cut.first[1], d.cut.first[2]};
}
inline Triple groups_of(const core::Dispatch& d) {
    return {d.groups[0], d.groups[1], d.groups[2]};
}

}  // namespace vkattn::test
