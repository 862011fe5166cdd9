// Few combinations that hold every pair of levels of any two factors: where two features meet, faults are found, and
// all combinations would be billions.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "vkattn/types.h"

namespace vkattn::test {

struct Level {
    size_t factor, level;
};

// Whether two levels, of different factors, may stand together.
using Compatible = std::function<bool(Level, Level)>;

// One level a factor.
using Row = std::vector<size_t>;
// What a row costs beside those that are there, in pairs that it must hold more than another one.
using Cost = std::function<size_t(const std::vector<Row>&, const Row&)>;

// The same rows for the same arguments; greedy, so not the fewest. Throws std::logic_error where what is incompatible
// leaves a factor without a level.
std::vector<Row> all_pairs(const std::vector<size_t>& levels_of_factor, const Compatible& compatible,
                           const Cost& cost);

// Words of a case line that depend on its shape. `row` varies them.
std::string lengths_of(const VkattnProblem& p, size_t row);
std::string offsets_of(const VkattnProblem& p, size_t row);
std::string cut_of(const VkattnProblem& p);

}  // namespace vkattn::test
