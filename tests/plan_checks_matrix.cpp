// These checks judge plans of the matrix kernel: that shaders/forward_matrix.comp can work with the numbers, that the
// device has such a matrix unit, and that every constant is right.
#include <algorithm>
#include <bit>
#include <numeric>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_checks.hpp"
#include "plan_model.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::DeviceCaps;
using core::Pipeline;
using core::Plan;
using core::Problem;

// Beside the pool there are two flags of the first loop, the flag of odd results, and a bit for each key of a tile.
uint64_t shared_bytes_of(const MatrixModel& model) {
    return uint64_t{model.pool} * 16 + 4 * (3 + tiles_of(model.tuning.tile_kv, 32));
}

// The shape must be one of the device's, and fit the shaders' offsets in vec4 and their words of 32 keys.
std::string shape_flaw(const DeviceCaps& caps, const Plan& plan, const MatrixModel& model,
                       const core::MatrixShape*& shape) {
    const auto found = std::find_if(caps.matrices.begin(), caps.matrices.end(), [&](const auto& s) {
        return s.m == model.m && s.n == model.n && s.k == model.k && s.dtype == plan.operands;
    });
    if (found == caps.matrices.end())
        return fmt::format("no unit multiplies {} x {} x {}", model.m, model.n, model.k);
    shape = &*found;
    if (model.m % 8 != 0 || model.n % 8 != 0 || model.k % 8 != 0 || 32 % model.n != 0)
        return "the shape does not lie in whole vec4";
    if (model.m * model.n % (2 * model.subgroup_size) != 0)
        return "an invocation has no whole pairs of elements";
    const uint32_t layout = model.tuning.turned != 0 ? found->turned_layout : found->layout;
    if (model.layout != (plan.kernel == "matrix_khr" ? 0 : layout)) return "layout";
    return "";
}

std::string subgroup_flaw(const DeviceCaps& caps, const MatrixModel& model) {
    const bool fixed = caps.min_subgroup_size == caps.max_subgroup_size;
    if (!caps.full_subgroups) return "subgroups may be partly empty";
    if (!fixed && !caps.subgroup_size_control) return "subgroups may have several sizes";
    if (model.subgroup_size < caps.min_subgroup_size || model.subgroup_size > caps.max_subgroup_size)
        return fmt::format("subgroups of {}", model.subgroup_size);
    if (model.threads != model.tuning.subgroups * model.subgroup_size) return "threads against subgroups";
    if (model.threads > caps.max_invocations || model.threads > caps.max_workgroup_size[0])
        return fmt::format("{} invocations", model.threads);
    return "";
}

// The way in which P becomes the left operand must be one that unit, layout and storage allow.
std::string move_flaw(const DeviceCaps& caps, const Problem& p, const MatrixModel& model,
                      const core::MatrixShape& shape) {
    const MatrixTuning& t = model.tuning;
    const bool alike = model.n == model.k, f32 = p.dtype == VKATTN_DTYPE_FLOAT32;
    if (t.turned > 1) return "not a boolean";
    if (t.turned == 1)
        return model.layout != 0 && model.m == model.n && alike && t.move == MOVE_FRAGMENT && !f32
                   ? ""
                   : "turned products of other shapes or types";
    switch (t.move) {
        case MOVE_FRAGMENT:
            return alike && model.layout != 0 && shape.left_alike ? ""
                                                                  : "P has another layout than its operand";
        case MOVE_CONVERT:
            return alike && caps.matrix_conversions && !f32 ? "" : "the device converts no matrices";
        case MOVE_SHARED:
            return shape.rounded && !f32 ? "" : "the unit has no 16-bit accumulators";
        case MOVE_SHARED_FLOAT:
            return "";
        default:
            return "no way to move P";
    }
}

// The first loop has its offsets from a tile's scores and does not take head dims in chunks.
std::string loop_flaw(const Problem& p, const MatrixModel& model, const core::Options& options) {
    const MatrixTuning& t = model.tuning;
    if (t.running > 1 || t.rolled > 1) return "not a boolean";
    if (t.running == 0 && options.batch_invariant) return "offsets of other rows in a row's bits";
    if (t.running == 0 && model.chunks != 1)
        return "chunks of head dims in the loop without a running maximum";
    if (t.running == 0 && p.mask != VKATTN_MASK_NONE && t.move != MOVE_FRAGMENT)
        return "a mask in the loop without a running maximum, and P does not stay in registers";
    if (t.halves == 1) return "";
    const bool whole = t.tile_kv % (2 * model.n) == 0 && t.tile_kv % (2 * model.k) == 0;
    if (t.halves != 2 || !whole || t.running != 0 || t.move >= MOVE_SHARED) return "halves of a tile";
    return "";
}

// Tiles and constants must agree with the text of the tuning.
std::string numbers_flaw(const MatrixModel& model) {
    const MatrixTuning& t = model.tuning;
    if (t.tile_kv % model.n != 0 || t.tile_kv % model.k != 0) return "a tile of keys is not whole";
    if (model.chunk % model.k != 0) return "a chunk is not whole";
    const uint32_t most = model.qk_steps * model.k;
    const uint32_t chunk =
        t.chunk == 0 ? most : std::min(most, std::max(model.k, t.chunk / model.k * model.k));
    if (model.chunk != chunk) return fmt::format("chunks of {}, not {}", model.chunk, chunk);
    // The part of Q that is held stays the same for every chunk, so there is none where chunks are several.
    const uint32_t held = model.chunks > 1 ? 0 : std::min(model.chunk_steps, t.q_held / model.k);
    if (model.q_held != held) return fmt::format("{} steps of Q are held, not {}", model.q_held, held);
    return "";
}

std::string slices_flaw(const Problem& p, const MatrixModel& model) {
    const uint64_t span = model.out_span, v = p.head_dim_v, wanted = model.tuning.slice;
    if (span * model.slices < v) return "slices leave head dims out";
    if (span * (model.slices - 1) >= v) return "an empty slice";
    if (wanted == 0 || wanted >= v) return model.slices == 1 ? "" : "slices that nobody wants";
    return span < wanted + model.n ? "" : "a slice has more head dims than the tuning says";
}

std::string pool_flaw(const DeviceCaps& caps, const Plan& plan, const MatrixModel& model) {
    const uint64_t map = end_of_matrix_map(model, model.tuning.tile_kv, model.tuning.move);
    // Shares are at most a row of a step of Q or of a tile of the output, made odd, and one vec4 more.
    const uint64_t shares = uint64_t{model.subgroups} * model.m * (std::max(model.k / 8, model.n / 4) + 2);
    if (model.pool < map) return fmt::format("a pool of {} vec4, the map ends at {}", model.pool, map);
    if (model.pool > std::max(map, shares)) return fmt::format("a pool of {} vec4 is too large", model.pool);
    if (uint64_t{model.pool} * 16 != plan.tiles.shared_bytes) return "shared bytes against the pool";
    if (shared_bytes_of(model) > caps.max_shared_bytes)
        return fmt::format("{} bytes of shared memory", shared_bytes_of(model));
    return "";
}

Values forward_constants(const Problem& p, const Model& m, const Pipeline& pipeline) {
    const MatrixModel& model = *m.matrix;
    const MatrixTuning& t = model.tuning;
    Values values = problem_constants(p, m);
    for (const char* choice : {"packed_heads", "far_rows"}) values[choice] = constant(pipeline, choice);
    if (p.alignment_bytes >= 16) values["load_bytes"] = 16;
    values["threads"] = t.subgroups * model.subgroup_size;
    values["is_split"] = m.span != 0;
    values["slices"] = model.slices;  // these are judged by flaws of their own
    values["pool_vec4"] = model.pool;
    values["subgroup_size"] = model.subgroup_size;
    values["row_blocks"] = t.row_blocks;
    values["tile_kv"] = t.tile_kv;
    values["chunk"] = model.chunk;
    values["q_held_steps"] = model.q_held;
    values["matrix_m"] = model.m;
    values["matrix_n"] = model.n;
    values["matrix_k"] = model.k;
    values["p_move"] = t.move;
    values["element_layout"] = model.layout;
    values["p_exchanged"] = t.turned != 0 && model.exchanges;
    values["halves"] = t.halves;
    values["mask_row_bytes"] = unit_of_mask_rows(p);
    values["l2_group_kib"] = t.l2_group_kib;
    values["min_group_workgroups"] = t.min_group_workgroups;
    return values;
}

// mask_classes.comp may have any workgroup, since its invocations go through a tile together. One that is no power of
// two would leave a part of a subgroup idle.
std::string classes_constants_flaw(const DeviceCaps& caps, const Problem& p, const Model& m,
                                   const Pipeline& pipeline) {
    const uint32_t threads = constant(pipeline, "threads");
    if (!std::has_single_bit(threads) || threads > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("{} invocations", threads);
    Values values = problem_constants(p, m);
    for (const char* choice : {"packed_heads", "far_rows"}) values[choice] = constant(pipeline, choice);
    values["threads"] = threads;
    values["tile_q"] = m.tile_q;
    values["tile_kv"] = m.tile_kv;
    return constants_flaw(pipeline, values);
}

// The macros of the module must be those that the numbers need. BIAS is for float masks of 16 bits in narrow rows,
// which tiles of the first loop begin with.
std::string macros_flaw(const Problem& p, const Plan& plan, const MatrixModel& model,
                        const Pipeline& pipeline) {
    const ModuleFacts facts = facts_of(pipeline.module);
    const MatrixTuning& t = model.tuning;
    const bool bias = p.mask == VKATTN_MASK_FLOAT && p.dtype != VKATTN_DTYPE_FLOAT32 &&
                      !terms_change_every_score(p) && t.running == 0 && t.move == MOVE_FRAGMENT &&
                      constant(pipeline, "far_rows") == 0;
    if (!facts.matrix_kernel) return fmt::format("{} in a plan of the matrix kernel", name_of(pipeline));
    if (facts.operands != plan.operands || facts.bias != bias || facts.running != (t.running != 0) ||
        facts.conversions != (t.move == MOVE_CONVERT) ||
        facts.rounded_accumulators != (t.move == MOVE_SHARED) || facts.turned != (t.turned != 0))
        return fmt::format("{} is another module than the numbers need", name_of(pipeline));
    return "";
}

std::string pipeline_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan, const Model& m,
                          const Pipeline& pipeline) {
    if (std::string flaw = module_flaw(caps, p.dtype, pipeline.module); !flaw.empty()) return flaw;
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::combine) return "";
    if (kind != Kind::forward && kind != Kind::classes) return "a module of another kernel";
    if (std::string flaw = form_flaw(pipeline, m.matrix->tuning.rolled); !flaw.empty()) return flaw;
    if (std::string flaw = choices_flaw(p, m, pipeline); !flaw.empty()) return flaw;
    if (kind == Kind::classes) return classes_constants_flaw(caps, p, m, pipeline);
    if (std::string flaw = macros_flaw(p, plan, *m.matrix, pipeline); !flaw.empty()) return flaw;
    return constants_flaw(pipeline, forward_constants(p, m, pipeline));
}

// This judges what the constants of the forward's pipeline decide for the others.
std::string model_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan, const MatrixModel& model,
                       const core::Options& options) {
    if (model.tile_q == 0) return "a number is 0";
    const core::Tiles& tiles = plan.tiles;
    if (tiles.tile_q != model.tile_q || tiles.tile_kv != model.tuning.tile_kv ||
        tiles.threads != model.threads)
        return "tiles against constants";
    const core::MatrixShape* shape = nullptr;
    std::string flaw = shape_flaw(caps, plan, model, shape);
    if (flaw.empty()) flaw = subgroup_flaw(caps, model);
    if (flaw.empty()) flaw = numbers_flaw(model);
    if (flaw.empty()) flaw = slices_flaw(p, model);
    if (flaw.empty()) flaw = move_flaw(caps, p, model, *shape);
    if (flaw.empty()) flaw = loop_flaw(p, model, options);
    if (flaw.empty()) flaw = pool_flaw(caps, plan, model);
    if (flaw.empty() && model.exchanges != (model.tuning.turned != 0 && shape->exchanges))
        flaw = "who exchanges P";
    if (!flaw.empty()) return flaw;
    const bool rounded_out =
        p.dtype != VKATTN_DTYPE_FLOAT32 && !model.split && model.tuning.move != MOVE_SHARED_FLOAT;
    return share_flaw(model, rounded_out);
}

}  // namespace

std::string matrix_workgroup_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan,
                                  const core::Options& options) {
    const VkattnDtype asked = options.precision == VKATTN_PRECISION_FLOAT16    ? VKATTN_DTYPE_FLOAT16
                              : options.precision == VKATTN_PRECISION_BFLOAT16 ? VKATTN_DTYPE_BFLOAT16
                                                                               : p.dtype;
    if (plan.operands != asked || asked == VKATTN_DTYPE_FLOAT32)
        return fmt::format("operands of {}", core::name_of(plan.operands));
    const MatrixModel model = matrix_model_of(p, plan);
    if (options.tuning.empty() && (model.tuning.rolled != 0) != (caps.type == core::DeviceType::cpu))
        return "the module of another type of device";
    if (plan.dispatches.empty()) return p.empty_output() ? "" : "no work";
    if (auto flaw = model_flaw(caps, p, plan, model, options); !flaw.empty()) return flaw;
    const Model m = model_of(p, plan);
    for (const Pipeline& pipeline : plan.pipelines)
        if (auto flaw = pipeline_flaw(caps, p, plan, m, pipeline); !flaw.empty())
            return fmt::format("{}: {}", name_of(pipeline), flaw);
    return "";
}

}  // namespace vkattn::test
