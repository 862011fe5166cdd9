// Whether a device has the matrix unit that a pipeline is made for, and whether the kernels on matrix units can work
// with its constants. The maps of shared memory are written from shaders/lib/matrix.glsl and backward_matrix.glsl.
#include <algorithm>

#include <fmt/format.h>

#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Pipeline;
using core::Problem;

// Constants as numbers to divide by.
auto reader(const Pipeline& pipeline) {
    return [&](std::string_view name) { return uint64_t{constant(pipeline, name)}; };
}

uint64_t subgroups_of(const Pipeline& pipeline) {
    return std::max<uint64_t>(1, divisor(pipeline, "threads") / divisor(pipeline, "subgroup_size"));
}

bool is_turned(const Pipeline& pipeline) {
    return has_part(pipeline.module, "_turned");
}

std::string subgroup_flaw(const core::DeviceCaps& caps, uint32_t subgroup) {
    if (!caps.full_subgroups) return "subgroups may be partly empty";
    if (caps.min_subgroup_size != caps.max_subgroup_size && !caps.subgroup_size_control)
        return "subgroups may have several sizes";
    if (subgroup < caps.min_subgroup_size || subgroup > caps.max_subgroup_size)
        return fmt::format("subgroups of {}", subgroup);
    return "";
}

// The way in which P becomes an operand must be one that unit, layout and storage allow.
std::string move_flaw(const Given& g, const Pipeline& pipeline, const core::MatrixShape& shape) {
    const uint32_t move = constant(pipeline, "p_move"), layout = constant(pipeline, "element_layout");
    const bool alike = shape.n == shape.k, f32 = g.p.dtype == VKATTN_DTYPE_FLOAT32 || has_own_types(g.p);
    if (is_turned(pipeline))
        return layout != 0 && shape.m == shape.n && alike && move == MOVE_FRAGMENT && !f32
                   ? ""
                   : "turned products of other shapes or types";
    switch (move) {
        case MOVE_FRAGMENT:
            return alike && layout != 0 && shape.left_alike ? "" : "P has another layout than its operand";
        case MOVE_CONVERT:
            return g.backward == nullptr && alike && g.caps.matrix_conversions && !f32
                       ? ""
                       : "nothing converts matrices";
        case MOVE_SHARED:
            return shape.rounded && (!f32 || kind_of(pipeline) == Kind::dbias) ? ""
                                                                               : "no 16-bit accumulators";
        case MOVE_SHARED_FLOAT:
            return "";
        default:
            return "no way to move P";
    }
}

std::string shape_flaw(const Given& g, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const uint64_t m = of("matrix_m"), n = divisor(pipeline, "matrix_n"), k = divisor(pipeline, "matrix_k");
    const auto shape = std::ranges::find_if(g.caps.matrices, [&](const auto& s) {
        return s.m == m && s.n == n && s.k == k && s.dtype == g.plan.operands;
    });
    if (shape == g.caps.matrices.end()) return fmt::format("no unit multiplies {} x {} x {}", m, n, k);
    // The shaders count in vec4, and in words of 32 keys.
    if (m % 8 != 0 || n % 8 != 0 || k % 8 != 0 || 32 % n != 0) return "the shape does not lie in whole vec4";
    if (m * n % (2 * divisor(pipeline, "subgroup_size")) != 0)
        return "an invocation has no whole pairs of elements";
    const bool turned = is_turned(pipeline);
    const uint32_t known = turned ? shape->turned_layout : shape->layout;
    if (of("element_layout") != (g.plan.kernel.ends_with("_khr") ? 0 : known)) return "layout";
    if (of("p_exchanged") != (turned && shape->exchanges)) return "who exchanges P";
    return move_flaw(g, pipeline, *shape);
}

// Rows of 16-bit elements and of floats lie an odd number of vec4 apart.
uint64_t half_stride(uint64_t elements) {
    return tiles_of(elements, 8) | 1;
}

// A forward's head dims: steps of K, chunks of them, and those of the output that a slice has.
struct HeadSteps {
    uint64_t steps, of_chunk, chunks, out_span;
};
HeadSteps head_steps(const Problem& p, const Pipeline& pipeline) {
    const uint64_t k = divisor(pipeline, "matrix_k"), n = divisor(pipeline, "matrix_n");
    HeadSteps h{};
    h.steps = tiles_of(p.head_dim_qk, k);
    h.of_chunk = divisor(pipeline, "chunk") / k;
    h.chunks = tiles_of(h.steps, h.of_chunk);
    h.out_span = tiles_of(p.head_dim_v, n * divisor(pipeline, "slices")) * n;
    return h;
}

using Tuning = std::map<std::string, uint32_t>;

// The head dims that a forward takes at a time, against the tuning: chunks, those that registers hold, slices.
std::string head_dims_flaw(const Problem& p, const Tuning& tuning, const Pipeline& pipeline) {
    const HeadSteps h = head_steps(p, pipeline);
    const uint64_t k = constant(pipeline, "matrix_k"), n = constant(pipeline, "matrix_n");
    const uint64_t wanted = tuning.at("chunk"), slice = tuning.at("slice"),
                   slices = constant(pipeline, "slices");
    if (const uint64_t chunk = wanted == 0 ? h.steps : std::min(h.steps, std::max<uint64_t>(1, wanted / k));
        constant(pipeline, "chunk") != chunk * k)
        return fmt::format("chunks of {}, not {} steps", constant(pipeline, "chunk"), chunk);
    // The part of Q that is held stays the same for every chunk, so there is none where chunks are several.
    if (constant(pipeline, "q_held_steps") !=
        (h.chunks > 1 ? 0 : std::min<uint64_t>(h.of_chunk, tuning.at("q_held") / k)))
        return "steps of Q that are held";
    if (h.out_span * slices < p.head_dim_v) return "slices leave head dims out";
    if (h.out_span * (slices - 1) >= p.head_dim_v) return "an empty slice";
    if (slice == 0 || slice >= p.head_dim_v) return slices == 1 ? "" : "slices that nobody wants";
    return h.out_span < slice + n ? "" : "a slice has more head dims than the tuning says";
}

// The loop without a running maximum has its offsets from a tile's scores and takes no head dims in chunks.
std::string loop_flaw(const Given& g, const Tuning& tuning, const Pipeline& pipeline) {
    const uint64_t n = constant(pipeline, "matrix_n"), k = constant(pipeline, "matrix_k"),
                   keys = constant(pipeline, "tile_kv"), halves = constant(pipeline, "halves");
    const bool running = tuning.at("running") != 0;
    const uint32_t move = constant(pipeline, "p_move");
    if (keys % n != 0 || keys % k != 0) return "a tile of keys is not whole";
    if (!running && g.options.batch_invariant) return "offsets of other rows in a row's bits";
    if (!running && head_steps(g.p, pipeline).chunks != 1) return "chunks without a running maximum";
    if (!running && (g.p.mask != VKATTN_MASK_NONE || g.p.block_map != 0) && move != MOVE_FRAGMENT)
        return "a mask in the loop without a running maximum, and P does not stay in registers";
    if (halves == 1) return "";
    const bool whole = keys % (2 * n) == 0 && keys % (2 * k) == 0;
    return halves == 2 && whole && !running && move < MOVE_SHARED ? "" : "halves of a tile";
}

// Where the map of the pool ends, in vec4: K, V, the part of Q that is not held, places, scratch.
uint64_t end_of_forward_map(const Problem& p, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const HeadSteps h = head_steps(p, pipeline);
    const uint64_t keys = of("tile_kv"), m = of("matrix_m"), block = m * (of("matrix_n") / 4 | 1);
    const uint64_t key_end = keys * half_stride(of("chunk")), value_end = keys * half_stride(h.out_span);
    const bool padded = of("chunk") != p.head_dim_qk || h.out_span * of("slices") != p.head_dim_v;
    const bool in_turn =
        pipeline.module.has(core::macros::RUNNING_MAX) && subgroups_of(pipeline) == 1 && !padded;
    uint64_t end = in_turn ? std::max(key_end, value_end) : key_end + value_end;
    if (is_turned(pipeline))  // rows of K, and of V transposed, an odd number of 8 bytes apart
        end = tiles_of(keys * (of("chunk") / 4 | 1) + h.out_span * (keys / 4 | 1), 2);
    const uint64_t lying = h.of_chunk - of("q_held_steps");
    if (lying != 0) end += tile_of(pipeline).q * half_stride(lying * of("matrix_k"));
    const bool known = of("element_layout") != 0, shared = of("p_move") >= MOVE_SHARED;
    if (!known) end += tiles_of(std::max(m, of("matrix_n")), 4);  // 0, 1, 2 ..
    if (known && !shared) return end;                             // nothing goes through scratch
    const uint64_t p_at = of("p_move") == MOVE_SHARED ? 0 : block;
    return end + subgroups_of(pipeline) * std::max(p_at + (shared ? m * half_stride(keys) : 0), block);
}

// Masks are staged in shared memory where lib/backward_matrix.glsl says so.
bool stages_masks(const Problem& p, const Pipeline& pipeline) {
    return p.mask == VKATTN_MASK_FLOAT && p.block_map == 0 && p.dtype != VKATTN_DTYPE_FLOAT32 &&
           !has_own_types(p) && !is_turned(pipeline) && constant(pipeline, "p_move") == MOVE_FRAGMENT &&
           constant(pipeline, "mask_row_bytes") == 16;
}

// Of a pass of the backward: two buffers of walked rows (with turned products the same rows transposed, and what of
// dout no register holds), numbers of rows, places, scratch, masks, weights of pairs of subgroups.
uint64_t end_of_backward_map(const Problem& p, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const Kind kind = kind_of(pipeline);
    const uint64_t m = of("matrix_m"), n = of("matrix_n"), k = of("matrix_k"), walked = of("walked");
    const bool turned = is_turned(pipeline), of_keys = kind == Kind::dkey_dvalue;
    const uint64_t subgroups = subgroups_of(pipeline), held = of("row_blocks") * m,
                   at_a_time = std::max(n, k);
    const auto columns = [&](uint64_t head_dim) {
        return round_up(head_dim, n * divisor(pipeline, "slices"));
    };
    const auto stride = [&](uint64_t head_dim) {
        const uint64_t elements = std::max(round_up(head_dim, k), columns(head_dim));
        return turned ? elements / 4 | 1 : half_stride(elements);
    };
    if (kind == Kind::spilled)  // keys, and dS^T of them
        return 2 * walked * (stride(p.head_dim_qk) + half_stride(tile_of(pipeline).q));
    const uint64_t rows = walked * (stride(p.head_dim_qk) + stride(p.head_dim_v)),
                   numbers = of_keys ? 3 * walked / 4 : 0, block = turned ? m * n / 4 : m * (n / 4 | 1);
    uint64_t end = turned ? rows + 2 * numbers : 2 * (rows + numbers);
    if (turned) {
        end += (columns(p.head_dim_qk) + (of_keys ? columns(p.head_dim_v) : 0)) * (walked / 4 | 1);
        if (kind == Kind::dquery && of("v_staged_steps") != 0)
            end += subgroups * held * half_stride(of("v_staged_steps") * k);
    }
    const bool known = of("element_layout") != 0, shared = of("p_move") >= MOVE_SHARED;
    if (!known) end += tiles_of(std::max(m, n), 4);  // 0, 1, 2 ..
    if (kind == Kind::dbias) return end;
    if (!known || shared) {
        const uint64_t p_at = of("p_move") == MOVE_SHARED ? 0 : block;
        end += subgroups * std::max(p_at + (shared ? m * half_stride(at_a_time) : 0), block);
    }
    if (stages_masks(p, pipeline))
        end += subgroups * (of_keys ? walked * half_stride(held) : held * half_stride(walked));
    if (!of_keys || of("paired") == 0) return end;
    // Numbers of a matrix by invocation: 4 bytes each, or 2 where one of a pair lags and query has a third tile.
    const bool lags = of("paired") == 2;
    const uint64_t lanes = of("subgroup_size"), bytes = m * n / lanes * (lags ? 2 : 4),
                   weights = turned ? round_up(bytes, 8) * lanes / 16 : round_up(bytes, 16) * lanes / 16;
    if (lags) end += walked * stride(p.head_dim_qk);
    return end + (lags || walked > at_a_time ? 2 : 1) * subgroups / 2 * of("row_blocks") * (at_a_time / n) *
                     weights;
}

// Before and after the loop subgroups have equal shares of the pool: rows of a step of what is held, or of a matrix of
// the output, with one vec4 more.
std::string pool_flaw(const Given& g, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const Kind kind = kind_of(pipeline);
    const bool forward = kind == Kind::forward;
    const uint64_t pool = of("pool_vec4"), m = of("matrix_m"), n = of("matrix_n"), k = of("matrix_k"),
                   subgroups = subgroups_of(pipeline);
    uint64_t map = forward ? end_of_forward_map(g.p, pipeline) : end_of_backward_map(g.p, pipeline);
    if (kind == Kind::dbias)  // whose shares lie behind the tiles, and hold two steps
        map += subgroups * m * std::max(k / 4 + 1, n / 4 | 1);
    const uint64_t shares = kind == Kind::dbias ? 0 : subgroups * m * (std::max(k / 8, n / 4) + 2);
    if (pool < map) return fmt::format("a pool of {} vec4, the map ends at {}", pool, map);
    if (pool > std::max(map, shares)) return fmt::format("a pool of {} vec4 is too large", pool);
    if (kind != Kind::dbias && pool / subgroups < m * std::max(k / 8 + 1, n / 4 + 1))
        return "a share of the pool is too small";
    // Beside the pool there are a few flags, and a bit for each key of a tile.
    if (pool * 16 + 4 * (3 + tiles_of(tile_of(pipeline).kv, 32)) > g.caps.max_shared_bytes)
        return fmt::format("{} bytes of shared memory", pool * 16);
    return "";
}

// What a forward puts into a share: pieces of Q and of the output, each row of a block in a line of its own.
std::string share_flaw(const Given& g, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const uint64_t share = of("pool_vec4") / subgroups_of(pipeline), m = of("matrix_m"), k = of("matrix_k"),
                   n = of("matrix_n"), line = share / m, held = of("q_held_steps");
    if (line < 2) return "a share of the pool has no room for rows";
    if (held != 0) {
        const uint64_t piece = std::min(held, (line - 1) / (k / 8));
        if (piece == 0 || m * half_stride(piece * k) > share) return "a share does not hold a step of Q";
    }
    const bool rounded = g.p.dtype != VKATTN_DTYPE_FLOAT32 && !has_own_types(g.p) && of("is_split") == 0 &&
                         of("p_move") != MOVE_SHARED_FLOAT;
    const uint64_t unit = rounded ? 8 : 4, fit = (line - 1) * unit / n;
    if (fit == 0) return "a share does not hold a tile of the output";
    const uint64_t all = head_steps(g.p, pipeline).out_span / n, piece = tiles_of(all, tiles_of(all, fit));
    return m * (piece * n / unit | 1) > share ? "pieces of the output outgrow their share" : "";
}

// Tiles of the pass that reads spilled dS are whole steps, and steps whole tiles of keys.
std::string spilled_walk_flaw(const Pipeline& pipeline) {
    const Tile t = tile_of(pipeline);
    const uint64_t subgroups = subgroups_of(pipeline), ahead = constant(pipeline, "ahead");
    if (subgroups % divisor(pipeline, "slices") != 0) return "slices of different numbers of subgroups";
    if (t.q % divisor(pipeline, "step_rows") != 0) return "a tile is no whole number of steps";
    if (divisor(pipeline, "step_keys") % t.kv != 0) return "a step is no whole number of tiles of keys";
    if (t.kv % constant(pipeline, "matrix_m") != 0) return "a tile of keys cuts a spilled matrix";
    return ahead == 2 || ahead == 4 ? "" : "tiles ahead do not take turns with two buffers";
}

std::string walk_flaw(const Given& g, const Pipeline& pipeline) {
    const auto of = reader(pipeline);
    const uint64_t block = std::max(of("matrix_n"), of("matrix_k"));
    if (of("walked") % (block * divisor(pipeline, "stages")) != 0)
        return "a stage is no whole number of blocks";
    if (of("walked") > of("threads")) return "more walked rows than invocations that load their numbers";
    if (kind_of(pipeline) == Kind::spilled) return spilled_walk_flaw(pipeline);
    if (has_constant(pipeline, "chunks") && divisor(pipeline, "chunks") % 2 != 0)
        return "chunks do not take turns with two buffers";
    if (has_constant(pipeline, "paired") && of("paired") != 0 &&
        (g.p.head_dim_qk != g.p.head_dim_v || of("gradients") != 3))
        return "pairs of subgroups need one head dim and both gradients";
    if (has_constant(pipeline, "paired") && of("paired") == 2 &&
        (of("walked") != of("matrix_n") || of("walked") != of("matrix_k") ||
         divisor(pipeline, "stages") != 1 || is_turned(pipeline)))
        return "a subgroup lags in a tile of more than one matrix";
    return "";
}

}  // namespace

std::string matrix_flaw(const Given& g, const Pipeline& pipeline) {
    const Tuning& tuning = g.tuning();
    std::string flaw = subgroup_flaw(g.caps, constant(pipeline, "subgroup_size"));
    if (flaw.empty()) flaw = shape_flaw(g, pipeline);
    if (flaw.empty() && kind_of(pipeline) != Kind::forward) flaw = walk_flaw(g, pipeline);
    if (flaw.empty() && kind_of(pipeline) == Kind::forward) {
        flaw = head_dims_flaw(g.p, tuning, pipeline);
        if (flaw.empty()) flaw = loop_flaw(g, tuning, pipeline);
    }
    if (flaw.empty()) flaw = pool_flaw(g, pipeline);
    if (flaw.empty() && kind_of(pipeline) == Kind::forward) flaw = share_flaw(g, pipeline);
    return flaw;
}

}  // namespace vkattn::test
