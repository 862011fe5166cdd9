// Plans whose first dispatches decode keys or values.
#pragma once

#include <optional>
#include <string>

#include "plan_reading.hpp"

namespace vkattn::test {

// The first flaw of what decodes, "" if there is none.
std::string decoding_flaw(const Given& g);

// A plan without the dispatches that decode, and the problem that it is then a plan of; nothing if none decodes.
struct Undecoded {
    core::Problem p;
    core::Plan plan;
};
std::optional<Undecoded> behind_decoding(const Given& g);

}  // namespace vkattn::test
