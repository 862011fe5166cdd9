// Plans whose first dispatches decode keys or values.
#pragma once

#include <optional>
#include <string>

#include "plan_reading.hpp"

namespace vkattn::test {

// Returns the first flaw of the dispatches that decode, or "".
std::string decoding_flaw(const Given& g);

// Returns a plan without the dispatches that decode, and the problem that it then is of. Nothing if none decodes.
struct Undecoded {
    core::Problem p;
    core::Plan plan;
};
std::optional<Undecoded> behind_decoding(const Given& g);

}  // namespace vkattn::test
