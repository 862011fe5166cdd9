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

// Whose allocations may fail while it lives: those of the library, and not of the driver that it calls.
struct Allocating {
    explicit Allocating(bool of_library) : before(host_memory().of_library) {
        host_memory().of_library = of_library;
    }
    Allocating(const Allocating&) = delete;
    ~Allocating() { host_memory().of_library = before; }
    bool before;
};
struct InDriver : Allocating {
    InDriver() : Allocating(false) {}
};

}  // namespace vkattn::test
