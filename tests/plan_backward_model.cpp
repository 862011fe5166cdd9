#include "plan_backward_model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace vkattn::test {
namespace {

using core::Dispatch;
using core::Pipeline;
using core::Problem;

// Of one head: tiles of the other sequence that a tile goes through.
struct Tiles {
    uint64_t begin, end;
    uint64_t count() const { return end > begin ? end - begin : 0; }
};

// Places low .. high-1, held to 0 .. all-1, in tiles.
Tiles tiles_between(int64_t low, int64_t high, uint64_t all, uint64_t tile) {
    const int64_t begin = std::max<int64_t>(0, low), end = std::min(static_cast<int64_t>(all), high);
    if (begin >= end) return {0, 0};
    return {static_cast<uint64_t>(begin) / tile, tiles_of(static_cast<uint64_t>(end), tile)};
}

// Where the bounds are the batch's own: `own` places of a tile and a band of known width, wherever it lies.
Tiles most_tiles(const Problem& p, uint64_t own, uint64_t other, uint64_t all) {
    const uint64_t tiles = tiles_of(all, other);
    if (p.bound_lo == INT32_MIN || p.bound_hi == INT32_MAX) return {0, tiles};
    const int64_t band = int64_t{p.bound_hi} - p.bound_lo + 1;
    if (band <= 0 || own == 0) return {0, 0};
    return {0, std::min(tiles, (static_cast<uint64_t>(band) + own - 1 + other - 2) / other + 1)};
}

Tiles key_tiles(const Problem& p, const PassTile& t, uint64_t query_tile) {
    const uint64_t first = query_tile * t.q, end = std::min<uint64_t>(first + t.q, p.seqlen_q);
    if (p.dynamic_bounds) return most_tiles(p, end - first, t.kv, p.key_limit);
    return tiles_between(static_cast<int64_t>(first) + p.bound_lo, static_cast<int64_t>(end) + p.bound_hi,
                         p.key_limit, t.kv);
}

Tiles query_tiles(const Problem& p, const PassTile& t, uint64_t key_tile) {
    const uint64_t first = key_tile * t.kv, end = std::min<uint64_t>(first + t.kv, p.key_limit);
    if (first >= end) return {0, 0};
    if (p.dynamic_bounds) return most_tiles(p, end - first, t.q, p.seqlen_q);
    return tiles_between(static_cast<int64_t>(first) - p.bound_hi, static_cast<int64_t>(end) - p.bound_lo,
                         p.seqlen_q, t.q);
}

// Heads of all batches whose scores' gradients are summed into one element of dbias.
uint64_t heads_that_share(const Problem& p, const BackwardModel& m) {
    return (m.bias[0] == 1 ? p.batch : 1) * (p.num_heads_q / m.bias[1]);
}

// Query rows of a workgroup of backward_delta.comp.
uint32_t rows_of_delta(const Pipeline& pipeline) {
    return constant(pipeline, "threads") / constant(pipeline, "lanes");
}

// Matrices of M x N of one gradient's head dims, in a slice.
uint64_t matrices_of(const Pipeline& pipeline, uint64_t head_dim) {
    return tiles_of(head_dim, uint64_t{constant(pipeline, "matrix_n")} * constant(pipeline, "slices"));
}

// lib/backward_matrix_results.glsl: every invocation keeps its elements of every matrix; that of dquery, and row sums
// of as many elements as a matrix has; those of dkey and dvalue, both of them also where a pass has one, but for pairs
// of subgroups, each of which has one.
uint64_t kept_bytes_of_matrices(const Problem& p, const BackwardModel& m, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    const Triple grid = grid_of(p, m, pipeline);
    const uint64_t elements = of("matrix_m") * of("matrix_n") / of("subgroup_size");
    uint64_t matrices = matrices_of(pipeline, p.head_dim_qk);
    if (kind_of(pipeline) == Kind::dquery)
        matrices++;
    else if (of("paired") == 0)
        matrices += matrices_of(pipeline, p.head_dim_v);
    return grid[0] * grid[1] * grid[2] * of("threads") * of("row_blocks") * matrices * elements * 4;
}

bool is_on_matrices(const Pipeline& pipeline) {
    return facts_of(pipeline.module).matrix_kernel;
}

}  // namespace

PassTile pass_tile(const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    if (!is_on_matrices(pipeline))
        return {of("threads") / of("lanes") * of("rows"), of("lanes") * of("cols"), of("slices")};
    const uint64_t held = of("threads") / of("subgroup_size") * of("row_blocks") * of("matrix_m");
    if (kind_of(pipeline) == Kind::dquery) return {held, of("walked"), of("slices")};
    if (kind_of(pipeline) == Kind::dbias) return {held, of("walked") * of("chunks"), 1};
    return {of("walked"), of("paired") != 0 ? held / 2 : held, of("slices")};
}

BackwardModel model_of(const Problem& p, const core::Backward& b, const core::Plan& plan) {
    BackwardModel m;
    m.of_tiles = model_of(p, plan);
    m.rows = uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
    m.keys = uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv;
    if (b.dbias != 0) m.bias = mask_extents(p);
    m.on_matrices = is_of_matrix_kernel(plan);
    for (const Pipeline& pipeline : plan.pipelines) {
        if (is_on_matrices(pipeline) && kind_of(pipeline) == Kind::dkey_dvalue)
            m.apart = m.apart || constant(pipeline, "gradients") != 3;
    }
    m.mask_per_key = p.mask != VKATTN_MASK_NONE && mask_extents(p)[3] != 1;
    return m;
}

std::vector<Kind> kinds_of(const BackwardModel& m) {
    std::vector<Kind> kinds;
    if (m.of_tiles.classified) kinds.push_back(Kind::classes);
    if (m.rows != 0) kinds.insert(kinds.end(), {Kind::delta, Kind::dquery});
    if (m.keys != 0) kinds.insert(kinds.end(), m.apart ? 2 : 1, Kind::dkey_dvalue);
    if (std::count(m.bias.begin(), m.bias.end(), 0u) == 0) kinds.push_back(Kind::dbias);
    return kinds;
}

Triple grid_of(const Problem& p, const BackwardModel& m, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::delta)
        return {uint64_t{p.batch} * p.num_heads_q, tiles_of(p.seqlen_q, rows_of_delta(pipeline)), 1};
    const PassTile t = pass_tile(pipeline);
    switch (kind) {
        case Kind::dquery:
            return {uint64_t{p.batch} * p.num_heads_q, tiles_of(p.seqlen_q, t.q), t.slices};
        case Kind::dkey_dvalue:
            return {uint64_t{p.batch} * p.num_heads_kv, tiles_of(p.seqlen_kv, t.kv), t.slices};
        case Kind::dbias:
            return {m.bias[0] * m.bias[1], tiles_of(m.bias[2], t.q), tiles_of(m.bias[3], t.kv)};
        default:
            throw std::logic_error("no kind of a backward");
    }
}

std::optional<Steps> span_of(const core::Plan& plan, const Dispatch& d) {
    if (!is_cut(pipeline_of(plan, d))) return std::nullopt;
    return Steps{d.cut.first_step, d.cut.end_step};
}

uint64_t steps_of(const Problem& p, const BackwardModel& m, const Pipeline& pipeline) {
    const PassTile t = pass_tile(pipeline);
    if (kind_of(pipeline) == Kind::dquery) return tiles_of(m.of_tiles.end, t.kv);
    return p.num_heads_q / p.num_heads_kv * tiles_of(p.seqlen_q, t.q);
}

uint64_t steps_done(const Problem& p, const BackwardModel& m, const Pipeline& pipeline, const Triple& at,
                    const std::optional<Steps>& span) {
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::delta) return 1;
    const PassTile t = pass_tile(pipeline);
    if (kind == Kind::dbias && !m.mask_per_key)  // a step is a row
        return heads_that_share(p, m) * (m.bias[2] == 1 ? p.seqlen_q : std::min<uint64_t>(p.seqlen_q, t.q));
    if (kind == Kind::dbias)
        return heads_that_share(p, m) * (m.bias[2] == 1 ? query_tiles(p, t, at[2]).count() : 1);
    const bool of_queries = kind == Kind::dquery;
    const uint64_t all_query_tiles = tiles_of(p.seqlen_q, t.q);
    const uint64_t heads = of_queries ? 1 : p.num_heads_q / p.num_heads_kv,
                   in_head = of_queries ? tiles_of(p.seqlen_kv, t.kv) : all_query_tiles;
    const Tiles tiles = of_queries ? key_tiles(p, t, all_query_tiles - 1 - at[1]) : query_tiles(p, t, at[1]);
    if (!span) return heads * tiles.count();
    if (p.dynamic_bounds) return std::min(heads * tiles.count(), span->end - span->begin);
    // Steps are numbered head * in_head + tile.
    const auto before = [&](uint64_t step) {
        const uint64_t tile = std::clamp(step % in_head, tiles.begin, tiles.begin + tiles.count());
        return step / in_head * tiles.count() + (tile - tiles.begin);
    };
    if (in_head == 0) return 0;
    return before(std::min(span->end, heads * in_head)) - before(std::min(span->begin, heads * in_head));
}

double cost_of_step(const Problem& p, const BackwardModel& m, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    const double qk = p.head_dim_qk, v = p.head_dim_v;
    if (kind == Kind::delta) return 2 * v * std::min(p.seqlen_q, rows_of_delta(pipeline));
    const PassTile t = pass_tile(pipeline);
    const double tile = double(t.q) * double(t.kv), slices = double(t.slices);
    if (kind == Kind::dquery) return tile * 2 * (qk + v + std::ceil(qk / slices));  // q.k, dout.v, dS.k
    if (kind == Kind::dkey_dvalue && m.on_matrices) {  // q.k; P.dout; dout.v and dS.q
        const uint32_t gradients = constant(pipeline, "gradients");
        return tile * 2 *
               (qk + (gradients & 1) * std::ceil(v / slices) +
                (gradients >> 1) * (v + std::ceil(qk / slices)));
    }
    if (kind == Kind::dkey_dvalue)  // q.k, dout.v, P.dout, dS.q
        // Of slices those of dkey cost most: q.k, dout.v and a part of dS.q.
        return tile * 2 *
               (t.slices == 1 ? 2 * (qk + v) : qk + v + std::ceil(std::max(qk, v) / double(t.slices / 2)));
    return m.mask_per_key ? tile * 2 * (qk + v) : 1;  // q.k, dout.v
}

uint64_t kept_bytes(const Problem& p, const BackwardModel& m, const Pipeline& pipeline) {
    if (is_on_matrices(pipeline)) return kept_bytes_of_matrices(p, m, pipeline);
    const auto of = [&](const char* name) { return uint64_t{constant(pipeline, name)}; };
    const PassTile t = pass_tile(pipeline);
    // float32 in vec4, as many for every invocation that shares a row.
    const auto row = [](uint64_t head_dim, uint64_t lanes) { return round_up(head_dim, 4 * lanes) * 4; };
    if (kind_of(pipeline) == Kind::dquery) return m.rows * row(p.head_dim_qk, of("lanes") * t.slices);
    const uint64_t lanes = of("threads") / (t.kv / of("rows"));
    if (t.slices != 1) return m.keys * 2 * row(std::max(p.head_dim_qk, p.head_dim_v), lanes * (t.slices / 2));
    return m.keys * (row(p.head_dim_qk, lanes) + row(p.head_dim_v, lanes));
}

}  // namespace vkattn::test
