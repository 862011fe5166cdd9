// How the forward and the backward on matrix units choose their numbers: a tuning row on a shape of the matrix unit,
// with the caller's numbers over it, if it fits the device. matrix.cpp and backward_matrix.cpp call it, each with a
// description of its direction.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kernel_rows.hpp"
#include "launch.hpp"
#include "matrix.hpp"
#include "quirks.hpp"

namespace vkattn::core {

// What both directions have alike. A direction derives from it, and redefines what it has otherwise.
struct MatrixDirection {
    const DeviceCaps& caps;
    const Problem& problem;
    const Options& options;

    std::string why_not() const { return ""; }  // why the problem is none for matrix units, or ""
    template <class Row>
    bool suits(const Row&) const {  // true if the row is for such a problem
        return true;
    }
};

// A row's numbers on a shape, with what follows from it: subgroup size, layout, move of P.
template <class Numbers>
Numbers put_on_shape(const DeviceCaps& caps, const Problem& p, Numbers n, const MatrixShape& shape, bool khr,
                     bool turned) {
    n.shape = shape;
    n.subgroup_size = matrix_subgroup_size(caps);
    n.turned = turned;
    n.layout = khr ? 0 : turned ? shape.turned_layout : shape.layout;
    n.move = turned ? MOVE_FRAGMENT : matrix_move_of(caps, p, shape, khr);
    n.rolled = rolled_on(caps, true);
    n.lane_by_index = !quirk_index_takes_time(caps);
    return n;
}

// Returns a row's numbers on a shape, with turned products or without: the caller's tuning decides which. A tuning that
// names another way for P than registers, and does not name `turned`, means turned=0. The result does not have the
// caller's numbers yet, because uses_of() is asked of the row's own.
template <class Direction, class Numbers>
Result<Numbers> row_on_shape(const Direction& d, const Numbers& row, const MatrixShape& shape, bool khr) {
    const bool turned = is_turned(d.problem, shape, khr);
    Numbers n = d.on_shape(row, shape, khr, turned);
    Numbers asked = n;
    if (const auto ok = d.apply_tuning(asked); !ok) return ok.failure();
    const bool moved = asked.turned == n.turned && asked.move != MOVE_FRAGMENT;
    const bool wanted = asked.turned <= 1 ? asked.turned != 0 && !moved : turned;
    return wanted == turned ? n : d.on_shape(row, shape, khr, wanted);
}

// Tells why no kernel of either direction has these numbers, or "".
template <class Numbers>
std::string malformed_alike(const Problem& p, const Numbers& n) {
    if (n.l2_group_kib > 1u << 30 || n.min_group_workgroups > 1u << 30)
        return "l2_group_kib or min_group_workgroups is too large";
    if (n.move > MOVE_SHARED_FLOAT) return "move is 0 .. 3";
    if ((n.move == MOVE_CONVERT || n.move == MOVE_SHARED) && !p.is_all_16bit())
        return "move=1 and move=2 are for operands that are all of 16 bits";
    if (n.rolled > 1) return "rolled is 0 or 1";
    return n.turned > 1 ? "turned is 0 or 1" : "";
}

// Headroom in shared memory, in vec4: registers that spill go there first on some drivers.
constexpr uint32_t spare_vec4 = 64;

// Tells why these numbers cannot be used: they make no kernel, or none for this device. Both failures name
// options.tuning, because numbers that come from a row alone are passed over instead of reported.
template <class Direction, class Numbers>
Result<bool> fit(const Direction& d, const Numbers& n) {
    std::string why = d.malformed(n);
    if (why.empty()) why = malformed_alike(d.problem, n);
    if (!why.empty()) return invalid("options.tuning", std::move(why));
    why = d.unfit(n);
    if (why.empty()) why = too_large(d.caps, d.most_threads(n), d.most_pool_vec4(n) + spare_vec4);
    if (!why.empty()) return unsupported("options.tuning", std::move(why));
    return true;
}

// Chooses the first row that suits the problem and fits the device. A Direction is a MatrixDirection with these:
//
//   on_shape(numbers, shape, khr, turned)  put_on_shape(), and what the direction wants beside it
//   apply_tuning(numbers)                  the caller's numbers, put over these
//   uses_of(numbers)                       USE_* bits
//   malformed(numbers), unfit(numbers)     why no kernel has these numbers, or not on this device, or ""
//   most_threads(numbers), most_pool_vec4(numbers)
//   chosen(row, numbers)                   the TileChoice
template <class Direction, class Rows>
Result<TileChoice> choose_on_matrices(const Direction& d, const Rows& rows, bool khr) {
    const Problem& p = d.problem;
    const VkattnDtype operands = *operand_type(p, d.options);
    if (operands == VKATTN_DTYPE_FLOAT32 && p.dtype != operands)
        return unsupported("",
                           "key or value is of another float type than query, and is rounded only if "
                           "options.precision says so");
    if (operands == VKATTN_DTYPE_FLOAT32)
        return unsupported("",
                           "float32 in means float32 arithmetic, unless options.precision says otherwise");
    const char* const field = operands == p.dtype ? "" : "options.precision";
    if (auto failure = why_no_matrices(d.caps, field)) return *failure;
    if (std::string why_not = d.why_not(); !why_not.empty()) return unsupported(field, std::move(why_not));
    const uint32_t head_dim = std::max(p.head_dim_qk, p.head_dim_v);
    std::string why = fmt::format("the matrix unit has no shape for {}", name_of(operands));
    bool is_any_for_device = false;
    uint32_t most = 0;  // largest head dim of a row for such a problem
    for (const auto& row : rows) {
        if (!is_for(row.device, kind_of(d.caps)) || d.caps.simd_registers < row.simd_registers) continue;
        is_any_for_device = true;
        for (const MatrixShape& shape : d.caps.matrices) {
            if (shape.dtype != operands || !is_usable(shape, matrix_subgroup_size(d.caps))) continue;
            auto n = row_on_shape(d, row.numbers, shape, khr);
            if (!n) return n.failure();
            if ((row.only & ~d.uses_of(*n)) != 0)
                break;  // another shape would not be used better: the largest comes first
            most = std::max(most, row.max_head_dim);
            if (head_dim > row.max_head_dim || is_rejected(d.options, row.name) || !d.suits(row)) break;
            if (const auto ok = d.apply_tuning(*n); !ok) return ok.failure();
            if (const auto ok = fit(d, *n); !ok) {
                if (!d.options.tuning.empty()) return ok.failure();
                why = fmt::format("row {}: {}", row.name, ok.failure().message);
                continue;
            }
            TileChoice tiles = d.chosen(row, *n);
            set_nonfinite_rules(tiles, d.caps, p, d.options);
            return tiles;
        }
    }
    if (!is_any_for_device)
        return unsupported(is_named(d.options) ? "options.kernel" : "",
                           "it has no tuning row for this kind of device");
    if (most != 0 && head_dim > most)
        return unsupported(
            field,
            fmt::format("its tuning rows for this device have registers for at most {} head dims", most));
    return unsupported(field, why);
}

// The module of a kernel on matrix units for these operands, this way of P and the macros of a loop. Float32 storage
// and the pass for dbias have one way.
template <class Numbers>
Module matrix_module(Kernel kernel, const Problem& p, const Numbers& n, uint32_t loop = 0) {
    const bool half = n.shape.dtype == VKATTN_DTYPE_FLOAT16;
    Module module{kernel, loop};
    if (!p.is_all_16bit()) {
        module.macros |= half ? macros::F16_OPERANDS : macros::BF16_OPERANDS;
        if (p.has_mixed_types()) module.macros |= macros::MIXED;
    } else {
        module.macros |= half ? macros::F16 : macros::BF16;
        if (n.turned != 0)
            module.macros |= macros::TURNED;
        else if (kernel != Kernel::backward_matrix_mask)
            module.macros |= n.move == MOVE_CONVERT  ? macros::COOPMAT2
                             : n.move == MOVE_SHARED ? macros::ROUNDED_ACCUMULATORS
                                                     : 0;
    }
    return n.rolled != 0 ? in_cpu_form(module) : module;
}

// The constants that all kernels on matrix units have, of a launch whose module and problem are set.
template <class K, class Numbers>
void set_matrix_constants(Launch<K>& launch, const Problem& p, const Numbers& n) {
    auto& c = launch.constants;
    c.subgroup_size = n.subgroup_size;
    c.matrix_m = n.shape.m;
    c.matrix_n = n.shape.n;
    c.matrix_k = n.shape.k;
    c.p_move = n.move;
    c.element_layout = n.layout;
    c.lane_by_index = n.lane_by_index || launch.module.has(macros::ROLLED);
    c.p_exchanged = n.turned != 0 && n.shape.exchanges;
    c.l2_group_kib = n.l2_group_kib;
    c.min_group_workgroups = n.min_group_workgroups;
    c.mask_row_bytes = mask_row_bytes(p);
    if (p.alignment_bytes % 16 == 0) c.load_bytes = 16;
}

}  // namespace vkattn::core
