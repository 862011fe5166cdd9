// These tests are about callers that were compiled with another version of the header. Most are on a struct of this
// file; VkattnProblem has grown by mask_strides.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include <fmt/format.h>

#include "problem.hpp"
#include "struct_sizes.hpp"

using namespace vkattn;
using namespace vkattn::core;

namespace {

// First is version 0.1 of a struct, its padding included. Grown is today's version, which has two fields more.
struct First {
    size_t struct_size;
    uint64_t strides;
    uint32_t heads;
};
struct Grown {
    size_t struct_size;
    uint64_t strides;
    uint32_t heads;
    uint64_t limit;
    float scale;
};
// Padded has a new field where version 0.1 has padding: its size does not tell.
struct Padded {
    size_t struct_size;
    uint64_t strides;
    uint32_t heads, hidden;
};
struct CountedFields {
    const char* text;
    VkattnStrides strides;  // counts once
    uint32_t extents[4];    // count one by one
    VkattnMaskType mask;
};
static_assert(sizeof(First) == 24 && offsetof(Grown, limit) == 24 && sizeof(Grown) == 40);
constexpr FirstVersion first_of_grown{24, 16, 3};
const Grown defaults{sizeof(Grown), 7, 8, 1000, 0.5f};

std::string text_of(const Grown& g) {
    return fmt::format("{} {} {} {}", g.strides, g.heads, g.limit, g.scale);
}

std::string text_of(const Result<Grown>& read) {
    return read ? text_of(*read) : "refused";
}

// Returns what is read of `size` bytes in which every field differs from its default.
std::string read(size_t size) {
    const Grown given{size, 70, 80, 90, 100};
    return text_of(read_struct("grown", &given, defaults));
}

template <class T>
std::string field_at(T given, size_t size, T own) {
    given.struct_size = size;
    const auto result = read_struct("it", &given, own);
    if (result) return "";
    CHECK_EQ(result.failure().status, VKATTN_INVALID_ARGUMENT);
    CHECK_EQ(result.failure().message,
             fmt::format("{} is no size of this struct ({}): call its init function", size, sizeof(T)));
    return result.failure().field;
}

}  // namespace

namespace vkattn::core {
VKATTN_FIRST_VERSION(Grown, heads, first_of_grown)
VKATTN_LATER_VERSIONS(Grown, limit, 32, 40)
VKATTN_FIRST_VERSION(Padded, heads, first_of_grown)
}  // namespace vkattn::core

TEST_CASE("struct sizes: what an older caller's struct lacks keeps its default") {
    CHECK_EQ(read(sizeof(First)), "70 80 1000 0.5");
    CHECK_EQ(read(32), "70 80 90 0.5");  // a version that had one field more
    CHECK_EQ(read(sizeof(Grown)), "70 80 90 100");
}

TEST_CASE("struct sizes: nothing behind an older caller's struct is read") {
    // The end of a heap block, which AddressSanitizer guards.
    auto* const bytes = new unsigned char[sizeof(First)];
    const First given{sizeof(First), 70, 80};
    std::memcpy(bytes, &given, sizeof given);
    const auto result = read_struct("grown", reinterpret_cast<const Grown*>(bytes), defaults);
    delete[] bytes;
    CHECK_EQ(text_of(result), "70 80 1000 0.5");
}

TEST_CASE("struct sizes: smaller than the first version, or larger than the library's, is refused") {
    for (const size_t size : {size_t{0}, size_t{1}, sizeof(size_t), sizeof(First) - 1, sizeof(Grown) + 1,
                              sizeof(Grown) + 8, SIZE_MAX}) {
        INFO(size);
        CHECK_EQ(field_at(defaults, size, defaults), "it.struct_size");
    }
    const auto null = read_struct<Grown>("it", nullptr, defaults);
    REQUIRE_FALSE(null);
    CHECK_EQ(null.failure().field + " " + null.failure().message, "it is null");
}

TEST_CASE("struct sizes: a size that ends inside a field, or between versions, is refused") {
    for (size_t size = sizeof(First); size <= sizeof(Grown); size++) {
        INFO(size);
        const bool is_version = size == 24 || size == 32 || size == 40;
        CHECK_EQ(field_at(defaults, size, defaults), is_version ? "" : "it.struct_size");
    }
    CHECK_EQ(field_at(default_problem(), version_0_1::problem.size + 4, default_problem()), "it.struct_size");
}

TEST_CASE("struct sizes: a field in the padding of version 0.1 is noticed") {
    CHECK_EQ(count_fields<First>(), 3);
    CHECK_EQ(count_fields<Padded>(), 4);
    CHECK_EQ(count_fields<CountedFields>(), 7);
    CHECK(grows_in_the_open<Grown>());
    CHECK_FALSE(grows_in_the_open<Padded>());
    CHECK(grows_in_the_open<VkattnProblem>());
}

TEST_CASE("struct sizes: a struct is set to its defaults as far as the caller's goes") {
    Grown object{1, 2, 3, 4, 5};
    init_struct(&object, sizeof(First), defaults);
    CHECK_EQ(object.struct_size, sizeof(First));
    CHECK_EQ(text_of(object), "7 8 4 5");
    init_struct(&object, sizeof(Grown), defaults);
    CHECK_EQ(text_of(object), "7 8 1000 0.5");
    struct Newer {
        Grown known;
        uint64_t unknown;
    } newer{{1, 2, 3, 4, 5}, 6};
    init_struct(&newer.known, sizeof newer, defaults);
    CHECK_EQ(newer.known.struct_size, sizeof newer);  // which read_struct refuses, and names
    CHECK_EQ(text_of(newer.known), "7 8 1000 0.5");
    CHECK_EQ(newer.unknown, 6);
    init_struct<Grown>(nullptr, sizeof(Grown), defaults);
}

TEST_CASE("struct sizes: public structs are read from version 0.1's size on") {
    const auto check = [](auto own, FirstVersion first) {
        CHECK_EQ(first_version<decltype(own)>.size, first.size);
        CHECK_EQ(field_at(own, first.size, own), "");
        CHECK_EQ(field_at(own, sizeof own, own), "");
        CHECK_EQ(field_at(own, first.size - 1, own), "it.struct_size");
        CHECK_EQ(field_at(own, sizeof own + 1, own), "it.struct_size");
    };
    VkattnScratch scratch{};
    check(default_problem(), {224, 216, 28});
    check(default_options(), {56, 48, 8});
    check(default_combine(), {104, 96, 12});
    check(default_backward(), {112, 88, 7});
    check(scratch, {24, 16, 3});
    check(VkattnPlanInfo{}, {104, 96, 70});
}

TEST_CASE("struct sizes: a problem of version 0.1 has a contiguous mask") {
    VkattnProblem given = default_problem();
    CHECK_EQ(offsetof(VkattnProblem, mask_strides), 224);  // behind the padding of version 0.1
    given.struct_size = 224;
    given.num_heads_q = 6;
    given.mask_strides = {1, 2, 3};  // whatever lies behind an older caller's struct
    const auto read = read_struct("problem", &given, default_problem());
    REQUIRE(read);
    CHECK_EQ(read->num_heads_q, 6);
    const auto [batch, head, seq] = read->mask_strides;
    for (const uint64_t stride : {batch, head, seq}) CHECK_EQ(stride, VKATTN_CONTIGUOUS);
    given.struct_size = sizeof given;
    const auto now = read_struct("problem", &given, default_problem());
    REQUIRE(now);
    CHECK_EQ(now->mask_strides.seq, 3);
}
