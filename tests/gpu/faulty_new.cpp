// A file of its own: where GCC sees these definitions, it inlines them and then takes `free` for the wrong function.
#include "faulty_new.hpp"

#include <cstdlib>
#include <new>

namespace vkattn::test {

HostMemory& host_memory() {
    thread_local HostMemory memory;
    return memory;
}

}  // namespace vkattn::test

namespace {

bool fails_now() {
    vkattn::test::HostMemory& memory = vkattn::test::host_memory();
    if (!memory.of_library || memory.until_failure == 0 || --memory.until_failure != 0) return false;
    memory.has_failed = true;
    return true;
}

}  // namespace

// These serve the whole test program. AddressSanitizer brings functions of its own for those that are not here, and
// takes memory that one of its own has allocated and one of these has freed for a fault: so they are pairs.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return fails_now() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void* operator new(std::size_t size) {
    void* const memory = operator new(size, std::nothrow);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
    std::free(memory);
}
