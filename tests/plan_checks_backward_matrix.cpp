// These checks judge plans of the backward on matrix units: that shaders/backward_matrix_*.comp can work with the
// numbers, that the device has such a matrix unit, and that every constant is right.
#include <algorithm>

#include <fmt/format.h>

#include "plan_backward_model.hpp"
#include "plan_checks.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Backward;
using core::DeviceCaps;
using core::Pipeline;
using core::Plan;
using core::Problem;

// The text of a plan's tuning.
using Tuning = std::map<std::string, uint32_t>;

constexpr const char* names_of_pass[] = {"subgroups", "row_blocks", "walked", "stages", "slices"};

// A number of the pass: `q_`, `kv_` or `mask_` and its name. The pass for dbias has no stages and slices.
uint32_t number(const Tuning& tuning, const Pipeline& pipeline, const std::string& name) {
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::dbias && (name == "stages" || name == "slices")) return 1;
    return tuning.at((kind == Kind::dquery ? "q_" : kind == Kind::dbias ? "mask_" : "kv_") + name);
}

std::string tuning_flaw(const Tuning& tuning) {
    for (const char* pass : {"q_", "kv_"})
        for (const char* name : names_of_pass)
            if (!tuning.contains(std::string(pass) + name))
                return fmt::format("tuning without {}{}", pass, name);
    for (const char* name :
         {"kv_apart", "kv_paired", "mask_subgroups", "mask_row_blocks", "mask_walked", "mask_chunks",
          "l2_group_kib", "min_group_workgroups", "rolled", "move", "turned", "q_v_staged"})
        if (!tuning.contains(name)) return fmt::format("tuning without {}", name);
    return tuning.size() == 22 ? "" : "more numbers than the kernels have";
}

// True if the products are turned round: lib/backward_matrix_turned.glsl.
bool is_turned(const Pipeline& pipeline) {
    return facts_of(pipeline.module).turned;
}

// True if masks are staged in shared memory, as lib/backward_matrix.glsl says.
bool stages_masks(const Problem& p, const Pipeline& pipeline) {
    return p.mask == VKATTN_MASK_FLOAT && p.dtype != VKATTN_DTYPE_FLOAT32 && !is_turned(pipeline) &&
           constant(pipeline, "p_move") == MOVE_FRAGMENT && constant(pipeline, "mask_row_bytes") == 16;
}

// Returns where the map of a pass with turned products ends, in vec4. The map has two buffers, each with the walked
// rows, with the same transposed, and with numbers; then what of dout no register holds, or weights of pairs of
// subgroups. A row in a buffer is an odd number of 8 bytes.
uint64_t end_of_turned_map(const Problem& p, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    const uint64_t n = of("matrix_n"), walked = of("walked"), block = std::max(n, of("matrix_k"));
    const auto columns = [&](uint64_t head_dim) { return round_up(head_dim, n * of("slices")); };
    const auto row = [&](uint64_t head_dim) {
        return std::max(round_up(head_dim, of("matrix_k")), columns(head_dim)) / 4 | 1;
    };
    const bool of_keys = kind_of(pipeline) == Kind::dkey_dvalue;
    uint64_t end =
        walked * (row(p.head_dim_qk) + row(p.head_dim_v)) + columns(p.head_dim_qk) * (walked / 4 | 1);
    if (kind_of(pipeline) == Kind::dquery && of("v_staged_steps") != 0)
        end += of("threads") / of("subgroup_size") * of("row_blocks") * of("matrix_m") *
               (of("v_staged_steps") * of("matrix_k") / 8 | 1);
    if (of_keys) end += columns(p.head_dim_v) * (walked / 4 | 1) + 3 * walked / 2;
    if (!of_keys || of("paired") == 0) return end;
    const uint64_t pairs = of("threads") / of("subgroup_size") / 2;
    return end + (walked > block ? 2 : 1) * pairs * of("row_blocks") * block * of("matrix_m") / 4;
}

// The map of the pool, written from lib/backward_matrix.glsl: two buffers of walked rows, places, scratch, masks,
// weights; of the pass for dbias without the shares of subgroups.
uint64_t end_of_map(const Problem& p, const Pipeline& pipeline) {
    if (is_turned(pipeline)) return end_of_turned_map(p, pipeline);
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    const uint64_t m = of("matrix_m"), n = of("matrix_n"), k = of("matrix_k"), walked = of("walked");
    const auto stride = [&](uint64_t head_dim) {  // in vec4 of eight elements, odd
        const uint64_t span = round_up(head_dim, n * of("slices"));
        return tiles_of(std::max(round_up(head_dim, k), span), 8) | 1;
    };
    const uint64_t numbers = kind_of(pipeline) == Kind::dkey_dvalue ? 3 * walked / 4 : 0;
    const uint64_t block = m * (n / 4 | 1);
    uint64_t end = 2 * (walked * (stride(p.head_dim_qk) + stride(p.head_dim_v)) + numbers);
    const bool known = of("element_layout") != 0, shared = of("p_move") >= MOVE_SHARED;
    const uint64_t subgroups = of("threads") / of("subgroup_size"), held = of("row_blocks") * m;
    if (!known) end += tiles_of(std::max(m, n), 4);  // 0, 1, 2 ..
    if (kind_of(pipeline) == Kind::dbias) return end;
    if (!known || shared) {
        const uint64_t p_at = of("p_move") == MOVE_SHARED ? 0 : block;
        const uint64_t p_end = p_at + (shared ? m * (std::max(n, k) / 8 | 1) : 0);
        end += subgroups * std::max(p_end, block);
    }
    const bool of_keys = kind_of(pipeline) == Kind::dkey_dvalue;
    if (stages_masks(p, pipeline)) {
        const uint64_t rows = of_keys ? walked : held, keys = of_keys ? held : walked;
        end += subgroups * rows * (tiles_of(keys, 8) | 1);
    }
    if (!of_keys || of("paired") == 0) return end;
    const uint64_t rows_at_a_time = std::max(n, k);  // of their weights, in turns if a tile has more
    return end + (walked > rows_at_a_time ? 2 : 1) * subgroups / 2 * of("row_blocks") * (rows_at_a_time / n) *
                     block;
}

std::string pool_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    const uint64_t pool = of("pool_vec4"), map = end_of_map(p, pipeline), m = of("matrix_m");
    const uint64_t subgroups = of("threads") / of("subgroup_size");
    // A share holds a step of the held rows, or a matrix of floats, or two numbers for each row.
    const uint64_t least = m * std::max({of("matrix_k") / 8 + 1, of("matrix_n") / 4 + 1, uint64_t{1}});
    if (kind_of(pipeline) ==
        Kind::dbias) {  // a share holds two steps of a block of rows, or a matrix of floats
        const uint64_t share = m * std::max(of("matrix_k") / 4 + 1, of("matrix_n") / 4 | 1);
        if (pool != map + subgroups * share)
            return fmt::format("a pool of {} vec4, the map ends at {}", pool, map);
        return pool * 16 + 16 > caps.max_shared_bytes ? "shared memory" : "";
    }
    if (pool < map) return fmt::format("a pool of {} vec4, the map ends at {}", pool, map);
    if (pool / subgroups < least) return "a share of the pool is too small";
    if (pool > std::max(map, subgroups * m * (std::max(of("matrix_k") / 8, of("matrix_n") / 4) + 2)))
        return fmt::format("a pool of {} vec4 is too large", pool);
    // Beside it lie two flags and a bit for each key of a tile.
    if (pool * 16 + 8 + 4 * tiles_of(pass_tile(pipeline).kv, 32) > caps.max_shared_bytes)
        return "shared memory";
    if (kind_of(pipeline) == Kind::dquery && pool * 16 != plan.tiles.shared_bytes)
        return "shared bytes against the pool";
    return "";
}

std::string shape_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return constant(pipeline, name); };
    const uint32_t m = of("matrix_m"), n = of("matrix_n"), k = of("matrix_k"), subgroup = of("subgroup_size");
    const auto shape = std::find_if(caps.matrices.begin(), caps.matrices.end(), [&](const auto& s) {
        return s.m == m && s.n == n && s.k == k && s.dtype == plan.operands;
    });
    if (shape == caps.matrices.end()) return fmt::format("no unit multiplies {} x {} x {}", m, n, k);
    if (m % 8 != 0 || n % 8 != 0 || k % 8 != 0 || m * n % (2 * subgroup) != 0) return "shape";
    if (!caps.full_subgroups) return "subgroups may be partly empty";
    if (caps.min_subgroup_size != caps.max_subgroup_size && !caps.subgroup_size_control)
        return "subgroups may have several sizes";
    if (subgroup < caps.min_subgroup_size || subgroup > caps.max_subgroup_size) return "subgroup size";
    const bool turned = is_turned(pipeline);
    const bool khr = plan.kernel == "matrix_khr";
    const uint32_t layout = khr ? 0 : turned ? shape->turned_layout : shape->layout;
    if (of("element_layout") != layout) return "layout";
    if (turned && (layout == 0 || of("p_exchanged") != (shape->exchanges ? 1 : 0)))
        return "no layout for turned products";
    const uint32_t move = of("p_move");
    const bool f32 = p.dtype == VKATTN_DTYPE_FLOAT32;
    if (turned && (move != MOVE_FRAGMENT || f32)) return "turned products keep P in registers, in 16 bits";
    if (move == MOVE_FRAGMENT && !turned && (n != k || layout == 0 || !shape->left_alike))
        return "P has another layout than its operand";
    if (move == MOVE_SHARED && (!shape->rounded || f32)) return "the unit has no 16-bit accumulators";
    return move == MOVE_CONVERT || move > MOVE_SHARED_FLOAT ? "no way to move P" : "";
}

std::string walk_flaw(const DeviceCaps& caps, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return constant(pipeline, name); };
    const uint32_t block = std::max(of("matrix_n"), of("matrix_k"));
    if (of("threads") > std::min(caps.max_invocations, caps.max_workgroup_size[0]))
        return fmt::format("{} invocations", of("threads"));
    if (of("walked") % (block * of("stages")) != 0) return "a stage is no whole number of blocks";
    if (of("walked") > of("threads")) return "more walked rows than invocations that load their numbers";
    if (kind_of(pipeline) == Kind::dbias && (of("chunks") == 0 || of("chunks") % 2 != 0))
        return "chunks do not take turns with two buffers";
    return "";
}

// Returns the way of P that a pass is told. The products for dbias are never turned, so that with `turned` this pass is
// told another way than the tuning's, and it moves no P anyway.
uint32_t move_of(const Tuning& tuning, const Pipeline& pipeline) {
    if (tuning.at("turned") == 0 || kind_of(pipeline) != Kind::dbias) return tuning.at("move");
    return constant(pipeline, "p_move") == MOVE_SHARED ? MOVE_SHARED : MOVE_SHARED_FLOAT;
}

std::string constants_of_pass_flaw(const Problem& p, const Backward& b, const Tuning& tuning,
                                   const Pipeline& pipeline) {
    Values values = problem_constants(p, Model{});
    if (p.alignment_bytes >= 16) values["load_bytes"] = 16;
    values["has_arguments"] = 1;
    values["packed_heads"] = 0;
    values["has_dlse"] = b.dlse != 0;
    values["is_resumed"] = is_cut(pipeline);
    for (const char* name : {"row_blocks", "walked", "stages", "slices"})
        values[name] = number(tuning, pipeline, name);
    values["threads"] = number(tuning, pipeline, "subgroups") * constant(pipeline, "subgroup_size");
    values["p_move"] = move_of(tuning, pipeline);
    values["l2_group_kib"] = tuning.at("l2_group_kib");
    values["min_group_workgroups"] = tuning.at("min_group_workgroups");
    for (const char* judged : {"far_rows", "pool_vec4", "subgroup_size", "matrix_m", "matrix_n", "matrix_k",
                               "element_layout", "p_exchanged"})
        values[judged] = constant(pipeline, judged);
    values["mask_row_bytes"] = unit_of_mask_rows(p);
    if (kind_of(pipeline) == Kind::dkey_dvalue) {
        values["gradients"] = constant(pipeline, "gradients");
        values["paired"] = tuning.at("kv_paired");
        if (tuning.at("kv_paired") != 0 && (p.head_dim_qk != p.head_dim_v || values["gradients"] != 3))
            return "pairs of subgroups need one head dim and both gradients";
    }
    if (kind_of(pipeline) == Kind::dquery)
        values["v_staged_steps"] =
            std::min(tuning.at("q_v_staged") / constant(pipeline, "matrix_k"),
                     static_cast<uint32_t>(tiles_of(p.head_dim_v, constant(pipeline, "matrix_k"))) - 1);
    if (!is_turned(pipeline) && constant(pipeline, "p_exchanged") != 0) return "exchanges what is not turned";
    if (kind_of(pipeline) == Kind::dbias) values["chunks"] = tuning.at("mask_chunks");
    return constants_flaw(pipeline, values);
}

std::string module_of_pass_flaw(const Problem& p, const Plan& plan, const Tuning& tuning,
                                const Pipeline& pipeline) {
    const ModuleFacts facts = facts_of(pipeline.module);
    if (!facts.matrix_kernel || facts.dtype != p.dtype || facts.operands != plan.operands ||
        facts.turned != (tuning.at("turned") != 0 && kind_of(pipeline) != Kind::dbias) ||
        facts.rounded_accumulators != (tuning.at("move") == MOVE_SHARED && kind_of(pipeline) != Kind::dbias))
        return fmt::format("{} is another module than the numbers need", name_of(pipeline));
    return form_flaw(pipeline, tuning.at("rolled"));
}

// The gradient of a mask with one element for all keys is the portable kernel's, with numbers that lib/tiles.glsl can
// work with.
std::string mask_flaw(const Problem& p, const Backward& b, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return constant(pipeline, name); };
    core::TileNumbers n{
        of("threads"), of("lanes"),    of("rows"),   of("cols"), of("chunk"), of("p_blocks"),
        of("v_keys"),  of("prefetch"), of("unroll"), 1,          1,           pipeline.rolled};
    // The slices of the other passes, which its pool has room for, do not show in its constants.
    if (auto flaw = numbers_flaw(n, true); !flaw.empty()) return "gradient of the mask: " + flaw;
    if (of("packed_heads") != 0 || of("has_arguments") != 1 || of("has_dlse") != (b.dlse != 0) ||
        of("head_dim_qk") != p.head_dim_qk || of("head_dim_v") != p.head_dim_v)
        return "gradient of the mask: constants";
    return "";
}

}  // namespace

std::string backward_matrix_flaw(const DeviceCaps& caps, const Problem& p, const Backward& b,
                                 const Plan& plan) {
    const Tuning tuning = values_in(plan.tuning);
    if (auto flaw = tuning_flaw(tuning); !flaw.empty()) return flaw;
    uint64_t tile_q = 64, tile_kv = 1;  // the rows of backward_delta.comp
    uint32_t gradients = 0;
    for (const Pipeline& pipeline : plan.pipelines) {
        const Kind kind = kind_of(pipeline);
        if (kind == Kind::delta) {
            if (auto flaw = delta_workgroup_flaw(caps, p, pipeline); !flaw.empty()) return flaw;
            const bool rounded = p.dtype == VKATTN_DTYPE_FLOAT32;
            const uint32_t rounds_to = plan.operands == VKATTN_DTYPE_FLOAT16 ? 1 : 2;
            if (constant(pipeline, "dout_type") != (rounded ? rounds_to : 0))
                return "delta is of another dout";
            continue;
        }
        const PassTile tile = pass_tile(pipeline);
        tile_q = std::max(tile_q, tile.q);
        tile_kv = std::max(tile_kv, tile.kv);
        if (constant(pipeline, "far_rows") == 0 && far_rows(p, b, tile.q, tile.kv, 0))
            return "far_rows is needed";
        const bool on_matrices = facts_of(pipeline.module).matrix_kernel;
        if (kind == Kind::dbias && on_matrices == (mask_extents(p)[3] == 1))
            return "the other kernel for dbias";
        if (!on_matrices) {
            if (auto flaw = mask_flaw(p, b, pipeline); !flaw.empty()) return flaw;
            continue;
        }
        if (kind == Kind::dquery && (plan.tiles.tile_q != tile.q || plan.tiles.tile_kv != tile.kv ||
                                     plan.tiles.threads != constant(pipeline, "threads")))
            return "tiles against the pass for dquery";
        if (kind == Kind::dkey_dvalue) gradients += constant(pipeline, "gradients");
        for (const auto& flaw :
             {module_of_pass_flaw(p, plan, tuning, pipeline), shape_flaw(caps, p, plan, pipeline),
              walk_flaw(caps, pipeline), pool_flaw(caps, p, plan, pipeline),
              constants_of_pass_flaw(p, b, tuning, pipeline)})
            if (!flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
    }
    for (const Pipeline& pipeline : plan.pipelines)
        if (constant(pipeline, "far_rows") != 0 && !far_rows(p, b, tile_q, tile_kv, 2))
            return "far_rows is needless";
    const bool has_keys = p.batch != 0 && p.seqlen_kv != 0;
    return gradients == (has_keys ? 3 : 0) ? "" : "dkey and dvalue are not found once each";
}

}  // namespace vkattn::test
