// Host memory that ends at a chosen allocation of this thread, for a program with faulty_new.cpp in it.
#pragma once

#include <cstdint>

namespace vkattn::test {

struct HostMemory {
    uint64_t until_failure = 0;  // allocations until one fails; 0: none does
    bool of_library = false;     // false: a test or a driver allocates, and nothing fails
    bool has_failed = false;
};
HostMemory& host_memory();  // of this thread

}  // namespace vkattn::test
