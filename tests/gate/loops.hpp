// These functions find the steady loop of a kernel in the disassembly that drivers give, and count its instructions.
// The steady loop has products, exponents and, if any such loop has them, loads from memory. Of several, it is the one
// with the fewest instructions for each product of matrices, or for each multiply-add where there are none. Ways that
// enter another of them are not counted: so a loop over the blocks of a tile that has something hidden is told from the
// loop over tiles that have not. Of the ways through the steady loop, the one with the most multiplications is counted;
// among equals, the one with the most loads from memory, and then the one with the fewest instructions. That is the way
// of a tile in which nothing is hidden, while the next tile is loaded. Stores to shared memory that only some subgroups
// make are left out. A loop inside the steady one counts as often as it is run, where LoopWork says what a pass has to
// multiply and the counts come out at that within a tenth; otherwise all loops count once.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "gate/assembly.hpp"

namespace vkattn::test {

// LoopWork says what an invocation of a forward without matrix units multiplies in one pass of the steady loop, in
// multiply-adds or dot products. Loops that come before the exponents are of Q.K^T, those behind them of P.V. How often
// a loop runs follows from what it multiplies each time; and where loops are nested, the outer one stages tiles.
struct LoopWork {
    struct Product {
        double multiplications = 0;
        double stages = 1;  // times that its operands are staged
    } qk, pv;
};

// Returns the counts of the steady loop, which are zeros where no loop multiplies.
LoopCounts steady_loop(Assembly language, std::string_view text, const std::optional<LoopWork>& work = {});

// A bound has the clocks that each unit of a SIMD needs for one pass of one subgroup, by published rates. It leaves out
// bank conflicts and waiting.
struct LoopBound {
    double matrix = 0;          // the products of matrices
    double vector = 0;          // these and all vector instructions, because one port issues both
    double transcendental = 0;  // of a unit of their own
    double lds = 0;             // where all SIMDs that share the LDS run this loop
    double scalar = 0;

    double most() const;
    const char* unit() const;  // the one that takes most
};

// Rates of a GPU, in clocks of a SIMD for an instruction of a subgroup.
struct UnitRates {
    const char* device;  // part of the device's name
    double matrix, vector, transcendental;
    double simds;    // that share an LDS, which moves 128 bytes a clock
    uint32_t lanes;  // of a subgroup
};
// Returns null for devices whose rates are not in the list.
const UnitRates* rates_of(std::string_view device_name);
LoopBound bound_of(const LoopCounts& counts, const UnitRates& rates);

}  // namespace vkattn::test
