// Validation of masks, of bounds that are added to on the device, and of combines.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan_cases.hpp"
#include "problem_bounds.hpp"
#include "problem_fields.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Combine;
using core::Problem;
using core::resolve;

namespace {

constexpr int32_t int_min = std::numeric_limits<int32_t>::min(),
                  int_max = std::numeric_limits<int32_t>::max();

Problem masked(uint32_t rank, std::array<uint32_t, 4> extents, VkattnProblem p = legal()) {
    p.mask = VKATTN_MASK_BOOL;
    p.mask_rank = rank;
    std::copy(extents.begin(), extents.end(), p.mask_extents);
    return resolved(p);
}

std::array<uint64_t, 3> strides(const Problem& p) {
    return {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
}

using Strides = std::array<uint64_t, 3>;

}  // namespace

TEST_CASE("problem: mask shapes") {
    const auto masked = [](uint32_t rank, std::array<uint32_t, 4> extents) {
        return bad_field([&](VkattnProblem& p) {  // (2, 6, 5, 9)
            p.mask = VKATTN_MASK_FLOAT;
            p.mask_rank = rank;
            std::copy(extents.begin(), extents.end(), p.mask_extents);
        });
    };
    CHECK_EQ(masked(4, {2, 6, 5, 9}), "");
    CHECK_EQ(masked(4, {1, 1, 1, 1}), "");
    CHECK_EQ(masked(4, {2, 1, 5, 1}), "");
    CHECK_EQ(masked(4, {1, 6, 1, 7}), "");  // hides the keys from 7 on
    CHECK_EQ(masked(3, {6, 5, 9, 1000}), "");
    CHECK_EQ(masked(2, {5, 9, 1000, 1000}), "");
    CHECK_EQ(masked(1, {9, 1000, 1000, 1000}), "");
    CHECK_EQ(masked(1, {2, 0, 0, 0}), "");
    CHECK_EQ(masked(0, {1, 1, 1, 1}), "problem.mask_rank");
    CHECK_EQ(masked(5, {1, 1, 1, 1}), "problem.mask_rank");
    CHECK_EQ(masked(UINT32_MAX, {1, 1, 1, 1}), "problem.mask_rank");
    CHECK_EQ(masked(4, {3, 6, 5, 9}), "problem.mask_extents");
    CHECK_EQ(masked(4, {2, 3, 5, 9}), "");  // a divisor of the query heads
    CHECK_EQ(masked(4, {2, 2, 5, 9}), "");
    CHECK_EQ(masked(3, {2, 5, 9, 1000}), "");
    for (const uint32_t heads : {0u, 4u, 5u, 7u, 12u, UINT32_MAX}) {
        INFO(heads);
        CHECK_EQ(masked(4, {2, heads, 5, 9}), "problem.mask_extents");
        CHECK_EQ(masked(3, {heads, 5, 9, 1000}), "problem.mask_extents");
    }
    CHECK_EQ(masked(4, {2, 6, 4, 9}), "problem.mask_extents");
    CHECK_EQ(masked(4, {2, 6, 5, 10}), "problem.mask_extents");
    CHECK_EQ(masked(4, {0, 6, 5, 9}), "problem.mask_extents");
    CHECK_EQ(masked(2, {9, 5, 1, 1}), "problem.mask_extents");
    CHECK_EQ(bad_field([](VkattnProblem& p) { p.mask_rank = 17; }),
             "");  // without a mask it counts for nothing
}

TEST_CASE("mask: strides of a dense mask, 0 where it broadcasts") {
    CHECK(strides(masked(4, {2, 6, 5, 9})) == Strides{270, 45, 9});
    CHECK(strides(masked(4, {1, 6, 5, 9})) == Strides{0, 45, 9});
    CHECK(strides(masked(4, {2, 1, 5, 9})) == Strides{45, 0, 9});
    CHECK(strides(masked(4, {2, 6, 1, 9})) == Strides{54, 9, 0});
    CHECK(strides(masked(4, {2, 6, 5, 1})) == Strides{30, 5, 1});
    CHECK(strides(masked(4, {2, 6, 5, 4})) == Strides{120, 20, 4});  // short
    CHECK(strides(masked(3, {6, 5, 9, 1000})) == Strides{0, 45, 9});
    CHECK(strides(masked(2, {5, 9, 1000, 1000})) == Strides{0, 0, 9});
    CHECK(strides(masked(1, {9, 1000, 1000, 1000})) == Strides{0, 0, 0});
    CHECK(strides(masked(4, {1, 1, 1, 1})) == Strides{0, 0, 0});
    VkattnProblem none = legal();
    none.mask_rank = 4;
    CHECK(strides(resolved(none)) == Strides{0, 0, 0});
}

TEST_CASE("mask: query heads that read the same mask head") {
    CHECK_EQ(masked(4, {2, 6, 5, 9}).mask_group_size, 1);
    CHECK_EQ(masked(4, {2, 3, 5, 9}).mask_group_size, 2);
    CHECK_EQ(masked(3, {2, 5, 9, 1000}).mask_group_size, 3);
    CHECK_EQ(masked(4, {2, 1, 5, 9}).mask_group_size, 6);
    CHECK_EQ(masked(2, {5, 9, 1000, 1000}).mask_group_size, 6);
    CHECK(strides(masked(4, {2, 3, 5, 9})) == Strides{135, 45, 9});
}

TEST_CASE("mask: given strides") {
    constexpr uint64_t dense = VKATTN_CONTIGUOUS;
    const auto with = [](VkattnStrides s) {
        VkattnProblem p = legal();
        p.mask_strides = s;
        return p;
    };
    CHECK(strides(masked(4, {2, 6, 5, 9}, with({1000, 100, 10}))) == Strides{1000, 100, 10});
    CHECK(strides(masked(4, {2, 6, 5, 9}, with({7, 0, 1}))) == Strides{7, 0, 1});  // inputs may overlap
    CHECK(strides(masked(4, {2, 6, 5, 9}, with({dense, dense, 10}))) == Strides{270, 45, 10});
    CHECK(strides(masked(4, {2, 3, 5, 4}, with({dense, 99, dense}))) == Strides{60, 99, 4});
    // Strides that are never taken count for nothing.
    CHECK(strides(masked(4, {1, 1, 1, 9}, with({UINT64_MAX - 1, 100, 3}))) == Strides{0, 0, 0});
    CHECK(strides(masked(2, {5, 9, 0, 0}, with({77, UINT64_MAX - 1, 10}))) == Strides{0, 0, 10});
    VkattnProblem aligned = with({1001, 101, 11});  // alignment_bytes is not the mask's
    aligned.alignment_bytes = 16;
    CHECK(strides(masked(4, {2, 6, 5, 9}, aligned)) == Strides{1001, 101, 11});
    CHECK(strides(resolved(with({1, 2, 3}))) == Strides{0, 0, 0});  // there is no mask
}

TEST_CASE("mask: given strides span 2^62 bytes at most") {
    const auto field = [](VkattnMaskType mask, VkattnStrides s) {
        VkattnProblem p = legal();
        p.mask = mask;
        p.mask_rank = 4;
        const uint32_t extents[] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
        std::copy(std::begin(extents), std::end(extents), p.mask_extents);
        p.mask_strides = s;
        return bad_field(p);
    };
    const std::string bad = "problem.mask_strides";
    constexpr uint64_t most = uint64_t{1} << 62;
    CHECK_EQ(field(VKATTN_MASK_BOOL, {most - 9, 0, 0}), "");  // from element 0 to most - 1
    CHECK_EQ(field(VKATTN_MASK_BOOL, {most - 8, 0, 0}), bad);
    CHECK_EQ(field(VKATTN_MASK_BOOL, {most - 9, 0, 1}), bad);
    CHECK_EQ(field(VKATTN_MASK_BOOL, {0, (most - 9) / 5, 0}), "");
    CHECK_EQ(field(VKATTN_MASK_BOOL, {0, (most - 9) / 5 + 1, 0}), bad);
    CHECK_EQ(field(VKATTN_MASK_FLOAT, {most / 4 - 9, 0, 0}), "");
    CHECK_EQ(field(VKATTN_MASK_FLOAT, {most / 4 - 8, 0, 0}), bad);
    CHECK_EQ(field(VKATTN_MASK_FLOAT, {0, 0, UINT64_MAX - 1}), bad);
    CHECK_EQ(field(VKATTN_MASK_FLOAT, {0, UINT64_MAX / 4, 0}), bad);
}

TEST_CASE("mask: strides of 0 span less than their extents, but dbias does not") {
    VkattnProblem p = core::default_problem();
    p.head_dim_qk = p.head_dim_v = 1;
    p.num_heads_q = 2;
    p.seqlen_q = p.seqlen_kv = VKATTN_MAX_SEQLEN;
    p.mask = VKATTN_MASK_FLOAT;
    p.mask_rank = 3;
    p.mask_extents[0] = 2;
    p.mask_extents[1] = p.mask_extents[2] = VKATTN_MAX_SEQLEN;
    CHECK_EQ(bad_field(p), "problem.mask_extents");
    p.mask_strides = {0, 0, 0};
    CHECK_EQ(bad_field(p), "");
    VkattnBackward wanted = core::default_backward();
    CHECK_EQ(field_of(resolve(resolved(p), wanted)), "");
    wanted.dbias = 1;
    CHECK_EQ(field_of(resolve(resolved(p), wanted)), "backward.dbias");
    p.mask_extents[0] = 1;
    CHECK_EQ(field_of(resolve(resolved(p), wanted)), "");  // 2^62 bytes
}

TEST_CASE("mask: the last extent broadcasts, or hides the keys beyond it") {
    const auto keys = [](uint32_t extent, uint32_t seqlen_kv = 9) {
        VkattnProblem p = legal();
        p.seqlen_kv = seqlen_kv;
        const Problem r = masked(1, {extent, 0, 0, 0}, p);
        return std::pair{r.key_limit, r.mask_per_key};
    };
    CHECK(keys(9) == std::pair{9u, true});
    CHECK(keys(8) == std::pair{8u, true});
    CHECK(keys(2) == std::pair{2u, true});
    CHECK(keys(0) == std::pair{0u, true});
    CHECK(keys(1) == std::pair{9u, false});
    CHECK(keys(1, 1) == std::pair{1u, false});
    CHECK(keys(0, 0) == std::pair{0u, true});
    CHECK(keys(1, 0) == std::pair{0u, false});
    CHECK_EQ(resolved(legal()).key_limit, 9);
    const Problem some = masked(1, {4, 0, 0, 0});
    CHECK_EQ(some.visible_keys(0, 4).end, 4);
    CHECK_EQ(masked(1, {0, 0, 0, 0}).visible_keys(0, 4).end, 0);
}

TEST_CASE("mask: 2^62 bytes are the most") {
    const auto field = [](VkattnDtype dtype, VkattnMaskType mask, std::array<uint32_t, 4> extents) {
        VkattnProblem p = core::default_problem();
        p.dtype = dtype;
        p.head_dim_qk = p.head_dim_v = 1;
        p.batch = extents[0];
        p.num_heads_q = extents[1];
        p.seqlen_q = extents[2];
        p.seqlen_kv = extents[3];
        p.mask = mask;
        p.mask_rank = 4;
        std::copy(extents.begin(), extents.end(), p.mask_extents);
        return bad_field(p);
    };
    constexpr uint32_t most = VKATTN_MAX_SEQLEN;
    const std::string bad = "problem.mask_extents";
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_FLOAT, {1, 1, most, most}), "");  // 2^62
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_FLOAT, {1, 2, most, most}), bad);
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT16, VKATTN_MASK_FLOAT, {1, 2, most, most}), "");
    CHECK_EQ(field(VKATTN_DTYPE_BFLOAT16, VKATTN_MASK_FLOAT, {3, 1, most, most}), bad);
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_BOOL, {2, 2, most, most}), "");
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_BOOL, {5, 1, most, most}), bad);
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_BOOL, {32767, 1024, 1u << 15, 1u << 20}), "");
    CHECK_EQ(field(VKATTN_DTYPE_FLOAT32, VKATTN_MASK_BOOL, {32767, 1024, 1u << 15, most}),
             bad);  // 2^70: wraps
}

namespace {

const std::vector<int64_t> windows{-1,         0,          1,      3,          100,      two_31 - 7,
                                   two_31 - 2, two_31 - 1, two_31, two_31 + 5, INT64_MAX};

// Every bound of problems with lengths, offsets or both.
void for_each_bound(VkattnProblem p, const std::function<void(const VkattnProblem&)>& f) {
    for (const uint32_t causal : {0u, 1u})
        for (const int64_t left : windows)
            for (const int64_t right : windows)
                for (const uint32_t lengths : {0u, 1u})
                    for (const VkattnAlign align : {VKATTN_ALIGN_BOTTOM_RIGHT, VKATTN_ALIGN_TOP_LEFT,
                                                    VKATTN_ALIGN_OFFSET, VKATTN_ALIGN_OFFSETS}) {
                        if (lengths == 0 && align != VKATTN_ALIGN_OFFSETS) continue;
                        p.causal = causal;
                        p.window_left = left;
                        p.window_right = right;
                        p.kv_lengths = lengths;
                        p.align = align;
                        p.query_offset = align == VKATTN_ALIGN_OFFSET ? -2 : INT64_MIN;
                        f(p);
                    }
}

std::string bounds_flaw(const VkattnProblem& given, const std::vector<uint32_t>& rows,
                        const std::vector<int32_t>& lengths, const std::vector<int32_t>& offsets) {
    const Problem p = resolved(given);
    if (p.dynamic_bounds != (given.align == VKATTN_ALIGN_OFFSETS ||
                             (given.kv_lengths != 0 && given.align == VKATTN_ALIGN_BOTTOM_RIGHT)))
        return "dynamic_bounds";
    for (const uint32_t i : rows)
        for (const int32_t length : given.kv_lengths != 0 ? lengths : std::vector<int32_t>{0})
            for (const int32_t offset :
                 given.align == VKATTN_ALIGN_OFFSETS ? offsets : std::vector<int32_t>{0})
                if (const auto flaw = row_flaw(given, p, i, length, offset); !flaw.empty())
                    return fmt::format("{}x{} causal {} window {},{} align {} length {} offset {}: {}",
                                       p.seqlen_q, p.seqlen_kv, p.causal, p.window_left, p.window_right,
                                       static_cast<int>(p.align), length, offset, flaw);
    return "";
}

}  // namespace

TEST_CASE("bounds: with lengths and offsets of the batch's own, against the definition") {
    const std::vector<int32_t> offsets{0,       1,       -1,         2, -3, 5, -100, 100, two_31 - 1 - 5,
                                       int_max, int_min, int_min + 6};
    for (const uint32_t q : {1u, 4u})
        for (const uint32_t kv : {0u, 1u, 5u})
            for (const bool short_mask : {false, true}) {
                VkattnProblem given = with_seqlens(q, kv);
                if (short_mask) set_mask(given, VKATTN_MASK_BOOL, MaskShape::few_keys);
                std::vector<uint32_t> rows;
                for (uint32_t i = 0; i < q; i++) rows.push_back(i);
                std::string flaw;
                for_each_bound(given, [&](const VkattnProblem& p) {
                    if (flaw.empty())
                        flaw = bounds_flaw(p, rows, {int_min, -1, 0, 1, 2, 4, 5, 6, int_max}, offsets);
                });
                CHECK_EQ(flaw, "");
            }
}

TEST_CASE("bounds: with lengths and offsets at the limits of seqlen") {
    constexpr uint32_t most = VKATTN_MAX_SEQLEN;
    constexpr int32_t far = 1 << 30;
    for (const auto& [q, kv] : {std::pair{most, most}, {1u, most}, {most, 1u}, {97u, most - 1}}) {
        std::string flaw;
        const std::vector<uint32_t> rows{0, q / 2, q - 1};
        for_each_bound(with_seqlens(q, kv), [&](const VkattnProblem& p) {
            if (flaw.empty())
                flaw = bounds_flaw(p, rows, {0, 1, far / 2, far - 1, far},
                                   {0, far, -far, int_max, int_min, int_min + far});
        });
        CHECK_EQ(flaw, "");
    }
}

TEST_CASE("bounds: the ends of 32 bits stand for unbounded") {
    VkattnProblem p = legal();
    p.align = VKATTN_ALIGN_OFFSETS;
    CHECK_EQ(resolved(p).bound_lo, int_min);
    CHECK_EQ(resolved(p).bound_hi, int_max);
    p.causal = 1;
    p.window_left = 7;
    CHECK_EQ(resolved(p).bound_lo, -7);
    CHECK_EQ(resolved(p).bound_hi, 0);
    CHECK_FALSE(resolved(p).follow_lengths);
    p.kv_lengths = 1;
    CHECK_FALSE(resolved(p).follow_lengths);  // the offsets are the caller's then
    p.align = VKATTN_ALIGN_BOTTOM_RIGHT;
    CHECK(resolved(p).follow_lengths);
    CHECK_EQ(resolved(p).bound_hi, -5);
    CHECK_EQ(resolved(p).visible_keys(0, 4).end, 9);  // whatever the lengths come to
    p.align = VKATTN_ALIGN_TOP_LEFT;
    CHECK_FALSE(resolved(p).dynamic_bounds);
    CHECK_EQ(resolved(p).visible_keys(0, 4).end, 5);
}

namespace {

VkattnCombine legal_combine() {
    VkattnCombine c = core::default_combine();
    c.num_parts = 3;
    c.batch = 2;
    c.num_heads = 6;
    c.seqlen_q = 5;
    c.head_dim_v = 12;
    return c;
}

Combine resolved(const VkattnCombine& given) {
    const auto result = resolve(given);
    if (!result) throw std::runtime_error(result.failure().field + ": " + result.failure().message);
    return *result;
}

template <class T>
void check_combine(const char* name, T VkattnCombine::*field, const std::vector<int64_t>& good,
                   const std::vector<int64_t>& bad) {
    for (const auto& [values, expected] :
         {std::pair{good, std::string()}, {bad, std::string("combine.") + name}})
        for (const int64_t value : values) {
            VkattnCombine c = legal_combine();
            c.*field = static_cast<T>(value);
            INFO(name << " = " << value);
            CHECK_EQ(bad_field(c), expected);
        }
}

}  // namespace

TEST_CASE("combine: defaults, and what they resolve to") {
    const VkattnCombine d = core::default_combine();
    CHECK_EQ(d.struct_size, sizeof d);
    CHECK_EQ(d.dtype, VKATTN_DTYPE_FLOAT32);
    CHECK_EQ(d.parts_dtype, VKATTN_DTYPE_FLOAT32);
    CHECK_EQ(d.num_parts, 1);
    CHECK_EQ(d.batch, 1);
    CHECK_EQ(d.num_heads, 1);
    CHECK_EQ(d.seqlen_q, 0);
    CHECK_EQ(d.alignment_bytes, 0);
    CHECK_EQ(d.part_stride, VKATTN_CONTIGUOUS);
    const Combine c = resolved(legal_combine());
    CHECK_EQ(c.part_stride, 2 * 6 * 5 * 12);
    for (const VkattnStrides& s : {c.parts_strides, c.out_strides}) {
        CHECK_EQ(s.batch, 6 * 5 * 12);
        CHECK_EQ(s.head, 5 * 12);
        CHECK_EQ(s.seq, 12);
    }
    CHECK_EQ(c.alignment_bytes, 4);
    VkattnCombine half = legal_combine();
    half.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK_EQ(resolved(half).element_bytes, 2);
    CHECK_EQ(resolved(half).parts_element_bytes, 4);
    CHECK_EQ(resolved(half).alignment_bytes, 2);
    half.parts_dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK_EQ(resolved(half).parts_element_bytes, 2);
}

TEST_CASE("combine: each field at and past its limits") {
    using C = VkattnCombine;
    check_combine("dtype", &C::dtype, {0, 1, 2}, {3, 100, 0x7fffffff});
    check_combine("parts_dtype", &C::parts_dtype, {0}, {1, 2, 3, 0x7fffffff});
    check_combine("num_parts", &C::num_parts, {1, 2, UINT32_MAX}, {0});
    check_combine("batch", &C::batch, {0, 1, 70000, 357913941}, {357913942, UINT32_MAX});
    check_combine("num_heads", &C::num_heads, {1, 65535}, {0, 65536, UINT32_MAX});
    check_combine("seqlen_q", &C::seqlen_q, {0, 1, 1 << 30}, {(1 << 30) + 1, UINT32_MAX});
    check_combine("head_dim_v", &C::head_dim_v, {1, 59, 576}, {0, 577, UINT32_MAX});
    check_combine("alignment_bytes", &C::alignment_bytes, {0, 4, 8, 16}, {1, 2, 3, 12, UINT32_MAX});
    check_combine("part_stride", &C::part_stride, {0, 1, 720, int64_t{1} << 58},
                  {(int64_t{1} << 60) / 3 + 1, INT64_MAX});
    for (const auto dtype : {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        for (const auto parts : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16}) {
            VkattnCombine c = legal_combine();
            c.dtype = dtype;
            c.parts_dtype = parts;
            CHECK_EQ(bad_field(c),
                     parts == dtype || parts == VKATTN_DTYPE_FLOAT32 ? "" : "combine.parts_dtype");
        }
}

TEST_CASE("combine: strides") {
    const auto field = [](const std::function<void(VkattnCombine&)>& change) {
        VkattnCombine c = legal_combine();
        change(c);
        return bad_field(c);
    };
    CHECK_EQ(field([](auto& c) { c.parts_strides = {0, 0, 0}; }), "");  // inputs may overlap
    CHECK_EQ(field([](auto& c) { c.out_strides = {0, 0, 0}; }), "combine.out_strides");
    CHECK_EQ(field([](auto& c) { c.out_strides = {360, 60, 11}; }), "combine.out_strides");
    CHECK_EQ(field([](auto& c) { c.out_strides = {360, 12, 72}; }), "");
    CHECK_EQ(field([](auto& c) { c.out_strides.batch = uint64_t{1} << 61; }), "combine.out_strides");
    CHECK_EQ(field([](auto& c) { c.parts_strides.batch = uint64_t{1} << 61; }), "combine.parts_strides");
    CHECK_EQ(field([](auto& c) { c.parts_strides.seq = uint64_t{1} << 60; }), "combine.parts_strides");
    const auto aligned = [&](VkattnStrides parts, VkattnStrides out, uint64_t part) {
        return field([&](auto& c) {
            c.head_dim_v = 3;  // so that dense rows would not be aligned
            c.alignment_bytes = 16;
            c.parts_strides = parts;
            c.out_strides = out;
            c.part_stride = part;
        });
    };
    CHECK_EQ(aligned({240, 40, 8}, {120, 20, 4}, 480), "");
    CHECK_EQ(aligned({240, 40, 6}, {120, 20, 4}, 480), "combine.parts_strides");
    CHECK_EQ(aligned({240, 40, 8}, {120, 21, 4}, 480), "combine.out_strides");
    CHECK_EQ(aligned({240, 40, 8}, {120, 20, 4}, 482), "combine.part_stride");
    CHECK_EQ(field([](auto& c) { c.alignment_bytes = 32; }), "combine.out_strides");
    CHECK_EQ(field([](auto& c) {  // float32 parts of a 16-bit out
                 c.dtype = VKATTN_DTYPE_FLOAT16;
                 c.head_dim_v = 3;
             }),
             "");
}
