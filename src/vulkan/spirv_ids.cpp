#include "spirv_ids.hpp"

#include <bit>

namespace vkattn::core {
namespace {

// Numbers of the SPIR-V specification: sections 2.3 "Physical Layout" and 3.49 "Instructions".
constexpr uint32_t header_words = 5, op_function = 54;

// The ids that function bodies can have so far: first to next.
struct Range {
    uint32_t first, next;

    bool contains(uint32_t id) const { return first <= id && id <= next; }
    bool is_distance(uint32_t code) const { return code % 2 == 1 && code / 2 <= next - first; }
};

// Calls change(operand, range) for each operand of a function body; it returns the operand as it is in SPIR-V.
template <class Change>
bool change_operands(std::span<uint32_t> words, Change change) {
    if (words.size() < header_words) return false;
    bool in_functions = false;
    Range range{0, 1};
    for (size_t at = header_words; at < words.size();) {
        const uint32_t opcode = words[at] & 0xffff, length = words[at] >> 16;
        if (length == 0 || length > words.size() - at) return false;
        if (opcode == op_function && !in_functions) {
            in_functions = true;
            range.first = range.next;
        }
        for (uint32_t& operand : words.subspan(at + 1, length - 1))
            range.next += (in_functions ? change(operand, range) : operand) == range.next ? 1 : 0;
        at += length;
    }
    return true;
}

}  // namespace

bool ids_to_distances(std::span<uint32_t> words) {
    bool clear = true;
    return change_operands(words,
                           [&](uint32_t& operand, const Range& range) {
                               const uint32_t id = operand;
                               if (range.contains(id)) {
                                   operand = 2 * (range.next - id) + 1;
                               } else {
                                   operand = std::rotl(id, 1);
                                   clear = clear && !range.is_distance(operand);
                               }
                               return id;
                           }) &&
           clear;
}

bool distances_to_ids(std::span<uint32_t> words) {
    return change_operands(words, [](uint32_t& operand, const Range& range) {
        operand = range.is_distance(operand) ? range.next - operand / 2 : std::rotr(operand, 1);
        return operand;
    });
}

}  // namespace vkattn::core
