// What a driver's compiler made of each pipeline, as a table of text, and whether one has become worse than another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gate/loops.hpp"

namespace vkattn::test {

// A table has either what the driver reports of whole pipelines, or the instructions of their steady loops.
enum class Form { usage, loops };

struct Usage {
    int64_t result = 0;        // VkResult of its creation; the rest says nothing unless it is 0
    uint64_t registers = 0;    // of an invocation, in the driver's own unit
    uint64_t spills = 0;       // registers or stores to memory, as the driver counts them
    uint64_t stack_bytes = 0;  // private memory; more than spills: arrays that no register can hold
    uint64_t shared_bytes = 0;
    uint64_t occupancy = 0;  // what the driver calls it: subgroups of a SIMD or core, invocations
    uint64_t ms = 0;         // to build it; not compared

    // Tables of loops have only these; other tables do not have them.
    LoopCounts loop{};
    uint64_t clocks = 0;        // of the unit that takes most in a pass; without known rates, instructions
    std::string unit = "none";  // that unit; "none" where no loop multiplies
};

struct Row {
    uint64_t key = 0;  // the pipeline's fingerprint: equal keys stand for the same words and constants
    Usage usage;
};

struct Table {
    std::string driver, shader_compiler;  // names and versions
    std::map<std::string, Row> pipelines;
    Form form = Form::usage;
};

// From statistics by the names that Mesa's drivers give them. declared_shared_bytes: for drivers that do not report it.
// Throws std::runtime_error where the driver's names are none of those known.
Usage usage_of(const std::map<std::string, uint64_t>& statistics, uint64_t declared_shared_bytes);

// The name of Honeykrisp's code, which it prints to stdout instead of returning it by a name.
constexpr const char* honeykrisp_code = "printed by Honeykrisp";

// From a pipeline's texts by the names that Mesa's drivers give them. Throws std::runtime_error where there
// is no assembly among them.
Usage loop_usage_of(const std::map<std::string, std::string>& code, std::string_view device_name,
                    const std::optional<LoopWork>& work = {});

std::string to_text(const Table& table);
Table parse_table(std::string_view text, Form form = Form::usage);  // throws std::runtime_error

// Share number `index` (from 0) of `count` equal ones of all keys; there is none where the count is 0.
struct Share {
    uint64_t index = 0, count = 0;
    bool has(uint64_t key) const { return count != 0 && key % count == index; }
};

// Makes a table row by row, and builds the pipeline of each key at most once.
class TableBuilder {
  public:
    TableBuilder(std::string driver, std::string shader_compiler, Form form = Form::usage);

    // Takes over the numbers of a table of the same driver and shader compiler: pipelines of its keys are not built,
    // except for a share that is built again.
    void keep(const Table& kept, Share again = {});

    // Adds a row. If the name already stands for a pipeline of another key, the row gets a number behind its name.
    void add(const std::string& name, uint64_t key, const std::function<Usage()>& build);

    const Table& table() const { return table_; }
    const std::map<uint64_t, Usage>& built() const { return built_; }
    size_t rows_kept() const;

  private:
    Table table_;
    std::map<uint64_t, Usage> kept_, built_;  // by key
};

// Explains why the numbers of a kept table cannot stand for pipelines that are built now; empty if they can.
std::string other_tools(const Table& kept, const Table& now);

// Says where `now` is worse than `kept`, one line each: a pipeline that fails, spills more or has lost
// occupancy, or whose steady loop takes over 5 % more; and where the kept table is not of these pipelines.
std::vector<std::string> regressions(const Table& kept, const Table& now);

// Counts the rows of `now` whose pipeline is not the one that the kept row was built from.
size_t rows_of_other_keys(const Table& kept, const Table& now);

}  // namespace vkattn::test
