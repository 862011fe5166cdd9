// Few combinations that hold every pair of levels of any two factors: where two features meet, faults are found, and
// all combinations would be billions.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace vkattn::test {

struct Level {
    size_t factor, level;
};

// Whether two levels, of different factors, may stand together.
using Compatible = std::function<bool(Level, Level)>;

// Rows of one level a factor. The same rows for the same arguments; greedy, so not the fewest. Level 0 must be
// compatible with everything but levels of which another row can be made.
std::vector<std::vector<size_t>> all_pairs(const std::vector<size_t>& levels_of_factor,
                                           const Compatible& compatible);

}  // namespace vkattn::test
