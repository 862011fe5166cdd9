// From a case to a verdict on a combine: parts with random content, what fp64 arithmetic makes of them, one combine on
// the device between guards, the comparison. Cases are those of tests/cases/combine.txt.
#pragma once

#include "forward_run.hpp"

namespace vkattn::test {

// Parts are a tensor of the result's shape, part after part; what no element covers is poison.
struct Parts {
    explicit Parts(const Case& c);
    std::byte* row(uint32_t part, uint64_t row_index);
    double at(uint32_t part, uint64_t n) const { return dense[part * per_part + n]; }

    Tensor layout;  // of one part, and but for its type of the result
    uint64_t rows, per_part, part_stride;
    std::vector<double> dense;  // as stored
    std::vector<float> lse;     // (part, row)
    std::vector<std::byte> image;
};

Expected expect(const Case& c, const Parts& parts);
VkattnCombine combine_of(const Case& c, const Parts& parts);

Ran<Outcome> run_combine(Device& device, const Plan& plan, const Case& c, const Parts& parts, Place place);
// Merges parts that the caller has put at `address`; `memory` takes all else.
Ran<Outcome> run_combine(RunMemory& memory, const Plan& plan, const Case& c, const Parts& parts,
                         VkDeviceAddress address);

Report run_combine_case(Device& device, VkattnContext* context, const Case& c);
// Runs a case with far=part; it is in far_results_run.cpp.
Report run_far_combine_case(Device& device, VkattnContext* context, const Case& c);

}  // namespace vkattn::test
