// Reads the results of the probe of the matrix units: where a matrix keeps its elements, if that follows from the bits
// of the numbers of element and invocation.
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "kept_text.hpp"
#include "plan/launch.hpp"
#include "plan/matrix.hpp"
#include "probe.hpp"

namespace vkattn::core {
namespace {

constexpr uint32_t none = 7, of_element = 8;  // see element_layout

// The results of one matrix: rows x columns of places, row * 256 + column.
struct Places {
    const std::byte* words;
    uint32_t rows, columns, invocations;

    uint32_t word(size_t i) const {
        uint32_t x = 0;
        std::memcpy(&x, words + i * 4, 4);
        return x;
    }
    uint32_t elements() const { return word(0); }
    uint32_t at(uint32_t invocation, uint32_t e) const {
        return word(1 + size_t{invocation} * PROBE_ELEMENTS + e);
    }
};

// Bit b of a place, rows first, in the order of the constant element_layout.
uint32_t place_bit(uint32_t place, uint32_t b) {
    return (b < 4 ? place >> (8 + b) : place >> (b - 4)) & 1;
}

uint32_t predicted(uint32_t layout, uint32_t invocation, uint32_t e, uint32_t b) {
    const uint32_t from = layout >> (4 * b) & 15;
    if (from == none) return 0;
    return (from >= of_element ? e >> (from - of_element) : invocation >> from) & 1;
}

// Finds the bit of an invocation's number, or of an element's, that decides bit b of the place; none if it never
// changes.
uint32_t source_of(const Places& places, uint32_t b) {
    for (uint32_t i = 0; (1u << i) < places.elements(); i++)
        if (place_bit(places.at(0, 1u << i), b) != 0) return of_element + i;
    for (uint32_t i = 0; (1u << i) < places.invocations; i++)
        if (place_bit(places.at(1u << i, 0), b) != 0) return i;
    return none;
}

// Returns the layout, if each bit of a place is one bit of those numbers and every place occurs once; else 0.
uint32_t layout_of(const Places& places) {
    const uint32_t elements = places.rows * places.columns / places.invocations;
    if (places.rows > 16 || places.columns > 16 || places.invocations > PROBE_INVOCATIONS) return 0;
    if (places.elements() != elements || elements > PROBE_ELEMENTS || !std::has_single_bit(elements))
        return 0;
    uint32_t layout = 0;
    for (uint32_t b = 0; b < 8; b++) layout |= source_of(places, b) << (4 * b);
    std::array<bool, 256> found{};
    for (uint32_t i = 0; i < places.invocations; i++)
        for (uint32_t e = 0; e < elements; e++) {
            const uint32_t place = places.at(i, e);
            if (place / 256 >= places.rows || place % 256 >= places.columns) return 0;
            if (std::exchange(found[place / 256 * places.columns + place % 256], true)) return 0;
            for (uint32_t b = 0; b < 8; b++)
                if (place_bit(place, b) != predicted(layout, i, e, b)) return 0;
        }
    return layout;
}

// True if an operand's invocation number modulo `rows` is its row (a left operand's, or a right one's column), and its
// elements run along the other index, on in the invocations that follow.
bool runs_along(const Places& places, bool left) {
    const uint32_t held = left ? places.rows : places.columns, along = left ? places.columns : places.rows;
    if (places.invocations > PROBE_INVOCATIONS || places.elements() == 0 ||
        places.elements() > PROBE_ELEMENTS)
        return false;
    for (uint32_t i = 0; i < places.invocations; i++)
        for (uint32_t e = 0; e < places.elements(); e++) {
            const uint32_t first = i % held, second = (i / held * places.elements() + e) % along;
            if (places.at(i, e) != (left ? first * 256 + second : second * 256 + first)) return false;
        }
    return true;
}

// Rows of an accumulator that alternate between the halves of 32 invocations, as on RDNA3: row bit 0 is invocation bit
// 4, the others are the element's; columns are the invocation's other bits.
constexpr uint32_t alternating = 0x3210'a984;

// Finds whether an accumulator becomes a right operand in registers. It does if both have one layout, or if each half
// of the subgroup has the whole right operand: then the halves exchange P (put_p() of lib/matrix_layout.glsl, float16
// only).
void note_turned(MatrixShape& shape, const Places& left, const Places& right) {
    if (shape.layout == 0 || shape.m != shape.n || shape.n != shape.k || !runs_along(left, true)) return;
    const uint32_t rows = shape.layout & 0xffff, columns = shape.layout >> 16;
    const uint32_t elements = shape.m * shape.n / left.invocations;
    if (left.elements() == elements && shape.layout == layout_of(right)) {
        shape.turned_layout = columns | rows << 16;
    } else if (shape.dtype == VKATTN_DTYPE_FLOAT16 && shape.layout == alternating && left.invocations == 32 &&
               left.elements() == 16 && right.elements() == 16 && runs_along(right, false)) {
        // Keys are staged so that bit 0 of an accumulator's row is bit 3 of the key.
        shape.turned_layout = columns | (rows >> 4 | (rows & 15) << 12) << 16;
        shape.exchanges = true;
    }
}

}  // namespace

Plan probe_plan(const DeviceCaps& caps) {
    const uint32_t subgroup_size = matrix_subgroup_size(caps);
    Plan plan;
    if (subgroup_size == 0 || !has_kernel(caps, Kernel::probe_matrix)) return plan;
    for (const MatrixShape& shape : caps.matrices) {
        if (!is_usable(shape, subgroup_size)) continue;
        Launch<kernels::probe_matrix> launch;
        launch.module = {Kernel::probe_matrix,
                         shape.dtype == VKATTN_DTYPE_FLOAT16 ? macros::F16 : macros::BF16};
        launch.constants = {subgroup_size, subgroup_size, shape.m, shape.n, shape.k};
        VKATTN_PATCH(launch, results, Region::out, plan.pipelines.size() * probe_bytes);
        launch.writes = bit(Region::out);
        add_dispatch(plan, add_pipeline(plan, launch.pipeline()), {1, 1, 1}, {}, 0);
    }
    return plan;
}

uint64_t probe_size(const DeviceCaps& caps) {
    return probe_plan(caps).dispatches.size() * probe_bytes;
}

bool has_probe_results(const DeviceCaps& caps, const std::byte* results) {
    const uint32_t subgroup_size = matrix_subgroup_size(caps);
    for (const MatrixShape& shape : caps.matrices) {
        if (!is_usable(shape, subgroup_size)) continue;
        const uint32_t elements = Places{results, shape.m, shape.n, subgroup_size}.elements();
        if (elements != 0 && elements <= PROBE_ELEMENTS) return true;
        results += probe_bytes;
    }
    return false;
}

void note_probe(DeviceCaps& caps, const std::byte* results) {
    if (probe_size(caps) == 0) return;
    const uint32_t subgroup_size = matrix_subgroup_size(caps);
    for (MatrixShape& shape : caps.matrices) {
        if (!is_usable(shape, subgroup_size)) continue;
        shape.layout = layout_of({results, shape.m, shape.n, subgroup_size});
        const Places left{results + size_t{PROBE_WORDS} * 4, shape.m, shape.k, subgroup_size};
        shape.left_alike = shape.layout != 0 && shape.layout == layout_of(left) && shape.n == shape.k;
        // Its modules add 64-bit addresses.
        if (caps.int64)
            note_turned(shape, left, {results + size_t{PROBE_WORDS} * 8, shape.k, shape.n, subgroup_size});
        const uint32_t found = Places{results, shape.m, shape.n, subgroup_size}.elements();
        shape.uneven = found != 0 && found != shape.m * shape.n / subgroup_size;
        results += probe_bytes;
    }
}

// The first line of the body has what else the findings follow from.
std::string probe_text(const DeviceCaps& caps, std::string_view version) {
    std::string body = fmt::format("subgroups {} int64 {:d}\n", matrix_subgroup_size(caps), caps.int64);
    for (const MatrixShape& s : caps.matrices)
        body += fmt::format("{}x{}x{} {} layout {} left {:d} turned {} exchanges {:d} uneven {:d}\n", s.m,
                            s.n, s.k, name_of(s.dtype), s.layout, s.left_alike, s.turned_layout, s.exchanges,
                            s.uneven);
    return kept_text("probe", caps, version, body);
}

// Whatever has been read, the text that it gives has to be the one that was read.
bool note_probe_text(DeviceCaps& caps, std::string_view text, std::string_view version) {
    std::istringstream body{std::string(kept_body("probe", caps, version, text))};
    std::string line, word;
    std::getline(body, line);
    DeviceCaps told = caps;
    for (MatrixShape& s : told.matrices)
        body >> word >> word >> word >> s.layout >> word >> s.left_alike >> word >> s.turned_layout >> word >>
            s.exchanges >> word >> s.uneven;
    if (probe_text(told, version) != text) return false;
    caps = std::move(told);
    return true;
}

}  // namespace vkattn::core
