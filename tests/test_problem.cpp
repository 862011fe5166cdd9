// Validation: each bad field by its name, defaults, and the folding of causal, window and offset into one
// band against the definition of visibility in include/vkattn/types.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan_cases.hpp"
#include "problem_fields.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Problem;
using core::resolve;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class T>
void set(VkattnProblem& p, T VkattnProblem::*field, int64_t value) {
    p.*field = static_cast<T>(value);
}

// Values that a field must accept and must refuse.
template <class T>
void check_values(const char* name, T VkattnProblem::*field, const std::vector<int64_t>& good,
                  const std::vector<int64_t>& bad) {
    for (const int64_t value : good) {
        INFO(name << " = " << value);
        CHECK_EQ(bad_field([&](VkattnProblem& p) { set(p, field, value); }), "");
    }
    for (const int64_t value : bad) {
        INFO(name << " = " << value);
        CHECK_EQ(bad_field([&](VkattnProblem& p) { set(p, field, value); }), std::string("problem.") + name);
    }
}

// Keys begin .. end-1 that row i sees, in the shaders' 32-bit arithmetic (lib/sequences.glsl, visible_keys);
// overflow is set if that arithmetic wrapped.
std::pair<int64_t, int64_t> visible_keys(const Problem& p, uint32_t i, bool& overflow) {
    const int64_t begin = int64_t{i} + p.bound_lo, end = int64_t{i} + p.bound_hi + 1;
    for (const int64_t x : {begin, int64_t{i} + p.bound_hi, end})
        overflow |= x < std::numeric_limits<int32_t>::min() || x > std::numeric_limits<int32_t>::max();
    return {std::max<int64_t>(0, begin), std::min<int64_t>(p.seqlen_kv, end)};
}

const std::vector<int64_t> windows{-1, 0, 1, 2, 4, 1000, two_31, int64_t{1} << 40, INT64_MAX - 1, INT64_MAX};
const std::vector<int64_t> offsets{0,  1,   -1,   2,          -2,     3,           -3,     6,
                                   -6, 100, -100, two_31 - 1, two_31, -two_31 + 1, -two_31};

// Calls f with every combination of causal, windows, alignment and offsets.
void for_each_bound(VkattnProblem p, const std::function<void(const VkattnProblem&)>& f) {
    for (const uint32_t causal : {0u, 1u})
        for (const int64_t left : windows)
            for (const int64_t right : windows) {
                p.causal = causal;
                p.window_left = left;
                p.window_right = right;
                p.query_offset = INT64_MIN;  // counts only where it is asked for
                for (const VkattnAlign align :
                     {VKATTN_ALIGN_BOTTOM_RIGHT, VKATTN_ALIGN_TOP_LEFT, VKATTN_ALIGN_OFFSETS}) {
                    p.align = align;
                    if (align != VKATTN_ALIGN_OFFSETS) f(p);  // those are added on the device
                }
                p.align = VKATTN_ALIGN_OFFSET;
                for (const int64_t offset : offsets) {
                    p.query_offset = offset;
                    f(p);
                }
            }
}

std::string text_of(const VkattnProblem& p) {
    return fmt::format("{}x{} causal {} window {},{} align {} offset {}", p.seqlen_q, p.seqlen_kv, p.causal,
                       p.window_left, p.window_right, static_cast<int>(p.align), p.query_offset);
}

// "" if the folded band shows rows `rows` exactly what the definition shows them. Rows of many keys are
// compared at the ends of both ranges: what the definition shows is one range.
std::string band_flaw(const VkattnProblem& given, const std::vector<uint32_t>& rows) {
    const auto result = resolve(given);
    if (!result) return "refused: " + result.failure().message;
    for (const uint32_t i : rows) {
        bool overflow = false;
        const auto [begin, end] = visible_keys(*result, i, overflow);
        if (overflow)
            return fmt::format("row {}: overflow with bounds {}..{}", i, result->bound_lo, result->bound_hi);
        const int64_t keys = given.seqlen_kv;
        std::set<int64_t> at;
        for (int64_t j = 0; j < std::min<int64_t>(keys, 16); j++) at.insert(j);
        for (const int64_t edge : {begin, end, keys, keys / 2, int64_t{i}})
            for (int64_t j = edge - 2; j <= edge + 2; j++)
                if (j >= 0 && j < keys) at.insert(j);
        for (const int64_t j : at)
            if (sees(given, i, j, keys) != (j >= begin && j < end))
                return fmt::format("row {} key {}: the band {}..{} is wrong", i, j, result->bound_lo,
                                   result->bound_hi);
    }
    return "";
}

}  // namespace

TEST_CASE("problem: defaults") {
    const VkattnProblem d = core::default_problem();
    CHECK_EQ(d.struct_size, sizeof d);
    CHECK_EQ(d.dtype, VKATTN_DTYPE_FLOAT32);
    CHECK_EQ(d.batch, 1);
    CHECK_EQ(d.num_heads_q, 1);
    CHECK_EQ(d.num_heads_kv, 1);
    CHECK_EQ(d.seqlen_q, 0);
    CHECK_EQ(d.seqlen_kv, 0);
    CHECK(std::isnan(d.softmax_scale));
    CHECK_EQ(d.softcap, 0);
    CHECK_EQ(d.causal, 0);
    CHECK_EQ(d.window_left, -1);
    CHECK_EQ(d.window_right, -1);
    CHECK_EQ(d.align, VKATTN_ALIGN_BOTTOM_RIGHT);
    CHECK_EQ(d.kv_lengths, 0);
    CHECK_EQ(d.mask, VKATTN_MASK_NONE);
    CHECK_EQ(d.alignment_bytes, 0);
    for (const VkattnStrides& s :
         {d.query_strides, d.key_strides, d.value_strides, d.out_strides, d.mask_strides})
        for (const uint64_t stride : {s.batch, s.head, s.seq}) CHECK_EQ(stride, VKATTN_CONTIGUOUS);
    const VkattnOptions o = core::default_options();
    CHECK_EQ(o.struct_size, sizeof o);
    CHECK_EQ(o.kernel, nullptr);
    CHECK_EQ(o.tuning, nullptr);
    CHECK_EQ(o.max_scratch_bytes, 0);
    CHECK_EQ(o.precision, VKATTN_PRECISION_STORAGE);
}

TEST_CASE("problem: what defaults resolve to") {
    const Problem p = resolved(legal());
    const auto is = [](const VkattnStrides& s, uint64_t batch, uint64_t head, uint64_t seq) {
        return s.batch == batch && s.head == head && s.seq == seq;
    };
    CHECK(is(p.query_strides, 6 * 5 * 8, 5 * 8, 8));
    CHECK(is(p.key_strides, 3 * 9 * 8, 9 * 8, 8));
    CHECK(is(p.value_strides, 3 * 9 * 12, 9 * 12, 12));
    CHECK(is(p.out_strides, 6 * 5 * 12, 5 * 12, 12));
    CHECK_EQ(p.group_size, 2);
    CHECK_EQ(p.element_bytes, 4);
    CHECK_EQ(p.alignment_bytes, 4);
    CHECK_EQ(p.softmax_scale, doctest::Approx(1 / std::sqrt(8.0)).epsilon(1e-7));
    CHECK_FALSE(p.empty_output());
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16}) {
        VkattnProblem half = legal();
        half.dtype = dtype;
        CHECK_EQ(resolved(half).element_bytes, 2);
        CHECK_EQ(resolved(half).alignment_bytes, 2);
    }
    VkattnProblem one = legal();  // a stride that is given does not change the defaults of the others
    one.query_strides.seq = 100;
    one.out_strides.head = 1000;
    one.out_strides.batch = 10000;
    CHECK(is(resolved(one).query_strides, 6 * 5 * 8, 5 * 8, 100));
    CHECK(is(resolved(one).out_strides, 10000, 1000, 12));
    for (const float scale : {0.0f, -0.0f, -3.5f, 1e30f}) {
        one.softmax_scale = scale;
        CHECK_EQ(resolved(one).softmax_scale, scale);
    }
    for (const auto& change :
         {Change([](VkattnProblem& x) { x.batch = 0; }), Change([](VkattnProblem& x) { x.seqlen_q = 0; })}) {
        VkattnProblem empty = legal();
        change(empty);
        CHECK(resolved(empty).empty_output());
    }
}

TEST_CASE("problem: each field at and past its limits") {
    using P = VkattnProblem;
    check_values("dtype", &P::dtype, {0, 1, 2}, {3, 100, 0x7fffffff});
    check_values("batch", &P::batch, {0, 1, 70000, 357913941}, {357913942, 715827883, UINT32_MAX});
    check_values("num_heads_q", &P::num_heads_q, {3, 6, 65535}, {0, 65538, UINT32_MAX});
    check_values("num_heads_kv", &P::num_heads_kv, {1, 2, 3, 6}, {0, 4, 5, 7, 12, UINT32_MAX});
    check_values("seqlen_q", &P::seqlen_q, {0, 1, 1 << 30}, {(1 << 30) + 1, UINT32_MAX});
    check_values("seqlen_kv", &P::seqlen_kv, {0, 1, 1 << 30}, {(1 << 30) + 1, UINT32_MAX});
    check_values("head_dim_qk", &P::head_dim_qk, {1, 59, 576}, {0, 577, UINT32_MAX});
    check_values("head_dim_v", &P::head_dim_v, {1, 59, 576}, {0, 577, UINT32_MAX});
    check_values("causal", &P::causal, {0, 1, 2, UINT32_MAX}, {});
    check_values("window_left", &P::window_left, {-1, 0, 7, INT64_MAX}, {-2, INT64_MIN});
    check_values("window_right", &P::window_right, {-1, 0, 7, INT64_MAX}, {-2, INT64_MIN});
    check_values("align", &P::align, {0, 1, 2, 3}, {4, 100, 0x7fffffff});
    check_values("mask", &P::mask, {0}, {3, 100, 0x7fffffff});
    check_values("alignment_bytes", &P::alignment_bytes, {0, 4, 8, 16}, {1, 2, 3, 12, 20, UINT32_MAX});
    check_values("query_offset", &P::query_offset, {0, INT64_MIN, INT64_MAX},
                 {});  // align does not ask for it
    for (const float bad : {infinity, -infinity})
        CHECK_EQ(bad_field([&](P& p) { p.softmax_scale = bad; }), "problem.softmax_scale");
    for (const float bad : {-1.0f, -1e-30f, infinity, -infinity, not_a_number})
        CHECK_EQ(bad_field([&](P& p) { p.softcap = bad; }), "problem.softcap");
    for (const float good : {0.0f, -0.0f, 1e-30f, 30.0f})
        CHECK_EQ(bad_field([&](P& p) { p.softcap = good; }), "");
    const auto offset = [](int64_t value) {
        return [value](P& p) {
            p.align = VKATTN_ALIGN_OFFSET;
            p.query_offset = value;
        };
    };
    for (const int64_t good : {int64_t{0}, two_31, -two_31}) CHECK_EQ(bad_field(offset(good)), "");
    for (const int64_t bad : {two_31 + 1, -two_31 - 1, INT64_MAX, INT64_MIN})
        CHECK_EQ(bad_field(offset(bad)), "problem.query_offset");
}

TEST_CASE("problem: the band against the definition, every row and key of small problems") {
    for (uint32_t q = 0; q <= 5; q++)
        for (uint32_t kv = 0; kv <= 6; kv++) {
            std::vector<uint32_t> rows;
            for (uint32_t i = 0; i < q; i++) rows.push_back(i);
            std::string flaw;
            for_each_bound(with_seqlens(q, kv), [&](const VkattnProblem& p) {
                if (!flaw.empty()) return;
                if (flaw = band_flaw(p, rows); !flaw.empty()) flaw = text_of(p) + ": " + flaw;
            });
            CHECK_EQ(flaw, "");
        }
}

TEST_CASE("problem: the band at the limits of seqlen, without overflow of 32 bits") {
    constexpr uint32_t most = VKATTN_MAX_SEQLEN;
    for (const auto& [q, kv] : {std::pair{most, most},
                                {most, 0u},
                                {most, 1u},
                                {1u, most},
                                {7u, most},
                                {most, 97u},
                                {most - 1, most - 1},
                                {65537u, most}}) {
        std::string flaw;
        std::vector<uint32_t> rows;
        for (const uint32_t i : {0u, 1u, 6u, 96u, q / 2, q - 2, q - 1})
            if (i < q) rows.push_back(i);
        for_each_bound(with_seqlens(q, kv), [&](const VkattnProblem& p) {
            if (!flaw.empty()) return;
            if (flaw = band_flaw(p, rows); !flaw.empty()) flaw = text_of(p) + ": " + flaw;
        });
        CHECK_EQ(flaw, "");
    }
}

TEST_CASE("problem: causal is true with any value but 0") {
    VkattnProblem p = with_seqlens(7, 9);
    p.causal = 1;
    const Problem one = resolved(p);
    for (const uint32_t causal : {2u, 256u, UINT32_MAX}) {
        p.causal = causal;
        CHECK_EQ(resolved(p).bound_lo, one.bound_lo);
        CHECK_EQ(resolved(p).bound_hi, one.bound_hi);
    }
}

TEST_CASE("problem: alignment") {
    for (const uint32_t bytes : {4u, 8u, 16u, 32u, 64u, 1u << 31})
        for (int tensor = 0; tensor < 4; tensor++)
            for (int level = 0; level < 3; level++)
                for (const int64_t delta : {-1, 0, 1}) {
                    VkattnProblem p = legal();
                    const uint64_t unit = bytes / 4;
                    p.alignment_bytes = bytes;
                    VkattnStrides* all[] = {&p.query_strides, &p.key_strides, &p.value_strides,
                                            &p.out_strides};
                    for (VkattnStrides* s : all) *s = {4096 * unit, 512 * unit, 16 * unit};
                    uint64_t* levels[] = {&all[tensor]->batch, &all[tensor]->head, &all[tensor]->seq};
                    *levels[level] += static_cast<uint64_t>(delta);
                    static constexpr const char* names[] = {"problem.query_strides", "problem.key_strides",
                                                            "problem.value_strides", "problem.out_strides"};
                    INFO(names[tensor] << " level " << level << " by " << delta << " of " << bytes);
                    CHECK_EQ(bad_field(p), delta == 0 || unit == 1 ? "" : names[tensor]);
                }
    VkattnProblem p = legal();  // dense rows of 8 and 12 elements
    p.alignment_bytes = 32;
    CHECK_EQ(bad_field(p), "problem.value_strides");
    p.dtype = VKATTN_DTYPE_FLOAT16;
    p.alignment_bytes = 8;
    CHECK_EQ(bad_field(p), "");
    p.alignment_bytes = 16;
    CHECK_EQ(bad_field(p), "problem.value_strides");
    p.alignment_bytes = 1;
    CHECK_EQ(bad_field(p), "problem.alignment_bytes");
}

TEST_CASE("problem: strides that are never taken have no alignment") {
    // Batches, query heads, kv heads, query rows, keys: where there is one of them, its stride is odd.
    for (uint32_t ones = 0; ones < 32; ones++)
        for (uint32_t odd = 0; odd < 32; odd++) {
            VkattnProblem p = core::default_problem();
            const auto extent = [&](uint32_t bit, uint32_t many) {
                return (ones >> bit & 1) != 0 ? 1 : many;
            };
            p.batch = extent(0, 2);
            p.num_heads_kv = extent(2, 2);
            p.num_heads_q = extent(1, 2) * p.num_heads_kv;
            p.seqlen_q = extent(3, 5);
            p.seqlen_kv = extent(4, 7);
            p.head_dim_qk = p.head_dim_v = 16;
            p.alignment_bytes = 16;
            const VkattnStrides even = {16384, 1024, 16};
            const auto strides = [&](uint32_t heads, uint32_t rows) {
                const auto add = [&](uint32_t bit) { return uint64_t{odd >> bit & 1}; };
                return VkattnStrides{even.batch + add(0), even.head + add(heads), even.seq + add(rows)};
            };
            p.query_strides = p.out_strides = strides(1, 3);
            p.key_strides = p.value_strides = strides(2, 4);
            const uint32_t single = (p.batch == 1 ? 1 : 0) | (p.num_heads_q == 1 ? 2 : 0) |
                                    (p.num_heads_kv == 1 ? 4 : 0) | (p.seqlen_q == 1 ? 8 : 0) |
                                    (p.seqlen_kv == 1 ? 16 : 0);
            const uint32_t taken = odd & ~single, of_query = 1 | 2 | 8;
            INFO("one of " << ones << ", odd " << odd);
            CHECK_EQ(bad_field(p), taken == 0                ? ""
                                   : (taken & of_query) != 0 ? "problem.query_strides"
                                                             : "problem.key_strides");
        }
    VkattnProblem p = legal();
    p.alignment_bytes = 16;
    p.seqlen_q = 1;
    VkattnBackward b = core::default_backward();
    b.dquery_strides.seq = b.dout_strides.seq = 13;
    CHECK(core::resolve(resolved(p), b));
    b.dkey_strides.seq = 13;
    const auto refused = core::resolve(resolved(p), b);
    REQUIRE_FALSE(refused);
    CHECK_EQ(refused.failure().field, "backward.dkey_strides");
}

TEST_CASE("problem: strides whose span overflows") {
    constexpr uint64_t limit = uint64_t{1} << 60;  // float32 elements of 2^62 bytes
    const auto spans = [](uint32_t batch, uint32_t seqlen, VkattnStrides strides, bool key) {
        VkattnProblem p = core::default_problem();
        p.batch = batch;
        p.head_dim_qk = p.head_dim_v = 4;
        p.seqlen_q = key ? 1 : seqlen;
        p.seqlen_kv = key ? seqlen : 1;
        (key ? p.key_strides : p.query_strides) = strides;
        return bad_field(p);
    };
    for (const bool key : {false, true}) {
        const std::string field = key ? "problem.key_strides" : "problem.query_strides";
        CHECK_EQ(spans(1, 1, {UINT64_MAX - 1, 0, 4}, key), field);  // even where only one element is
        CHECK_EQ(spans(1, 1, {0, uint64_t{1} << 63, 4}, key), field);
        CHECK_EQ(spans(1, 1, {0, 0, limit + 1}, key), field);
        CHECK_EQ(spans(0, 1, {limit + 1, 0, 4}, key), field);
        CHECK_EQ(spans(2, 1, {limit - 5, 0, 4}, key), "");
        CHECK_EQ(spans(2, 1, {limit, 0, 4}, key), field);
        CHECK_EQ(spans(3, 1, {limit / 2, 0, 4}, key), field);
        CHECK_EQ(spans(2, 2, {limit / 2, 0, limit / 2}, key), field);               // the sum, not a product
        CHECK_EQ(spans(1, (1u << 29) + 1, {0, 0, uint64_t{1} << 35}, key), field);  // 2^64: wraps to 0
        CHECK_EQ(spans(1, 1u << 30, {0, 0, uint64_t{1} << 34}, key), field);
        CHECK_EQ(spans(1, 1u << 30, {0, 0, uint64_t{1} << 29}, key), "");
        CHECK_EQ(spans(INT32_MAX, 1, {uint64_t{1} << 33, 0, 4}, key), field);
    }
    VkattnProblem p = core::default_problem();  // dense, and beyond all memory
    p.head_dim_qk = p.head_dim_v = 576;
    p.batch = 32768;
    p.num_heads_q = 65535;
    p.seqlen_q = VKATTN_MAX_SEQLEN;
    CHECK_EQ(bad_field(p), "problem.query_strides");
    p.num_heads_kv = 65535;
    p.seqlen_q = 1;
    p.seqlen_kv = VKATTN_MAX_SEQLEN;
    CHECK_EQ(bad_field(p), "problem.key_strides");
}

TEST_CASE("problem: inputs may overlap themselves, the output may not") {
    VkattnProblem p = legal();
    p.query_strides = p.key_strides = p.value_strides = {0, 0, 0};
    CHECK_EQ(bad_field(p), "");
    p.query_strides = p.key_strides = {1, 2, 3};
    CHECK_EQ(bad_field(p), "");
    const auto out = [](uint64_t batch, uint64_t head, uint64_t seq) {  // extents 2, 6, 5 of 12
        return bad_field([&](VkattnProblem& x) { x.out_strides = {batch, head, seq}; });
    };
    const std::string bad = "problem.out_strides";
    CHECK_EQ(out(360, 60, 12), "");
    CHECK_EQ(out(360, 12, 72), "");  // (batch, seq, head, dim)
    CHECK_EQ(out(12, 24, 144), "");  // (seq, head, batch, dim)
    CHECK_EQ(out(360, 60, 11), bad);
    CHECK_EQ(out(360, 59, 12), bad);
    CHECK_EQ(out(359, 60, 12), bad);
    CHECK_EQ(out(0, 60, 12), bad);
    CHECK_EQ(out(360, 0, 12), bad);
    CHECK_EQ(out(360, 60, 0), bad);
    CHECK_EQ(out(60, 60, 12), bad);
    VkattnProblem empty = legal();
    empty.out_strides = {0, 0, 0};
    empty.seqlen_q = 0;
    CHECK_EQ(bad_field(empty), "");
    VkattnProblem single = legal();  // strides of extents 1 separate nothing
    single.batch = single.num_heads_q = single.num_heads_kv = 1;
    single.out_strides = {0, 1, 12};
    CHECK_EQ(bad_field(single), "");
}

namespace {

struct Output {
    std::array<uint64_t, 3> extents, strides;
    uint64_t dim;
};

bool share_addresses(const Output& o) {
    std::set<uint64_t> seen;
    for (uint64_t a = 0; a < o.extents[0]; a++)
        for (uint64_t b = 0; b < o.extents[1]; b++)
            for (uint64_t c = 0; c < o.extents[2]; c++)
                for (uint64_t d = 0; d < o.dim; d++)
                    if (!seen.insert(a * o.strides[0] + b * o.strides[1] + c * o.strides[2] + d).second)
                        return true;
    return false;
}

// Each dimension steps over all that lies within it.
bool nested(const Output& o) {
    std::array<size_t, 3> order{0, 1, 2};
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return o.strides[a] < o.strides[b]; });
    uint64_t span = o.dim;
    for (const size_t i : order) {
        if (o.extents[i] == 1) continue;
        if (o.strides[i] < span) return false;
        span += o.strides[i] * (o.extents[i] - 1);
    }
    return true;
}

}  // namespace

TEST_CASE("problem: overlap of the output against enumeration") {
    size_t accepted = 0;
    for (const auto& extents :
         {std::array<uint64_t, 3>{1, 2, 3}, {2, 2, 2}, {3, 1, 2}, {2, 3, 1}, {1, 1, 4}, {3, 2, 2}})
        for (const uint64_t dim : {1u, 2u, 3u})
            for (uint64_t a = 0; a < 16; a++)
                for (uint64_t b = 0; b < 16; b++)
                    for (uint64_t c = 0; c < 16; c++) {
                        const Output o{extents, {a, b, c}, dim};
                        VkattnProblem p = with_seqlens(static_cast<uint32_t>(extents[2]), 1);
                        p.batch = static_cast<uint32_t>(extents[0]);
                        p.num_heads_q = static_cast<uint32_t>(extents[1]);
                        p.head_dim_v = static_cast<uint32_t>(dim);
                        p.out_strides = {a, b, c};
                        const std::string field = bad_field(p);
                        const bool wrong =
                            field.empty() ? share_addresses(o) : nested(o) || field != "problem.out_strides";
                        accepted += field.empty();
                        if (wrong)
                            FAIL_CHECK("extents " << extents[0] << extents[1] << extents[2] << " strides "
                                                  << a << ", " << b << ", " << c << " dim " << dim << ": '"
                                                  << field << "'");
                    }
    CHECK_GT(accepted, 1000);
}
