// What a plan's numbers mean to the shaders, worked out from shaders/ and from the contract, not from src/plan: for
// plan_checks*.cpp.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "plan/plan.hpp"
#include "plan/tuning.hpp"
#include "plan_matrix_model.hpp"

namespace vkattn::test {

enum class Kind {
    forward,
    classes,
    combine,
    scores,
    softmax,
    output,
    delta,
    dquery,
    dkey_dvalue,
    dbias,
    gradient,
    transposed
};
// Of the backward, those that recompute tiles.
inline bool recomputes(Kind kind) {
    return kind == Kind::dquery || kind == Kind::dkey_dvalue || kind == Kind::dbias;
}
inline bool of_backward(Kind kind) {
    return kind == Kind::delta || recomputes(kind);
}

struct ModuleFacts {
    Kind kind;
    VkattnDtype dtype;  // of the storage
    VkattnDtype
        operands;  // of the products; differs from dtype in the matrix kernel for float32 storage only
    bool rows_kernel;
    bool packed_words;  // 16-bit elements through the 32-bit word that they share
    bool matrix_kernel;
    bool rounded_accumulators, conversions, bias, running;  // macros of the matrix kernel's module
    bool dot;                                               // products are 16-bit dot products
    bool turned;                                            // products on matrix units are turned round
};
// By the module's name; throws if it is of no known form.
const ModuleFacts& facts_of(core::Module module);

// The pipeline of a dispatch; throws if the plan has no such pipeline.
inline const core::Pipeline& pipeline_of(const core::Plan& plan, const core::Dispatch& d) {
    return plan.pipelines.at(d.pipeline);
}
inline Kind kind_of(const core::Pipeline& pipeline) {
    return facts_of(pipeline.module).kind;
}
inline Kind kind_of(const core::Plan& plan, const core::Dispatch& d) {
    return kind_of(pipeline_of(plan, d));
}
inline std::string_view name_of(const core::Pipeline& pipeline) {
    return core::name_of(pipeline.module);
}

// Constants by their names.
using Values = std::map<std::string_view, uint32_t>;
Values constants_of(const core::Pipeline& pipeline);
// One of them; throws if the kernel has none of this name.
uint32_t constant(const core::Pipeline& pipeline, std::string_view name);

// A member of a kernel's push constants; null if it has none of this name.
const core::FieldInfo* find_field(core::Kernel kernel, std::string_view name);

// The push constants as those of kernel K; throws if the pipeline is of another one.
template <class K>
typename K::Push push_of(const core::Pipeline& pipeline) {
    if (core::info_of(pipeline.module).kernel != K::id)
        throw std::runtime_error("push constants of another kernel");
    typename K::Push push;
    static_assert(sizeof push <= sizeof pipeline.push);
    std::memcpy(&push, pipeline.push.data(), sizeof push);
    return push;
}

uint64_t round_up(uint64_t x, uint64_t to);
inline uint64_t tiles_of(uint64_t x, uint64_t tile) {
    return round_up(x, tile) / tile;
}

// The forward's grid, and what it is about.
struct Model {
    core::TileNumbers n;                // all 0 where the matrix kernel is used
    std::optional<MatrixModel> matrix;  // of the matrix kernel
    uint32_t tile_q = 0, tile_kv = 0;
    uint32_t pool_vec4 = 0;  // shared memory, which workgroup_flaw compares with the shaders' maps
    uint64_t slices =
        1;  // workgroups that share a head's query tile, each with its own head dims of the output
    uint64_t group = 1;  // heads whose rows share a tile
    uint64_t heads = 0, query_tiles = 0, key_tiles = 0;
    uint64_t rows = 0;            // of the lse
    uint64_t begin = 0, end = 0;  // keys that some row may see
    uint64_t span = 0;            // keys in a part; 0: not cut
    uint64_t first_part = 0, parts = 1;
    bool classified = false;
};
// From the forward's pipeline, which all its dispatches have.
Model model_of(const core::Problem& problem, const core::Plan& plan);

// Tiles of keys that a workgroup goes through at most.
uint64_t key_tiles_of(const core::Problem& problem, const Model& model, uint64_t query_tile, uint64_t part);

bool needs_arguments(const core::Problem& problem);
// In bytes, in the order batch, head, seq of query, key, value, out.
std::array<uint64_t, 12> stride_bytes(const core::Problem& problem);
// In elements: batch, head, seq.
std::array<uint64_t, 3> mask_strides(const core::Problem& problem);
// Heads that have classes of their own. Tiles of all heads that share a class must read the same mask head, or the same
// ones.
uint64_t class_heads(const core::Problem& problem, const Model& model);
// The extents of a mask, aligned to batch, num_heads_q, seqlen_q, seqlen_kv.
std::array<uint64_t, 4> mask_extents(const core::Problem& problem);

// The combine that merges a plan's parts.
core::Combine combine_of(const core::Problem& problem, const Model& model);

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
