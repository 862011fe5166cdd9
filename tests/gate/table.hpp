// What a driver's compiler made of each pipeline, as a table of text, and whether one has become worse than another.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vkattn::test {

struct Usage {
    int64_t result = 0;        // VkResult of its creation; the rest says nothing unless it is 0
    uint64_t registers = 0;    // of an invocation, in the driver's own unit
    uint64_t spills = 0;       // registers or stores to memory, as the driver counts them
    uint64_t stack_bytes = 0;  // private memory; more than spills: arrays that no register can hold
    uint64_t shared_bytes = 0;
    uint64_t occupancy = 0;  // what the driver calls it: subgroups of a SIMD or core, invocations
    uint64_t ms = 0;         // to build it; not compared
};

struct Table {
    std::string driver;  // name and version
    std::map<std::string, Usage> pipelines;
};

// From statistics by the names that Mesa's drivers give them. declared_shared_bytes: for drivers that do not report it.
// Throws std::runtime_error where the driver's names are none of those known.
Usage usage_of(const std::map<std::string, uint64_t>& statistics, uint64_t declared_shared_bytes);

std::string to_text(const Table& table);
Table parse_table(std::string_view text);  // throws std::runtime_error

// Where `now` is worse than `kept`, one line each: a pipeline that fails, spills more or has lost occupancy; and where the
// kept table is not of these pipelines.
std::vector<std::string> regressions(const Table& kept, const Table& now);

}  // namespace vkattn::test
