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

struct Usage {
    int64_t result = 0;        // VkResult of its creation; the rest says nothing unless it is 0
    uint64_t registers = 0;    // of an invocation, in the driver's own unit
    uint64_t spills = 0;       // registers or stores to memory, as the driver counts them
    uint64_t stack_bytes = 0;  // private memory; more than spills: arrays that no register can hold
    uint64_t shared_bytes = 0;
    uint64_t occupancy = 0;  // what the driver calls it: subgroups of a SIMD or core, invocations
    uint64_t ms = 0;         // to build it; not compared

    LoopCounts loop{};  // of the steady loop
    bool has_loop = false, has_exponents = false;
    uint64_t clocks = 0;        // of the unit that takes most in a pass; without known rates, instructions
    std::string unit = "none";  // that unit; "none" where no loop multiplies
};

struct Row {
    uint32_t constants = 0;  // a hash of the constants that the pipeline is built with
    Usage usage;             // in a kept table only what is compared, and of the stack only that there is one
    uint64_t key = 0;        // equal keys stand for the same words and constants; not in a kept table
};

struct Table {
    std::string driver;                    // name and version
    std::map<std::string, Row> pipelines;  // a name begins with the module
};

// What the kept tables were built from. The hash of a module is of its SPIR-V, and of the rows that it has in all
// tables: where a merge takes the SPIR-V of one branch and the rows of another, it is none that was kept.
struct Modules {
    std::string shader_compiler;  // name and version
    std::map<std::string, uint64_t, std::less<>> hashes;

    void add_rows(const Table& table);
    bool has_same(std::string_view name, const Modules& other) const;
};

// From statistics by the names that Mesa's drivers give them. declared_shared_bytes: for drivers that do not report it.
// Throws std::runtime_error where the driver's names are none of those known.
Usage usage_of(const std::map<std::string, uint64_t>& statistics, uint64_t declared_shared_bytes);

// The name of Honeykrisp's code, which it prints to stdout instead of returning it by a name.
constexpr const char* honeykrisp_code = "printed by Honeykrisp";

// Adds what the pipeline's texts tell of its steady loop; they go by the names that Mesa's drivers give them. Throws
// std::runtime_error where there is no assembly among them.
void add_loop(Usage& usage, const std::map<std::string, std::string>& code, std::string_view device_name,
              const std::optional<LoopWork>& work = {});

// The text of a kept table, which has a line for each pipeline under the name of its module.
std::string to_text(const Table& table);
Table parse_table(std::string_view text);  // throws std::runtime_error

std::string to_text(const Modules& modules);
Modules parse_modules(std::string_view text);  // throws std::runtime_error

// All numbers of whole pipelines, or of their steady loops, to be looked at.
std::string whole_text(const Table& table, bool loops);

// Share number `index` (from 0) of `count` equal ones of all keys; there is none where the count is 0.
struct Share {
    uint64_t index = 0, count = 0;
    bool has(uint64_t key) const { return count != 0 && key % count == index; }
};

// What decides whether a pipeline has changed.
struct Identity {
    uint64_t key = 0;        // a hash of all that the pipeline is built from
    uint32_t constants = 0;  // a hash of its constants alone
    bool has_kept_module = true;
};

// Makes a table row by row, and builds the pipeline of each key at most once.
class TableBuilder {
  public:
    explicit TableBuilder(std::string driver);

    // Takes over the numbers of a table of the same driver: pipelines that have not changed are not built, except for a
    // share that is built again.
    void keep(const Table& kept, Share again = {});

    // Adds a row. If the name already stands for a pipeline of another key, the row gets a number behind its name.
    void add(const std::string& name, const Identity& identity, const std::function<Usage()>& build);

    const Table& table() const { return table_; }
    const std::map<uint64_t, Usage>& built() const { return built_; }
    size_t rows_kept() const { return rows_kept_; }
    size_t rows_changed() const { return rows_changed_; }  // or new

  private:
    Table table_, kept_;
    Share again_;
    std::map<uint64_t, Usage> built_;  // by key
    size_t rows_kept_ = 0, rows_changed_ = 0;
};

// Explains why kept numbers cannot stand for pipelines that are built now; empty if they can.
std::string other_tools(const std::string& kept, const std::string& now);

// Says where `now` is worse than `kept`, one line each: a pipeline that fails, spills more, has a stack or has lost
// occupancy, or whose steady loop is lost or takes over 3 % more; and where `kept` is not of these pipelines.
std::vector<std::string> regressions(const Table& kept, const Table& now);

// Returns the table to keep after `now`. Clocks that are at most 1.9 % below those of `kept`, or 3 % above, do not
// change what is kept, so that small changes of a kernel rewrite no lines. What is kept is then never more than
// 1 / 0.981 of what was built, so whatever takes over 5 % more than that fails: 1.03 / 0.981 < 1.05.
Table bounds_of(const Table& kept, const Table& now);

}  // namespace vkattn::test
