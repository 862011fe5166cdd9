// Validation: a caller's VkattnProblem becomes a Problem in which every default is resolved, or a Failure
// that names the field. Independent of any device.
#pragma once

#include <cstdint>

#include "result.hpp"
#include "vkattn/types.h"

namespace vkattn::core {

struct Problem : VkattnProblem {
    uint32_t element_bytes = 4;
    uint32_t group_size = 1;
    // Query row i sees key j only if i + bound_lo <= j <= i + bound_hi: causal, window and offset folded into
    // one band, cut to what the sequence lengths can tell apart, so that i + bound never overflows.
    int32_t bound_lo = 0;
    int32_t bound_hi = 0;

    bool empty_output() const { return batch == 0 || seqlen_q == 0; }
    // Whether every stride in bytes fits 32 bits.
    bool narrow_strides() const;
    // Whether offsets within a tile of so many rows fit 31 bits, in bytes.
    bool narrow_rows(uint32_t tile_rows) const;
    const VkattnStrides& strides(int tensor) const {  // 0 .. 3: query, key, value, out
        const VkattnStrides* all[] = {&query_strides, &key_strides, &value_strides, &out_strides};
        return *all[tensor];
    }
};

VkattnProblem default_problem();
VkattnOptions default_options();

Result<Problem> resolve(const VkattnProblem& given);
const char* name_of(VkattnDtype dtype);

}  // namespace vkattn::core
