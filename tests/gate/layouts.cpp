#include "gate/layouts.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>

#include "device_tests/probe.hpp"
#include "plan/matrix.hpp"

namespace vkattn::test {
namespace {

struct Place {
    uint32_t row, column;
};
using PlaceOf = Place (*)(uint32_t invocation, uint32_t element);

// All matrices are 16 x 16, and subgroups have 32 invocations.
struct MatrixLayout {
    const char* word;
    const char* device;  // part of the device's name
    PlaceOf accumulator, left, right;
    uint32_t operand_elements;  // of an invocation
};

// compute_mat() of Mesa's src/nouveau/compiler/nak_nir_lower_cmat.c with groups of two elements: left operands and
// accumulators are laid out alike, as PTX describes the operands of mma.m16n8k16.
Place nvidia(uint32_t i, uint32_t e) {
    return {i / 4 + 8 * (e / 2 % 2), i % 4 * 2 + e % 2 + 8 * (e / 4)};
}

Place nvidia_right(uint32_t i, uint32_t e) {
    return {i % 4 * 2 + e % 2 + 8 * (e / 2 % 2), i / 4 + 8 * (e / 4)};
}

// The comment that opens Mesa's src/amd/vulkan/nir/radv_nir_lower_cooperative_matrix.c: an invocation has one column of
// an accumulator and of a right operand, but one row of a left operand.
Place rdna4(uint32_t i, uint32_t e) {
    return {i / 16 * 8 + e, i % 16};
}
Place rdna4_left(uint32_t i, uint32_t e) {
    return {i % 16, i / 16 * 8 + e};
}

// radv_get_base_row() of the same file: rows of an accumulator alternate between the halves of a subgroup, and both
// halves have all of an operand.
Place rdna3(uint32_t i, uint32_t e) {
    return {2 * e + i / 16, i % 16};
}
Place rdna3_left(uint32_t i, uint32_t e) {
    return {i % 16, e};
}
Place rdna3_right(uint32_t i, uint32_t e) {
    return {e, i % 16};
}

constexpr MatrixLayout layouts[] = {{"layout-nvidia", "NVK", nvidia, nvidia, nvidia_right, 8},
                                    {"layout-rdna4", "RADV GFX12", rdna4, rdna4_left, rdna4, 8},
                                    {"layout-rdna3", "RADV NAVI3", rdna3, rdna3_left, rdna3_right, 16},
                                    {"layout-rdna3", "RADV PHOENIX", rdna3, rdna3_left, rdna3_right, 16},
                                    {"layout-rdna3", "RADV STRIX", rdna3, rdna3_left, rdna3_right, 16}};

bool fits(const core::MatrixShape& shape) {
    return shape.m == 16 && shape.n == 16 && shape.k == 16;
}

// One matrix as shaders/probe_matrix.comp writes it.
void write_matrix(std::span<uint32_t> words, PlaceOf place_of, uint32_t elements) {
    words[0] = elements;
    for (uint32_t i = 0; i < 32; i++)
        for (uint32_t e = 0; e < std::min<uint32_t>(elements, PROBE_ELEMENTS); e++) {
            const Place place = place_of(i, e);
            words[1 + size_t{i} * PROBE_ELEMENTS + e] = place.row * 256 + place.column;
        }
}

// Returns what the probe would write on a device of this layout. Shapes that it does not fit stay zeros, which tell
// nothing.
std::vector<uint32_t> probe_results(const core::DeviceCaps& caps, const MatrixLayout& layout) {
    std::vector<uint32_t> words;
    for (const core::MatrixShape& shape : caps.matrices) {
        if (!is_usable(shape, matrix_subgroup_size(caps))) continue;
        words.resize(words.size() + core::probe_bytes / 4);
        if (!fits(shape)) continue;
        const std::span results = std::span(words).last(core::probe_bytes / 4);
        write_matrix(results.first(PROBE_WORDS), layout.accumulator, 8);
        write_matrix(results.subspan(PROBE_WORDS, PROBE_WORDS), layout.left, layout.operand_elements);
        write_matrix(results.last(PROBE_WORDS), layout.right, layout.operand_elements);
    }
    return words;
}

}  // namespace

std::vector<KnownDevice> with_known_layouts(const core::DeviceCaps& caps) {
    std::vector<KnownDevice> all = {{"", caps}};
    for (core::MatrixShape& shape : all.front().caps.matrices) {
        shape.layout = shape.turned_layout = 0;
        shape.left_alike = shape.exchanges = false;
    }
    for (const MatrixLayout& layout : layouts) {
        if (caps.name.find(layout.device) == std::string::npos || matrix_subgroup_size(caps) != 32 ||
            std::none_of(caps.matrices.begin(), caps.matrices.end(), fits))
            continue;
        core::DeviceCaps known = all.front().caps;
        const std::vector<uint32_t> results = probe_results(known, layout);
        note_probe(known, std::as_bytes(std::span(results)).data());
        for (const core::MatrixShape& shape : known.matrices)
            if (fits(shape) && shape.layout == 0)
                throw std::runtime_error(std::string("the probe does not find ") + layout.word);
        all.push_back({layout.word, known});
    }
    return all;
}

}  // namespace vkattn::test
