// Decoding keys and values to 16 bits before a forward, in place of decoding them while they are staged.
#pragma once

#include <optional>

#include "build.hpp"

namespace vkattn::core {

// Returns the problem that remains if blocks and single bytes of key and value are decoded to `operands` first; nothing
// where they are not, or where too few query rows see too few of them.
std::optional<Problem> decoded_problem(const Problem& problem, const Options& options, VkattnDtype operands);

// Turns a plan of that problem into one of `problem`, whose first dispatches decode. False if scratch has no room for
// it, or this build no kernel.
Result<bool> decode_first(const DeviceCaps& caps, const Problem& problem, const Options& options, Plan& plan);

}  // namespace vkattn::core
