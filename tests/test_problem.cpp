// Validation: what is refused, by its name, and what is found of the rest. Most of it is in problems.txt. How causal,
// window and offset are folded into one band, part of it on the device, is held to the definition of visibility in
// include/vkattn/types.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan_cases.hpp"
#include "problem_bounds.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Combine;
using core::Problem;

namespace {

// What is asked of a backward, and of which problem.
struct Wanted : VkattnBackward {
    Problem problem;
};

using core::resolve;
core::Result<core::Backward> resolve(const Wanted& wanted) {
    const auto problem = core::resolve(wanted.problem);
    if (!problem) return problem.failure();
    return core::resolve(*problem, wanted);
}

constexpr int32_t int_min = std::numeric_limits<int32_t>::min(),
                  int_max = std::numeric_limits<int32_t>::max();

constexpr int64_t two_31 = int64_t{1} << 31;

// The field that is wrong; "" if nothing is, "?..." if the complaint is not of the form that is promised.
template <class T>
std::string field_of(const core::Result<T>& result) {
    if (result) return "";
    const core::Failure& f = result.failure();
    if (f.status != VKATTN_INVALID_ARGUMENT) return "?status " + std::to_string(f.status);
    if (f.message.empty() || f.message.find('\n') != std::string::npos) return "?message " + f.message;
    if (f.field.size() >= sizeof(VkattnError::field) || f.message.size() >= sizeof(VkattnError::message))
        return "?too long for VkattnError";
    return f.field;
}

std::string bad_field(const VkattnProblem& given) {
    return field_of(resolve(given));
}

VkattnProblem legal() {
    VkattnProblem p = core::default_problem();
    p.batch = 2;
    p.num_heads_q = 6;
    p.num_heads_kv = 3;
    p.seqlen_q = 5;
    p.seqlen_kv = 9;
    p.head_dim_qk = 8;
    p.head_dim_v = 12;
    return p;
}

VkattnProblem with_seqlens(uint32_t q, uint32_t kv) {
    VkattnProblem p = core::default_problem();
    p.head_dim_qk = p.head_dim_v = 1;
    p.seqlen_q = q;
    p.seqlen_kv = kv;
    return p;
}

VkattnCombine legal_combine() {
    VkattnCombine c = core::default_combine();
    c.num_parts = 3;
    c.batch = 2;
    c.num_heads = 6;
    c.seqlen_q = 5;
    c.head_dim_v = 12;
    return c;
}

// One batch, one head, one query, one key.
VkattnProblem single() {
    VkattnProblem p = with_seqlens(1, 1);
    p.head_dim_qk = p.head_dim_v = 4;
    return p;
}

// "2^31-1", a sum of numbers and powers of two, or the name of an enumerator.
uint64_t number(const std::string& text) {
    static const std::map<std::string, uint64_t> names{
        {"none", VKATTN_MASK_NONE},          {"bool", VKATTN_MASK_BOOL},
        {"float", VKATTN_MASK_FLOAT},        {"f32", VKATTN_DTYPE_FLOAT32},
        {"f16", VKATTN_DTYPE_FLOAT16},       {"bf16", VKATTN_DTYPE_BFLOAT16},
        {"top-left", VKATTN_ALIGN_TOP_LEFT}, {"offset", VKATTN_ALIGN_OFFSET},
        {"offsets", VKATTN_ALIGN_OFFSETS}};
    if (const auto found = names.find(text); found != names.end()) return found->second;
    uint64_t sum = 0;
    const char *at = text.data(), *const end = at + text.size();
    while (at != end) {
        const bool minus = *at == '-';
        uint64_t term = 0, power = 0;
        auto read = std::from_chars(*at == '-' || *at == '+' ? at + 1 : at, end, term);
        if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '^') {
            read = std::from_chars(read.ptr + 1, end, power);
            term = uint64_t{1} << power;
        }
        if (read.ec != std::errc{}) throw std::runtime_error("no number: " + text);
        sum += minus ? 0 - term : term;
        at = read.ptr;
    }
    return sum;
}

template <class T>
void read_field(T& field, const std::string& text) {
    if constexpr (std::is_same_v<T, float>) {
        field = std::stof(text);
    } else if constexpr (std::is_same_v<T, VkattnStrides> || std::is_array_v<T>) {
        std::istringstream all(text);
        std::vector<uint64_t> numbers;
        for (std::string one; std::getline(all, one, ',');) numbers.push_back(number(one));
        if constexpr (std::is_array_v<T>)
            for (size_t i = 0; i < std::size(field); i++) field[i] = static_cast<uint32_t>(numbers.at(i));
        else
            field = {numbers.at(0), numbers.at(1), numbers.at(2)};
    } else {
        field = static_cast<T>(number(text));
    }
}

template <class T>
bool is_same(const T& a, const T& b) {
    if constexpr (std::is_same_v<T, VkattnStrides>)
        return a.batch == b.batch && a.head == b.head && a.seq == b.seq;
    else if constexpr (std::is_array_v<T>)
        return std::ranges::equal(a, b);
    else
        return a == b;
}

template <class P, class Visit>
void visit_fields(P& p, const Visit& visit) {
#define VISIT(field) visit(#field, p.field)
    VISIT(dtype), VISIT(batch), VISIT(seqlen_q), VISIT(head_dim_v), VISIT(alignment_bytes);
    VISIT(out_strides), VISIT(element_bytes);
    if constexpr (std::is_same_v<P, Combine>) {
        VISIT(num_parts), VISIT(parts_dtype), VISIT(num_heads), VISIT(part_stride), VISIT(parts_strides);
        VISIT(parts_element_bytes);
    } else {
        VISIT(num_heads_q), VISIT(num_heads_kv), VISIT(seqlen_kv), VISIT(head_dim_qk), VISIT(softmax_scale);
        VISIT(softcap), VISIT(causal), VISIT(window_left), VISIT(window_right), VISIT(align);
        VISIT(query_offset), VISIT(kv_lengths), VISIT(mask), VISIT(mask_rank), VISIT(mask_extents);
        VISIT(mask_strides), VISIT(query_strides), VISIT(key_strides), VISIT(value_strides);
        VISIT(group_size), VISIT(bound_lo), VISIT(bound_hi), VISIT(dynamic_bounds), VISIT(follow_lengths);
        VISIT(key_limit), VISIT(mask_group_size), VISIT(mask_per_key), VISIT(slopes), VISIT(slopes_apply);
        VISIT(block_map), VISIT(block_rows), VISIT(block_keys), VISIT(block_map_batches),
            VISIT(block_map_heads);
        VISIT(position), VISIT(key_dtype), VISIT(value_dtype), VISIT(out_dtype), VISIT(mask_dtype);
        VISIT(key_scales), VISIT(value_scales), VISIT(value_in_key);
    }
#undef VISIT
}

// Those of a backward, and of its problem where it is given.
template <class B, class Visit>
requires requires(B& b) {
    b.dbias;
}
void visit_fields(B& b, const Visit& visit) {
    visit("dlse", b.dlse), visit("dbias", b.dbias), visit("dout_strides", b.dout_strides);
    visit("dquery_strides", b.dquery_strides), visit("dkey_strides", b.dkey_strides);
    visit("dvalue_strides", b.dvalue_strides);
    if constexpr (requires { b.problem; }) visit_fields(b.problem, visit);
}

// For each word "field=text" of a line, calls visit(field, text).
template <class P, class Visit>
void visit_words(P& p, const std::string& line, const Visit& visit) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        bool found = false;
        visit_fields(p, [&](const char* name, auto& field) {
            if (word.substr(0, equals) != name) return;
            found = true;
            visit(field, word.substr(equals + 1));
        });
        CHECK_MESSAGE(found, word << " names no field");
    }
}

template <class P>
void check_line(const P& base, const std::string& changes, const std::string& expected) {
    if (const size_t bar = changes.find('|'); bar != std::string::npos) {
        const size_t begin = changes.rfind('=', bar) + 1,
                     end = std::min(changes.find(' ', bar), changes.size());
        std::istringstream all(changes.substr(begin, end - begin));
        for (std::string one; std::getline(all, one, '|');)
            check_line(base, changes.substr(0, begin) + one + changes.substr(end), expected);
        return;
    }
    INFO(changes);
    P given = base;
    visit_words(given, changes, [](auto& field, const std::string& text) { read_field(field, text); });
    auto result = resolve(given);
    CHECK_EQ(field_of(result), expected == "ok" || expected.find('=') != std::string::npos ? "" : expected);
    if (!result || expected == "ok") return;
    visit_words(*result, expected, [&](const auto& field, const std::string& text) {
        std::remove_cvref_t<decltype(field)> wanted{};
        read_field(wanted, text);
        CHECK_MESSAGE(is_same(wanted, field), "not " << text);
    });
}

}  // namespace

TEST_CASE("problem: what is refused, and what is found, line by line") {
    std::ifstream file(VKATTN_TESTS_DIR "/problems.txt");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line.starts_with('#')) continue;
        INFO(line);
        const size_t blank = line.find(' '), colon = line.find(" : ");
        REQUIRE_NE(colon, line.npos);
        const std::string base = line.substr(0, blank), expected = line.substr(colon + 3),
                          changes = line.substr(blank, colon - blank);
        if (base == "combine")
            check_line(Combine{legal_combine()}, changes, expected);
        else if (base == "backward")
            check_line(Wanted{core::default_backward(), Problem{legal()}}, changes, expected);
        else
            check_line(Problem{base == "one" ? single() : legal()}, changes, expected);
        count++;
    }
    CHECK_GT(count, 150);
}

TEST_CASE("problem: the default scale, and problems without output") {
    CHECK_EQ(resolved(legal()).softmax_scale, doctest::Approx(1 / std::sqrt(8.0)).epsilon(1e-7));
    CHECK_FALSE(resolved(legal()).empty_output());
    for (uint32_t VkattnProblem::*extent : {&VkattnProblem::batch, &VkattnProblem::seqlen_q}) {
        VkattnProblem empty = legal();
        empty.*extent = 0;
        CHECK(resolved(empty).empty_output());
    }
}

TEST_CASE("problem: keys that some row may see") {
    const auto end = [](const std::function<void(VkattnProblem&)>& change) {
        VkattnProblem p = legal();
        change(p);
        return resolved(p).visible_keys(0, 4).end;
    };
    for (const uint32_t extent : {0u, 4u})
        CHECK_EQ(end([&](VkattnProblem& p) {
                     p.mask = VKATTN_MASK_BOOL;
                     p.mask_rank = 1;
                     p.mask_extents[0] = extent;
                 }),
                 extent);
    for (const auto& [align, keys] : {std::pair{VKATTN_ALIGN_BOTTOM_RIGHT, 9},
                                      {VKATTN_ALIGN_TOP_LEFT, 5}})  // 9: whatever the lengths come to
        CHECK_EQ(end([&, at = align](VkattnProblem& p) {
                     p.causal = p.kv_lengths = 1;
                     p.window_left = 7;
                     p.align = at;
                 }),
                 keys);
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

namespace {

// Every bound of problems whose batches have lengths, offsets or both of their own, or of those without.
void for_each_bound(VkattnProblem p, bool own, const std::function<void(const VkattnProblem&)>& f) {
    static const std::vector<int64_t> of_batches{
        -1, 0, 1, 3, 100, two_31 - 7, two_31 - 2, two_31 - 1, two_31, two_31 + 5, INT64_MAX},
        of_all{-1, 0, 1, 2, 4, 1000, two_31, int64_t{1} << 40, INT64_MAX - 1, INT64_MAX},
        offsets{0, 1, -1, 2, -2, 3, -3, 6, -6, 100, -100, two_31 - 1, two_31, -two_31 + 1, -two_31};
    const std::vector<int64_t>& windows = own ? of_batches : of_all;
    for (const uint32_t causal : {0u, 1u})
        for (const int64_t left : windows)
            for (const int64_t right : windows)
                for (const uint32_t lengths : {0u, 1u})
                    for (const VkattnAlign align : {VKATTN_ALIGN_BOTTOM_RIGHT, VKATTN_ALIGN_TOP_LEFT,
                                                    VKATTN_ALIGN_OFFSET, VKATTN_ALIGN_OFFSETS}) {
                        if (own != (lengths != 0 || align == VKATTN_ALIGN_OFFSETS)) continue;
                        p.causal = causal;
                        p.window_left = left;
                        p.window_right = right;
                        p.kv_lengths = lengths;
                        p.align = align;
                        for (const int64_t offset : align != VKATTN_ALIGN_OFFSET ? std::vector{INT64_MIN}
                                                    : own                        ? std::vector{int64_t{-2}}
                                                                                 : offsets) {
                            p.query_offset = offset;
                            f(p);
                        }
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

TEST_CASE("bounds: against the definition, every row and key of small problems") {
    const std::vector<int32_t> offsets{0,       1,       -1,         2, -3, 5, -100, 100, two_31 - 1 - 5,
                                       int_max, int_min, int_min + 6};
    for (uint32_t q = 0; q <= 5; q++)
        for (uint32_t kv = 0; kv <= 6; kv++)
            for (const bool short_mask : {false, true})
                for (const bool own : {false, true}) {
                    if (own ? (q != 1 && q != 4) || (kv > 1 && kv != 5) : short_mask) continue;
                    VkattnProblem given = with_seqlens(q, kv);
                    if (short_mask) set_mask(given, VKATTN_MASK_BOOL, MaskShape::few_keys);
                    std::vector<uint32_t> rows;
                    for (uint32_t i = 0; i < q; i++) rows.push_back(i);
                    std::string flaw;
                    for_each_bound(given, own, [&](const VkattnProblem& p) {
                        if (flaw.empty())
                            flaw = bounds_flaw(p, rows, {int_min, -1, 0, 1, 2, 4, 5, 6, int_max}, offsets);
                    });
                    CHECK_EQ(flaw, "");
                }
}

TEST_CASE("bounds: at the limits of seqlen, without overflow of 32 bits") {
    constexpr uint32_t most = VKATTN_MAX_SEQLEN;
    constexpr int32_t far = 1 << 30;
    for (const auto& [q, kv] : {std::pair{most, most},
                                {most, 0u},
                                {most, 1u},
                                {1u, most},
                                {7u, most},
                                {most, 97u},
                                {most - 1, most - 1},
                                {65537u, most},
                                {97u, most - 1}})
        for (const bool own : {false, true}) {
            std::string flaw;
            std::vector<uint32_t> rows;
            for (const uint32_t i : {0u, 1u, 6u, 96u, q / 2, q - 2, q - 1})
                if (i < q) rows.push_back(i);
            for_each_bound(with_seqlens(q, kv), own, [&](const VkattnProblem& p) {
                if (flaw.empty())
                    flaw = bounds_flaw(p, rows, {0, 1, far / 2, far - 1, far},
                                       {0, far, -far, int_max, int_min, int_min + far});
            });
            CHECK_EQ(flaw, "");
        }
}
