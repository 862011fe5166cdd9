// Tensors that share memory. fuzz_problem holds the search to a count of the bytes of two strided tensors.
#include <doctest/doctest.h>

#include "overlap.hpp"

using namespace vkattn::core;

namespace {

bool both_ways(const Placement& a, const Placement& b) {
    const bool one = overlap(a, b);
    CHECK_EQ(overlap(b, a), one);
    return one;
}

Placement run_of(uint64_t address, uint64_t bytes) {
    return {address, bytes, {}};
}

// (batch, sequence, 3, heads, head_dim) of 16-bit elements: the query, key or value in it.
Placement packed(uint64_t address, uint64_t which, uint64_t batch, uint64_t seqlen, uint64_t heads,
                 uint64_t head_dim) {
    const uint64_t row = 3 * heads * head_dim * 2;
    return {address + which * heads * head_dim * 2,
            head_dim * 2,
            {{{batch, seqlen * row}, {heads, head_dim * 2}, {seqlen, row}}}};
}

}  // namespace

TEST_CASE("overlap: the tensors of packed buffers interleave and do not overlap") {
    for (const uint64_t batch : {1u, 3u})
        for (const uint64_t seqlen : {1u, 1000u, 1u << 20}) {
            const auto of = [&](uint64_t address, uint64_t which) {
                return packed(address, which, batch, seqlen, 32, 128);
            };
            for (uint64_t i = 0; i < 3; i++)
                for (uint64_t j = 0; j < 3; j++) {
                    CHECK_EQ(both_ways(of(1 << 20, i), of(1 << 20, j)), i == j);
                    // One element further on, a row's last head runs into what comes behind it.
                    const bool next_row = i == 2 && j == 0 && batch * seqlen > 1;
                    CHECK_EQ(both_ways(of((1 << 20) + 2, i), of(1 << 20, j)),
                             i == j || i + 1 == j || next_row);
                }
        }
}

TEST_CASE(
    "overlap: addresses at the ends of the address space, and strides that no memory has, are no proof") {
    CHECK(both_ways(run_of(UINT64_MAX - 20, 10), run_of(UINT64_MAX - 15, 10)));
    CHECK_FALSE(both_ways(run_of(UINT64_MAX - 5, 10), run_of(UINT64_MAX - 5, 10)));
    Placement endless = run_of(1000, 8);
    endless.dims[0] = {uint64_t{1} << 31, uint64_t{1} << 40};
    CHECK_FALSE(both_ways(endless, endless));
    endless.dims[0] = {uint64_t{1} << 31, UINT64_MAX};
    CHECK_FALSE(both_ways(endless, endless));
    Placement large = run_of(1000, 8);
    large.dims[0] = {1 << 18, uint64_t{1} << 40};
    CHECK(both_ways(large, large));
}

TEST_CASE("overlap: a search that takes too long ends, and proves nothing") {
    // Multiples of strides that differ in each dimension: millions of combinations, none of which is tried twice.
    const Placement a{1 << 20, 1, {{{1000, 1000003}, {1000, 999983}, {1000, 999979}, {1000, 999961}}}};
    const Placement b{(1 << 20) + 1, 1, {{{1000, 1000033}, {1000, 999959}, {1000, 999953}, {1000, 999931}}}};
    overlap(a, b);
    CHECK(both_ways(a, a));
}
