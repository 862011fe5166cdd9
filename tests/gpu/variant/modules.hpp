// Modules as an application would compile them: shaders/ with a file of its own in the place of one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vkattn::test {

// The words of each module, by the name of the one that it stands in for.
std::map<std::string, std::vector<uint32_t>> variant_modules();

}  // namespace vkattn::test
