// These functions read the disassembly that drivers give of a pipeline, each in a language of its own, and count
// instructions by the units that execute them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vkattn::test {

// These are the instructions of a subgroup in one pass through the loop.
struct LoopCounts {
    uint64_t matrix = 0;          // products of matrices
    uint64_t fma = 0;             // multiply-adds of floats; two where one instruction has two
    uint64_t dot = 0;             // dot products of 16-bit floats
    uint64_t transcendental = 0;  // exp2, log2, reciprocals, roots
    uint64_t vector = 0;          // all other instructions of the vector unit
    uint64_t paired = 0;          // of fma and dot: those that are issued together with another instruction
    uint64_t scalar = 0;
    uint64_t global_loads = 0;
    uint64_t waits = 0, barriers = 0;
    std::map<uint32_t, uint64_t> lds_loads, lds_stores;  // by bits of an invocation

    uint64_t multiplications() const { return matrix + fma + dot; }
    uint64_t instructions() const;
    bool operator==(const LoopCounts&) const = default;
};

// Assembly languages, as RADV, Turnip, NVK and Honeykrisp print them.
enum class Assembly { aco, ir3, nak, agx };

// One instruction of a disassembly, or a label.
struct AssemblyLine {
    enum class Kind { label, instruction, branch, jump } kind = Kind::instruction;
    std::string name;    // of the label or the instruction
    std::string target;  // of a branch, which may go on behind itself, or of a jump, which does not
    // How often it is executed; 0 for the second half of a dual instruction, which takes no time.
    uint64_t times = 1;
};
std::vector<AssemblyLine> parse_assembly(Assembly language, std::string_view text);

// Adds one execution of an instruction.
void count(Assembly language, const AssemblyLine& line, LoopCounts& counts);

}  // namespace vkattn::test
