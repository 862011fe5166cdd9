// Plans that decode keys and values to 16 bits before a forward, and not while it stages them.
#pragma once

#include <optional>

#include "build.hpp"

namespace vkattn::core {

// Returns the problem that remains if blocks and single bytes of key and value are decoded to `operands` first. Returns
// nothing if key and value have neither, or if decoding them first is not worth it.
std::optional<Problem> decoded_problem(const Problem& problem, const Options& options, VkattnDtype operands);

// Turns a plan of that problem into one of `problem`, whose first dispatches decode. Returns false if scratch has no
// room for it, or if this build has no such kernel.
Result<bool> decode_first(const DeviceCaps& caps, const Problem& problem, const Options& options, Plan& plan);

}  // namespace vkattn::core
