// Tells whether two strided tensors share memory, from their addresses and strides alone.
#pragma once

#include <array>
#include <cstdint>

namespace vkattn::core {

// The bytes of a tensor: runs of run_bytes, one for each index of `dims`, that begin at address + the sum of
// index * stride_bytes.
struct Placement {
    struct Dim {
        uint64_t count = 1, stride_bytes = 0;
        bool operator==(const Dim&) const = default;
    };
    uint64_t address = 0;
    uint64_t run_bytes = 0;  // 0: the tensor is empty
    std::array<Dim, 4> dims{};
    bool operator==(const Placement&) const = default;
};

// True if some byte belongs to both, which is then certain. False if none does, and where the search for one was given
// up: tensors that nest in one another with many different strides can hide a common byte.
bool overlap(const Placement& a, const Placement& b);

}  // namespace vkattn::core
