// This model has the numbers of the matrix kernel as shaders/lib/matrix.glsl derives them from its constants, and the
// order in which shaders/lib/matrix_cursor.glsl takes its workgroups. Written from the shaders, not from src/plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "plan/plan.hpp"

namespace vkattn::test {

// These are the numbers in the text of a plan's tuning. Numbers of head dims that nothing limits are 0.
struct MatrixTuning {
    uint32_t subgroups, row_blocks, tile_kv, q_held, chunk, slice, running, halves, l2_group_kib,
        min_group_workgroups, rolled, move, turned;
};
// Throws if the text is not complete or says something else.
MatrixTuning parse_matrix_tuning(const std::string& text);

struct MatrixModel {
    MatrixTuning tuning{};
    // Constants of the forward's pipeline; all 0 in a plan without work.
    uint32_t threads = 0, subgroup_size = 0, m = 0, n = 0, k = 0, chunk = 0, q_held = 0, slices = 1,
             layout = 0, pool = 0;
    bool split = false;      // is_split: out is a float32 part
    bool exchanges = false;  // p_exchanged
    // Derived as in lib/matrix.glsl; all 0 while a divisor is 0.
    uint32_t subgroups = 0, tile_q = 0, elements = 0, qk_steps = 0, chunk_steps = 0, chunks = 0, out_span = 0,
             share = 0;
};
bool is_of_matrix_kernel(const core::Plan& plan);
MatrixModel matrix_model_of(const core::Problem& problem, const core::Plan& plan);

// Returns where the shader's map of the pool ends, in vec4: K, V, the part of Q that is not held, places, scratch.
uint64_t end_of_matrix_map(const MatrixModel& model, uint32_t tile_kv, uint32_t move);
// Returns why the equal shares of the pool, which subgroups have before and after the loop, do not hold what is put
// there; "" if they do.
std::string share_flaw(const MatrixModel& model, bool out_is_rounded);

// place_in_grid() repeats the function of lib/matrix_cursor.glsl for one workgroup.
struct GroupCase {
    uint32_t l2_group_kib = 0, min_group_workgroups = 0;
    uint32_t unit = 1;               // workgroups in x that share K and V
    float kib_of_head = 0;           // K and V of a head, in KiB
    bool bounded = false;            // the problem has a bound that makes query tiles differ in length
    std::array<uint32_t, 2> grid{};  // workgroups
};
std::array<uint32_t, 2> place_in_grid(const GroupCase& c, uint32_t x, uint32_t y);

}  // namespace vkattn::test
