// The oracle's gradients against differences of its own forward, against arithmetic done by hand, and where
// differences cannot see: hidden content, and where the yardstick rounds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "oracle/backward.hpp"
#include "oracle/test_values.hpp"

using namespace oracle;
using namespace oracle::test;

namespace {

struct Inputs {
    Values query, key, value, dout, dlse;
};

Inputs random_inputs(const Problem& p, unsigned seed) {
    const std::size_t rows = p.batch * p.num_heads_q * p.seqlen_q;
    const std::size_t keys = p.batch * p.num_heads_kv * p.seqlen_kv;
    return {random_values(rows * p.head_dim_qk, seed), random_values(keys * p.head_dim_qk, seed + 1),
            random_values(keys * p.head_dim_v, seed + 2), random_values(rows * p.head_dim_v, seed + 3),
            random_values(rows, seed + 4)};
}

Gradients backward(const Problem& p, const Inputs& in) {
    return oracle::backward(p, in.query, in.key, in.value, in.dout, in.dlse);
}

NaiveGradients naive(const Problem& p, const Inputs& in, StorageType storage) {
    return naive_backward(p, in.query, in.key, in.value, in.dout, in.dlse, storage);
}

// What the gradients are of: sum(dout * out) + sum(dlse * lse), over the rows that see something.
double loss(const Problem& p, const Inputs& in) {
    const Result result = forward(p, in.query, in.key, in.value);
    double sum = 0;
    for (std::size_t row = 0; row < result.lse.size(); ++row) {
        if (result.lse[row] == -infinity) continue;
        for (std::size_t n = row * p.head_dim_v; n < (row + 1) * p.head_dim_v; ++n)
            sum += in.dout[n] * result.out[n];
        if (!in.dlse.empty()) sum += in.dlse[row] * result.lse[row];
    }
    return sum;
}

// `values` is a part of p or in. What is -inf stays so: its gradient is to be 0.
Values differences(const Problem& p, const Inputs& in, Values& values) {
    constexpr double step = 0x1p-15;
    Values result;
    for (double& x : values) {
        const double middle = x;
        x = middle + step;
        const double above = loss(p, in);
        x = middle - step;
        result.push_back(std::isinf(middle) ? 0 : (above - loss(p, in)) / (2 * step));
        x = middle;
    }
    return result;
}

void check_by_differences(Problem p, Inputs in) {
    constexpr double tolerance =
        1e-7;  // 500 times tighter than one part of a gradient of the smallest weight
    const Gradients result = backward(p, in);
    check_close(result.query, differences(p, in, in.query), tolerance);
    check_close(result.key, differences(p, in, in.key), tolerance);
    check_close(result.value, differences(p, in, in.value), tolerance);
    if (p.mask && p.mask->additive)
        check_close(result.mask, differences(p, in, p.mask->values), tolerance);
    else
        CHECK(result.mask.empty());
}

void check_by_differences(const Problem& p) {
    Inputs in = random_inputs(p, 20);
    check_by_differences(p, in);
    in.dlse.clear();
    check_by_differences(p, in);
}

// Every change to a problem of odd sizes, in words: plain, and with all else that changes which keys are seen.
void check_changes(const std::vector<std::string>& changes) {
    for (const std::string& words : changes)
        for (const bool among_others : {false, true}) {
            INFO(words, among_others ? " with a cap, a mask and lengths" : "");
            Problem p = problem("batch=2 heads=4,2 rows=5 keys=7 dims=3,2 scale=0.4");
            if (among_others) change_by_words(p, "softcap=1.5 bias=4,5,7 lengths=6,3");
            change_by_words(p, words);
            check_by_differences(p);
        }
}

}  // namespace

TEST_CASE("oracle backward: one key by hand") {
    Problem p;
    p.head_dim_qk = 2;
    p.head_dim_v = 3;
    p.softmax_scale = 0.5;
    // out is the value whatever the score, and lse is the score: its gradient is dlse
    const Gradients result = backward(p, {{1, 2}, {3, -1}, {7, -8, 9}, {1, 2, 5}, {4}});
    check_close(result.query, {6, -2});
    check_close(result.key, {2, 4});
    check_close(result.value, {1, 2, 5});
    CHECK(result.mask.empty());
}

TEST_CASE("oracle backward: two keys by hand") {
    // weights 1/4 and 3/4, out 7, dP 8 and 16, delta 14: the scores' gradient is -6/4 and 2 * 3/4
    Problem p = problem("rows=1 keys=2");
    const double log3 = std::log(3.0);
    const Inputs in{{1}, {0, log3}, {4, 8}, {2}, {}};
    p.mask = Mask{true, {2}, {0, 0}};
    const Gradients result = backward(p, in);
    check_close(result.query, {1.5 * log3});
    check_close(result.key, {-1.5, 1.5});
    check_close(result.value, {0.5, 1.5});
    check_close(result.mask, {-1.5, 1.5});
    p.mask = Mask{true, {1}, {0}};
    check_close(backward(p, in).mask, {0});
    // a score that a cap of 2 brings to log 3, by a slope of 1 - (log(3) / 2)^2
    p.mask.reset();
    p.softcap = 2;
    const Inputs capped{{1}, {0, 2 * std::atanh(log3 / 2)}, {4, 8}, {2}, {}};
    check_close(backward(p, capped).key, {-1.5, 1.5 * (1 - log3 * log3 / 4)});
    check_close(backward(p, capped).value, {0.5, 1.5});
}

TEST_CASE("oracle backward: heads, sizes, scale and softcap") {
    check_changes(
        {"", "heads=4,4", "heads=4,1", "rows=1 no-mask", "keys=1 lengths= no-mask", "dims=1,1", "dims=3,5"});
    check_changes({"rows=19 bias=19,1"});  // more than two blocks of rows
    check_changes({"scale=-0.4", "scale=0", "softcap=0.7", "softcap=50", "softcap=2 scale=-0.3",
                   "softcap=2 mask=5,7", "softcap=2 bias=2,1,5,7", "softcap=2 causal"});
    Problem p = problem("rows=2 keys=3");
    p.softmax_scale = 0;
    const Inputs in = random_inputs(p, 21);
    CHECK(backward(p, in).query == Values(2, 0));
    CHECK(backward(p, in).key == Values(3, 0));
}

TEST_CASE("oracle backward: causal in every alignment, windows and lengths") {
    check_changes({"causal", "causal top-left", "causal offset=1", "causal offset=3,-2",
                   "causal rows=11 no-mask", "causal lengths=7,2"});
    check_changes(
        {"causal offset=-9", "causal offset=9", "causal lengths=0,7", "lengths=0,0"});  // no keys, or all
    check_changes(
        {"window=1,2", "window=0,0", "window=2,-1", "window=-1,1", "window=2,-1 causal", "lengths=7,1"});
    check_changes({"window=1,-1 offset=5,-3"});  // past the keys
}

TEST_CASE("oracle backward: masks of every rank, broadcast and short") {
    Problem p = problem("batch=2 heads=2,1 rows=3 keys=4 dims=2,1");
    const std::vector<std::size_t> whole = {2, 2, 3};
    const Inputs in = random_inputs(p, 22);
    for (std::size_t rank = 1; rank <= 4; ++rank)
        for (std::size_t broadcast = 0; broadcast < std::size_t{1} << (rank - 1); ++broadcast)
            for (const std::size_t last : {4u, 3u, 1u, 0u})
                for (const bool additive : {false, true}) {
                    std::vector<std::size_t> extents(whole.end() - static_cast<std::ptrdiff_t>(rank - 1),
                                                     whole.end());
                    for (std::size_t axis = 0; axis + 1 < rank; ++axis)
                        if (broadcast >> axis & 1) extents[axis] = 1;
                    extents.push_back(last);
                    CAPTURE(rank);
                    CAPTURE(broadcast);
                    CAPTURE(last);
                    CAPTURE(additive);
                    p.mask = patchy_mask(additive, extents);
                    check_by_differences(p, in);
                }
}

TEST_CASE("oracle backward: the mask's gradient over all the rest") {
    for (const char* extents : {"1", "7", "5,1", "4,1,6", "2,1,5,7", "1,4,1,1", "2,5,7", "2,2,1,7"})
        check_changes({std::string("causal window=3,-1 offset=2,0 bias=") + extents});
    // 0, not small, where nothing is seen: -inf, past the lengths, in hidden rows
    Problem p = problem("rows=3 keys=3");
    p.kv_lengths = {2};
    p.causal = true;  // row 0 sees nothing, row 1 key 0
    p.mask = Mask{true, {3, 3}, {1, 1, 1, 1, 1, 1, 1, -infinity, 1}};
    const Gradients result = backward(p, random_inputs(p, 23));
    for (const std::size_t n : {0u, 1u, 2u, 4u, 5u, 7u, 8u}) CHECK(result.mask[n] == 0);
    CHECK(result.mask[3] != 0);
    CHECK(result.mask[6] != 0);
}

// Nine rows and twelve keys. Hidden are keys 1, 5 and 9 and row 5 by the mask, keys past the lengths, and in
// batch 1 rows 0 to 2, which stand before the keys.
namespace {

constexpr std::size_t poison_rows = 9;
constexpr std::size_t poison_keys = 12;

Problem poison_problem(bool additive, double softcap) {
    Problem p{.batch = 2,
              .num_heads_q = 4,
              .num_heads_kv = 2,
              .seqlen_q = poison_rows,
              .seqlen_kv = poison_keys,
              .head_dim_qk = 3,
              .head_dim_v = 2,
              .softmax_scale = -0.3,
              .softcap = softcap,
              .causal = true,
              .kv_lengths = {10, 6}};
    p.mask =
        Mask{additive, {poison_rows, poison_keys}, Values(poison_rows * poison_keys, additive ? 0.5 : 1)};
    for (std::size_t n = 0; n < p.mask->values.size(); ++n)
        if (n / poison_keys == 5 || n % 4 == 1) p.mask->values[n] = additive ? -infinity : 0;
    return p;
}

bool row_is_hidden(std::size_t row) {
    const std::size_t batch = row / (4 * poison_rows), i = row % poison_rows;
    return i == 5 || (batch == 1 && i < 3);
}

bool key_is_hidden(std::size_t key) {
    const std::size_t batch = key / (2 * poison_keys), j = key % poison_keys;
    return j % 4 == 1 || j >= (batch == 0 ? 10 : 6);
}

void spoil(Values& values, std::size_t row, std::size_t width, double poison) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row * width), width, poison);
}

Inputs with_poison(Inputs in, double poison) {
    for (std::size_t row = 0; row < in.dlse.size(); ++row)
        if (row_is_hidden(row)) {
            spoil(in.query, row, 3, poison);
            spoil(in.dout, row, 2, poison);
            spoil(in.dlse, row, 1, poison);
        }
    for (std::size_t key = 0; key * 3 < in.key.size(); ++key)
        if (key_is_hidden(key)) {
            spoil(in.key, key, 3, poison);
            spoil(in.value, key, 2, poison);
        }
    return in;
}

template <typename G>
void check_same(const G& a, const G& b) {
    CHECK(a.query == b.query);
    CHECK(a.key == b.key);
    CHECK(a.value == b.value);
    CHECK(a.mask == b.mask);
}

}  // namespace

TEST_CASE("oracle backward: hidden content may be anything") {
    for (const double softcap : {0.0, 1.0})
        for (const bool additive : {false, true}) {
            const Problem p = poison_problem(additive, softcap);
            const Inputs in = random_inputs(p, 24);
            const Gradients expected = backward(p, in);
            for (std::size_t n = 0; n < in.query.size(); ++n)
                CHECK((expected.query[n] == 0) == row_is_hidden(n / 3));
            for (std::size_t n = 0; n < in.key.size(); ++n)
                CHECK((expected.key[n] == 0) == key_is_hidden(n / 3));
            for (std::size_t n = 0; n < in.value.size(); ++n)
                CHECK((expected.value[n] == 0) == key_is_hidden(n / 2));
            for (const double poison : {not_a_number, infinity, -infinity}) {
                const Inputs poisoned = with_poison(in, poison);
                check_same(backward(p, poisoned), expected);
                check_same(naive(p, poisoned, StorageType::bfloat16), naive(p, in, StorageType::bfloat16));
            }
        }
}

TEST_CASE("oracle backward: a row is safe from keys that only its neighbours see") {
    Problem p = problem("rows=4 keys=4 dims=2,2 causal");
    Inputs in = random_inputs(p, 25);
    const Gradients clean = backward(p, in);
    std::fill_n(in.key.begin() + 6, 2, not_a_number);  // key 3 and the row that sees it
    std::fill_n(in.value.begin() + 6, 2, infinity);
    const Gradients result = backward(p, in);
    for (std::size_t n = 0; n < 6; ++n) CHECK(result.query[n] == clean.query[n]);
    CHECK_FALSE(std::isfinite(result.query[6]));
}

TEST_CASE("oracle backward: rows without a key give 0") {
    Problem p = problem("rows=3 keys=2");
    p.causal = true;                                          // row 0 stands at -1
    p.mask = Mask{true, {3, 2}, {0, 0, -infinity, 0, 0, 0}};  // row 1 sees key 0 but for the mask
    const Inputs in{{not_a_number, infinity, 1},
                    {1, 2},
                    {3, 5},
                    {not_a_number, -infinity, 1},
                    {infinity, not_a_number, 1}};
    const Gradients result = backward(p, in);
    CHECK(result.query[0] == 0);
    CHECK(result.query[1] == 0);
    for (std::size_t n = 0; n < 4; ++n) CHECK(result.mask[n] == 0);
    p.mask.reset();
    p.seqlen_q = 1;
    p.causal = false;
    const Gradients alone = backward(p, {{1}, {1, 2}, {3, 5}, {1}, {1}});
    CHECK(result.query[2] == alone.query[0]);
    CHECK(result.key == alone.key);
    CHECK(result.value == alone.value);
}

TEST_CASE("oracle backward: -FLT_MAX is a value, not a hidden key") {
    Problem p = problem("rows=1 keys=4");
    const Inputs in{{1}, {1, 2, 3, 4}, {1, 2, 3, 6}, {1}, {8}};
    p.mask = Mask{true, {1}, {-FLT_MAX}};  // equal scores; out 3; gradients (v - 3 + 8) / 4
    const Gradients result = backward(p, in);
    check_close(result.key, {1.5, 1.75, 2, 2.75});
    check_close(result.query, {1.5 + 3.5 + 6 + 11});
    check_close(result.value, {0.25, 0.25, 0.25, 0.25});
    check_close(result.mask, {8});
    const NaiveGradients in_float = naive(p, in, StorageType::float16);
    CHECK(in_float.key == std::vector<float>{1.5f, 1.75f, 2, 2.75f});
    CHECK(in_float.mask == std::vector<float>{8});
    p.mask = Mask{true, {4}, {-FLT_MAX, 0, -FLT_MAX, -infinity}};
    check_close(backward(p, in).mask, {0, 8, 0, 0});
    check_close(backward(p, in).value, {0, 1, 0, 0});
}

TEST_CASE("oracle backward: every batch is a problem of its own, threads or not") {
    const Problem whole = problem("batch=3 heads=4,2 rows=30 keys=50 dims=8,6 scale=0.3");
    Problem part = whole;  // small enough for one thread, which the whole is not
    part.batch = 1;
    const Inputs in = random_inputs(whole, 29);
    const Gradients result = backward(whole, in);
    const auto slice = [](const Values& values, std::size_t n) {
        const std::size_t count = values.size() / 3;
        return Values(&values[n * count], &values[n * count] + count);
    };
    for (std::size_t n = 0; n < 3; ++n)
        check_same(backward(part, {slice(in.query, n), slice(in.key, n), slice(in.value, n),
                                   slice(in.dout, n), slice(in.dlse, n)}),
                   Gradients{slice(result.query, n), slice(result.key, n), slice(result.value, n), {}, {}});
}

TEST_CASE("oracle backward: empty dimensions") {
    Problem p = problem("batch=2 rows=3 keys=0 dims=4,2");
    p.mask = Mask{true, {3, 0}, {}};
    Gradients result = backward(p, random_inputs(p, 26));
    CHECK(result.query == Values(24, 0));
    CHECK(result.key.empty());
    CHECK(result.value.empty());
    CHECK(result.mask.empty());
    p.mask = Mask{true, {3, 1}, {1, 2, 3}};
    CHECK(backward(p, random_inputs(p, 26)).mask == Values(3, 0));
    p = {.batch = 2, .seqlen_q = 0, .seqlen_kv = 5, .head_dim_qk = 4, .head_dim_v = 2};
    p.mask = Mask{true, {1, 5}, Values(5, 1)};
    result = backward(p, random_inputs(p, 26));
    CHECK(result.query.empty());
    CHECK(result.key == Values(40, 0));
    CHECK(result.value == Values(20, 0));
    CHECK(result.mask == Values(5, 0));
    p.batch = 0;
    result = backward(p, random_inputs(p, 26));
    CHECK(result.key.empty());
    CHECK(result.mask == Values(5, 0));
}

TEST_CASE("oracle backward: sizes that do not fit are refused") {
    const Problem p = problem("batch=2 heads=2,2 rows=2 keys=3");
    const Inputs in = random_inputs(p, 27);
    const auto refused = [&](Values Inputs::*part, std::size_t size) {
        Inputs changed = in;
        (changed.*part).resize(size);
        CHECK_THROWS_AS(backward(p, changed), std::invalid_argument);
        CHECK_THROWS_AS(naive(p, changed, StorageType::float32), std::invalid_argument);
    };
    refused(&Inputs::query, 7);
    refused(&Inputs::dout, 7);
    refused(&Inputs::dout, 0);
    refused(&Inputs::dlse, 9);
    refused(&Inputs::dlse, 1);
}

TEST_CASE("naive backward: rounds where the error rule says") {
    // Three equal keys, and three parts of 1, 2 and 4: 7 thirds are 1194.67 * 2^-9 and 149.33 * 2^-6. With the
    // thirds rounded to the type first they are 1194.375 and 149.625 of these steps.
    const auto gradients = [](const Inputs& in, StorageType storage) {
        Problem p = problem("keys=3");
        p.seqlen_q = in.query.size();
        p.mask = Mask{true, {3}, {0, 0, 0}};
        return naive(p, in, storage);
    };
    const Inputs by_value{{0, 0, 0}, {1, 2, 4}, {0, 0, 0}, {1, 2, 4}, {0, 0, 0}};
    CHECK(gradients(by_value, StorageType::float16).value == std::vector<float>(3, 1194 * 0x1p-9f));
    CHECK(gradients(by_value, StorageType::bfloat16).value == std::vector<float>(3, 150 * 0x1p-6f));
    const Inputs by_key{{1, 2, 4}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1}};
    CHECK(gradients(by_key, StorageType::float16).key == std::vector<float>(3, 1194 * 0x1p-9f));
    CHECK(gradients(by_key, StorageType::bfloat16).key == std::vector<float>(3, 150 * 0x1p-6f));
    const Inputs by_query{{0}, {1, 2, 4}, {0, 0, 0}, {0}, {1}};
    CHECK(gradients(by_query, StorageType::float16).query == std::vector<float>{1194 * 0x1p-9f});
    CHECK(gradients(by_query, StorageType::bfloat16).query == std::vector<float>{150 * 0x1p-6f});
    const Inputs by_mask{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {1, 2, 4}};
    CHECK(gradients(by_mask, StorageType::float16).mask == std::vector<float>(3, 1195 * 0x1p-9f));
    CHECK(gradients(by_mask, StorageType::bfloat16).mask == std::vector<float>(3, 149 * 0x1p-6f));

    // delta is of out as stored: 1 + 2^-9 is a half but no bfloat16, so 2^-9 is left of dP - delta there
    Problem p = problem("rows=1 keys=1");
    p.mask = Mask{true, {1}, {0}};
    const Inputs in{{1}, {1}, {1 + 0x1p-9}, {1}, {}};
    CHECK(naive(p, in, StorageType::bfloat16).key == std::vector<float>{0x1p-9f});
    CHECK(naive(p, in, StorageType::float16).key == std::vector<float>{0});
}

TEST_CASE("naive backward: stays near the oracle") {
    Problem p =
        problem("batch=2 heads=4,2 rows=37 keys=61 dims=24,17 scale=0.2 softcap=5 window=20,-1 causal");
    p.mask = patchy_mask(true, {4, 1, 61});
    const Inputs in = random_inputs(p, 28);
    const Gradients expected = backward(p, in);
    for (const auto& [storage, tolerance] : {std::pair{StorageType::float32, 2e-5},
                                             {StorageType::float16, 3e-2},
                                             {StorageType::bfloat16, 3e-1}}) {
        const NaiveGradients result = naive(p, in, storage);
        const auto close = [&, bound = tolerance](const std::vector<float>& a, const Values& b) {
            check_close(Values(a.begin(), a.end()), b, bound);
        };
        close(result.query, expected.query);
        close(result.key, expected.key);
        close(result.value, expected.value);
        close(result.mask, expected.mask);
    }
}
