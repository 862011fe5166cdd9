// How the ids of an embedded module are written. In SPIR-V every result has an id of its own, so code that stands twice
// in a module, as inlined functions do, has other words each time, and a compressor does not see that it is the same.
// Written as distances from the id that comes next, ids are small and those of both places are equal. Modules of
// matrix kernels then compress to 42 % of what Zstandard alone makes of them, those of portable kernels to 60 %.
//
// The format: all words stay what they are, but for the operands of instructions from the first OpFunction on. Let next
// be the id that appears next: it starts as 1 and grows by 1 wherever an operand equals it, and it is right because
// spirv-opt --compact-ids numbers ids by their first appearance. Let first be next at the first OpFunction: ids below
// it are of types and constants. An operand from first to next is written as 2 * (next - operand) + 1, any other one is
// rotated to the left by one bit, which doubles it.
#pragma once

#include <cstdint>
#include <span>

namespace vkattn::core {

// Each changes a module in place. False, and words that are good for nothing, if the words are not a header and whole
// instructions. ids_to_distances also refuses an operand that would be read back as a distance: a literal of 2^31 or
// more, which no instruction of a function body has.
bool ids_to_distances(std::span<uint32_t> words);
bool distances_to_ids(std::span<uint32_t> words);

}  // namespace vkattn::core
