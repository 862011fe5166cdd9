// Tensors that share memory: the test of two strided tensors against a count of their bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "overlap.hpp"

using namespace vkattn::core;

namespace {

// The bytes stand in order, each once.
std::vector<uint64_t> bytes_of(const Placement& p) {
    std::vector<uint64_t> bytes;
    const auto& d = p.dims;
    for (uint64_t i = 0; i < d[0].count; i++)
        for (uint64_t j = 0; j < d[1].count; j++)
            for (uint64_t k = 0; k < d[2].count; k++)
                for (uint64_t l = 0; l < d[3].count; l++)
                    for (uint64_t byte = 0; byte < p.run_bytes; byte++)
                        bytes.push_back(p.address + i * d[0].stride_bytes + j * d[1].stride_bytes +
                                        k * d[2].stride_bytes + l * d[3].stride_bytes + byte);
    std::ranges::sort(bytes);
    bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
    return bytes;
}

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

TEST_CASE("overlap: random tensors, with any strides, against a count of their bytes") {
    std::mt19937 random(20);
    const auto upto = [&](uint32_t most) { return uint64_t{random() % (most + 1)}; };
    int overlapping = 0, apart = 0, nested = 0;
    for (int i = 0; i < 30000; i++) {
        // A few strides, so that both tensors often have the same.
        const uint64_t strides[] = {upto(4), upto(12), upto(40), upto(100)};
        const auto make = [&] {
            Placement p{1000 + upto(120), 1 + upto(5), {}};
            for (auto& [count, stride] : p.dims) {
                count = upto(9) == 0 ? upto(1) : 1 + upto(3);
                stride = upto(3) != 0 ? strides[upto(3)] : upto(60);
            }
            if (upto(30) == 0) p.run_bytes = 0;
            return p;
        };
        const Placement a = make(), b = make();
        const auto of_a = bytes_of(a), of_b = bytes_of(b);
        std::vector<uint64_t> shared;
        std::ranges::set_intersection(of_a, of_b, std::back_inserter(shared));
        const bool expected = !shared.empty();
        INFO("case " << i);
        REQUIRE_EQ(both_ways(a, b), expected);
        (expected ? overlapping : apart)++;
        if (!expected && !of_a.empty() && !of_b.empty() && of_a.front() < of_b.back() &&
            of_b.front() < of_a.back())
            nested++;
    }
    CHECK_GT(overlapping, 3000);
    CHECK_GT(apart, 3000);
    CHECK_GT(nested, 1000);  // lie within each other's range and share nothing
}

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
