#include "plan_matrix_model.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "plan_model.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

uint32_t steps(uint32_t extent, uint32_t step) {
    return static_cast<uint32_t>(tiles_of(extent, step));
}

// Rows of 16-bit elements and of floats lie an odd number of vec4 apart.
uint32_t odd(uint32_t vec4s) {
    return vec4s | 1;
}
uint32_t half_stride(uint32_t elements) {
    return odd(steps(elements, 8));
}
uint32_t float_stride(uint32_t elements) {
    return odd(elements / 4);
}

}  // namespace

MatrixTuning parse_matrix_tuning(const std::string& text) {
    MatrixTuning t{};
    const std::pair<const char*, uint32_t MatrixTuning::*> fields[] = {
        {"subgroups", &MatrixTuning::subgroups},
        {"row_blocks", &MatrixTuning::row_blocks},
        {"tile_kv", &MatrixTuning::tile_kv},
        {"q_held", &MatrixTuning::q_held},
        {"chunk", &MatrixTuning::chunk},
        {"slice", &MatrixTuning::slice},
        {"running", &MatrixTuning::running},
        {"halves", &MatrixTuning::halves},
        {"l2_group_kib", &MatrixTuning::l2_group_kib},
        {"min_group_workgroups", &MatrixTuning::min_group_workgroups},
        {"rolled", &MatrixTuning::rolled},
        {"move", &MatrixTuning::move},
        {"turned", &MatrixTuning::turned}};
    static_assert(sizeof t == sizeof(uint32_t) * std::size(fields), "a number is missing above");
    const auto values = values_in(text);
    if (values.size() != std::size(fields)) throw std::runtime_error("not all matrix numbers: " + text);
    for (const auto& [name, at] : fields) t.*at = values.at(name);
    return t;
}

bool is_of_matrix_kernel(const core::Plan& plan) {
    return plan.kernel == "matrix" || plan.kernel == "matrix_khr";
}

MatrixModel matrix_model_of(const core::Problem& p, const core::Plan& plan) {
    MatrixModel model;
    model.tuning = parse_matrix_tuning(plan.tuning);
    const auto forward = std::find_if(plan.pipelines.begin(), plan.pipelines.end(),
                                      [](const auto& x) { return facts_of(x.module).matrix_kernel; });
    if (forward == plan.pipelines.end()) return model;
    const auto of = [&](std::string_view name) { return constant(*forward, name); };
    model.threads = of("threads");
    model.subgroup_size = of("subgroup_size");
    model.m = of("matrix_m");
    model.n = of("matrix_n");
    model.k = of("matrix_k");
    model.chunk = of("chunk");
    model.q_held = of("q_held_steps");
    model.slices = of("slices");
    model.layout = of("element_layout");
    model.pool = of("pool_vec4");
    model.split = of("is_split") != 0;
    model.exchanges = of("p_exchanged") != 0;
    if (model.subgroup_size == 0 || model.threads < model.subgroup_size || model.m == 0 || model.n == 0 ||
        model.k == 0 || model.chunk < model.k || model.slices == 0)
        return model;
    model.subgroups = model.threads / model.subgroup_size;
    model.tile_q = model.subgroups * of("row_blocks") * model.m;
    model.elements = model.m * model.n / model.subgroup_size;
    model.qk_steps = steps(p.head_dim_qk, model.k);
    model.chunk_steps = model.chunk / model.k;
    model.chunks = steps(model.qk_steps, model.chunk_steps);
    model.out_span = steps(p.head_dim_v, model.n * model.slices) * model.n;
    model.share = model.pool / model.subgroups;
    return model;
}

uint64_t end_of_matrix_map(const MatrixModel& model, uint32_t tile_kv, uint32_t move) {
    const uint64_t lying = model.chunk_steps - model.q_held,
                   block = uint64_t{model.m} * float_stride(model.n);
    uint64_t pool_q = uint64_t{tile_kv} * (half_stride(model.chunk) + half_stride(model.out_span));
    if (model.tuning.turned != 0) {  // rows of K, and of V transposed, an odd number of 8 bytes apart
        const uint64_t halves =
            uint64_t{tile_kv} * odd(model.chunk / 4) + uint64_t{model.out_span} * odd(tile_kv / 4);
        pool_q = halves / 2 + halves % 2;
    }
    const uint64_t pool_place =
        pool_q + (lying == 0 ? 0 : model.tile_q * half_stride(static_cast<uint32_t>(lying) * model.k));
    const uint64_t places = model.layout == 0 ? steps(std::max(model.m, model.n), 4) : 0;  // 0, 1, 2 ..
    const uint64_t pool_scratch = pool_place + places;
    if (model.layout != 0 && move < MOVE_SHARED) return pool_scratch;  // nothing goes through scratch
    const uint64_t p_at = move == MOVE_SHARED ? 0 : block;
    const uint64_t p_end = p_at + (move >= MOVE_SHARED ? uint64_t{model.m} * half_stride(tile_kv) : 0);
    return pool_scratch + model.subgroups * std::max(p_end, block);
}

std::string share_flaw(const MatrixModel& model, bool out_is_rounded) {
    const uint32_t rows = model.m, line = model.share / rows;  // vec4 that a row of a block may have
    if (line < 2) return "a share of the pool has no room for rows";
    if (model.q_held != 0) {  // hold_q
        const uint32_t piece = std::min(model.q_held, (line - 1) / (model.k / 8));
        if (piece == 0 || rows * half_stride(piece * model.k) > model.share)
            return "a share of the pool does not hold a step of Q";
    }
    const uint32_t unit = out_is_rounded ? 8 : 4, fit = (line - 1) * unit / model.n;  // store_block
    if (fit == 0) return "a share of the pool does not hold a tile of the output";
    const uint32_t tiles = model.out_span / model.n, piece = steps(tiles, steps(tiles, fit));
    if (rows * odd(piece * model.n / unit) > model.share) return "pieces of the output outgrow their share";
    return "";
}

std::array<uint32_t, 2> place_in_grid(const GroupCase& c, uint32_t x, uint32_t y) {
    const uint32_t width_of_grid = c.grid[0], height = c.grid[1];
    if (c.l2_group_kib == 0 ||
        static_cast<float>(c.l2_group_kib) * static_cast<float>(c.unit) >=
            c.kib_of_head * static_cast<float>(width_of_grid) ||
        static_cast<float>(width_of_grid) * static_cast<float>(height) > 4e9f)
        return {x, y};
    uint32_t wide =
        std::max(1u, static_cast<uint32_t>(static_cast<float>(c.l2_group_kib) / c.kib_of_head)) * c.unit;
    if (c.bounded) wide = std::max(wide, steps(c.min_group_workgroups / height, c.unit) * c.unit);
    if (wide >= width_of_grid) return {x, y};
    const uint32_t i = y * width_of_grid + x, first = i / (wide * height) * wide, rest = i % (wide * height);
    const uint32_t width = std::min(wide, width_of_grid - first);
    return {first + rest % width, rest / width};
}

}  // namespace vkattn::test
