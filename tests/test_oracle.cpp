// The oracle against arithmetic done by hand and against identities of attention: it is what everything else
// is tested against, so nothing here uses a second implementation's numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "oracle/test_values.hpp"

using namespace oracle;
using namespace oracle::test;

namespace {

struct Inputs {
    Values query, key, value;
};

Inputs random_inputs(const Problem& p, unsigned seed) {
    const std::size_t keys = p.batch * p.num_heads_kv * p.seqlen_kv;
    return {random_values(p.batch * p.num_heads_q * p.seqlen_q * p.head_dim_qk, seed),
            random_values(keys * p.head_dim_qk, seed + 100), random_values(keys * p.head_dim_v, seed + 200)};
}

Result forward(const Problem& p, const Inputs& inputs) {
    return oracle::forward(p, inputs.query, inputs.key, inputs.value);
}

NaiveResult naive(const Problem& p, const Inputs& inputs, StorageType storage) {
    return naive_forward(p, inputs.query, inputs.key, inputs.value, storage);
}

// The keys that each row sees, bit j for key j, of a problem with head_dim_v 1. All scores are 0, so
// lse = log(count) and out = mean; with value 2^j, out * count is the set itself.
std::vector<unsigned> visible_keys(Problem p) {
    Inputs inputs = random_inputs(p, 1);
    std::fill(inputs.query.begin(), inputs.query.end(), 0.0);
    for (std::size_t n = 0; n < inputs.value.size(); ++n)
        inputs.value[n] = std::ldexp(1.0, static_cast<int>(n % p.seqlen_kv));
    const Result result = forward(p, inputs);
    const NaiveResult in_float = naive(p, inputs, StorageType::float32);
    std::vector<unsigned> sets;
    for (std::size_t n = 0; n < result.lse.size(); ++n) {
        const double count = std::exp(result.lse[n]);
        sets.push_back(static_cast<unsigned>(std::lround(result.out[n] * count)));
        CHECK(std::lround(count) == std::popcount(sets.back()));
        CHECK(std::lround(in_float.out[n] * std::exp(in_float.lse[n])) == std::lround(result.out[n] * count));
    }
    return sets;
}

}  // namespace

TEST_CASE("oracle: one key gives its value, lse is the score") {
    Problem p;
    p.head_dim_qk = 2;
    p.head_dim_v = 3;
    p.softmax_scale = 0.5;
    // 0.5 * (1 * 3 + 2 * -1) = 0.5
    const Result result = forward(p, {{1, 2}, {3, -1}, {7, -8, 9}});
    check_close(result.out, {7, -8, 9});
    check_close(result.lse, {0.5});
}

TEST_CASE("oracle: two keys by hand") {
    // scores 0 and log 3: weights 1 and 3 of 4; out = (1 * 4 + 3 * 8) / 4 = 7; lse = log 4
    const Result result = forward(problem("rows=1 keys=2"), {{1}, {0, std::log(3.0)}, {4, 8}});
    check_close(result.out, {7});
    check_close(result.lse, {std::log(4.0)});
}

TEST_CASE("oracle: equal scores give the mean value, however large they are") {
    for (const double score : {0.0, 1.0, -1000.0, 1e6}) {
        const Result result = forward(problem("rows=1 keys=4"), {{score}, {1, 1, 1, 1}, {1, 2, 3, 6}});
        check_close(result.out, {3});
        check_close(result.lse, {score + std::log(4.0)});
    }
}

TEST_CASE("oracle: scale zero and negative") {
    Problem p = problem("rows=1 keys=2");
    const Inputs inputs{{2}, {0, std::log(2.0)}, {4, 12}};
    p.softmax_scale = 0;  // weights 1, 1: out = 8, lse = log 2
    check_close(forward(p, inputs).out, {8});
    check_close(forward(p, inputs).lse, {std::log(2.0)});
    p.softmax_scale =
        -1;  // scores 0, -2 log 2: weights 4, 1 of 5; out = (4 * 4 + 12) / 5 = 5.6; lse = log 1.25
    check_close(forward(p, inputs).out, {5.6});
    check_close(forward(p, inputs).lse, {std::log(1.25)});
}

TEST_CASE("oracle: softcap comes after the scale and before the mask") {
    Problem p;
    p.softmax_scale = 0.5;
    p.softcap = 2;
    // 0.5 * 6 = 3; 2 * tanh(3 / 2)
    check_close(forward(p, {{2}, {3}, {1}}).lse, {2 * std::tanh(1.5)});
    p.mask = Mask{true, {1}, {10}};  // the bias is not capped
    check_close(forward(p, {{2}, {3}, {1}}).lse, {2 * std::tanh(1.5) + 10});
    p.softcap = 0;  // none
    check_close(forward(p, {{2}, {3}, {1}}).lse, {13});
}

TEST_CASE("oracle: grouped heads equal repeated key and value heads") {
    Problem grouped = problem("batch=2 heads=6,2 rows=4 keys=5 dims=3,2");
    const Inputs inputs = random_inputs(grouped, 4);
    Problem repeated = grouped;
    repeated.num_heads_kv = 6;
    Inputs more = random_inputs(repeated, 5);
    more.query = inputs.query;
    for (std::size_t n = 0; n < 12; ++n) {  // n: batch * 6 + head; heads 0-2 read head 0, heads 3-5 head 1
        std::copy_n(&inputs.key[n / 3 * 15], 15, &more.key[n * 15]);
        std::copy_n(&inputs.value[n / 3 * 10], 10, &more.value[n * 10]);
    }
    check_close(forward(grouped, inputs).out, forward(repeated, more).out);
    check_close(forward(grouped, inputs).lse, forward(repeated, more).lse);
}

TEST_CASE("oracle: every batch and head is a problem of its own") {
    const Problem p = problem("batch=3 heads=2,2 rows=19 keys=5 dims=3,2 causal");
    Problem one = p;
    one.batch = one.num_heads_q = one.num_heads_kv = 1;
    const Inputs inputs = random_inputs(p, 6);
    const auto slice = [](const Values& values, std::size_t n) {
        const std::size_t count = values.size() / 6;
        return Values(&values[n * count], &values[n * count] + count);
    };
    const Result whole = forward(p, inputs);
    for (std::size_t n = 0; n < 6; ++n) {
        const Result part =
            forward(one, {slice(inputs.query, n), slice(inputs.key, n), slice(inputs.value, n)});
        CHECK(part.out == slice(whole.out, n));
        CHECK(part.lse == slice(whole.lse, n));
    }
}

TEST_CASE("oracle: which keys a row sees, by alignment, windows, lengths and masks") {
    std::ifstream file(VKATTN_TESTS_DIR "/oracle/visible.txt");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(" : ");
        if (line.starts_with('#') || colon == line.npos) continue;
        CAPTURE(line);
        Problem p;
        change_by_words(p, line.substr(0, colon));
        std::string seen = " :";
        for (const unsigned keys : visible_keys(p)) {
            seen += ' ';
            for (std::size_t j = 0; j < p.seqlen_kv; ++j) seen += (keys >> j & 1) != 0 ? '1' : '0';
        }
        CHECK(line.substr(colon) == seen);
        ++count;
    }
    CHECK(count == 37);
}

TEST_CASE("oracle: rows without a key are 0 and -inf") {
    Problem p = problem("rows=3 keys=2 dims=2,2 causal");
    const Inputs inputs = random_inputs(p, 7);  // row 0 stands at -1
    const Result result = forward(p, inputs);
    CHECK(result.out[0] == 0);
    CHECK(result.out[1] == 0);
    CHECK(result.lse[0] == -infinity);
    CHECK(std::isfinite(result.lse[1]));
    const NaiveResult in_float = naive(p, inputs, StorageType::bfloat16);
    CHECK(in_float.out[0] == 0);
    CHECK(in_float.lse[0] == -infinity);
}

TEST_CASE("oracle: hidden keys may hold anything") {
    Problem p = problem("rows=2 keys=4 dims=2,2 lengths=3");
    p.mask = Mask{false, {4}, {1, 0, 1, 1}};  // key 1 by the mask, key 3 by the length
    Inputs inputs = random_inputs(p, 8);
    const Result clean = forward(p, inputs);
    for (const std::size_t hidden_key : {1u, 3u})
        for (std::size_t d = 0; d < 2; ++d) {
            inputs.key[hidden_key * 2 + d] = d == 0 ? not_a_number : infinity;
            inputs.value[hidden_key * 2 + d] = d == 0 ? -infinity : not_a_number;
        }
    CHECK(forward(p, inputs).out == clean.out);
    CHECK(forward(p, inputs).lse == clean.lse);
    const NaiveResult in_float = naive(p, inputs, StorageType::float32);
    CHECK(std::all_of(in_float.out.begin(), in_float.out.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("oracle: -FLT_MAX is a value, not a hidden key") {
    Problem p = problem("rows=1 keys=4");
    p.mask = Mask{true, {1}, {-FLT_MAX}};
    const Inputs inputs{{1}, {1, 2, 3, 4}, {1, 2, 3, 6}};
    check_close(forward(p, inputs).out, {3});  // 1 to 4 vanish beside FLT_MAX: equal scores
    CHECK(forward(p, inputs).lse[0] == doctest::Approx(-double{FLT_MAX}));
    CHECK(naive(p, inputs, StorageType::float32).out[0] == 3);
    p.mask = Mask{true, {4}, {-FLT_MAX, 0, -FLT_MAX, -infinity}};
    check_close(forward(p, inputs).out, {2});
}

TEST_CASE("oracle: empty dimensions") {
    Problem p = problem("batch=2 rows=3 keys=0 dims=4,2");
    Result result = forward(p, random_inputs(p, 10));
    CHECK(result.out == Values(12, 0));
    CHECK(result.lse == Values(6, -infinity));
    p.causal = true;
    CHECK(forward(p, random_inputs(p, 10)).lse == Values(6, -infinity));
    for (std::size_t Problem::*dimension : {&Problem::batch, &Problem::seqlen_q}) {
        Problem empty = problem("batch=2 rows=3 keys=5 dims=4,2");
        empty.*dimension = 0;
        result = forward(empty, random_inputs(empty, 10));
        CHECK(result.out.empty());
        CHECK(result.lse.empty());
    }
}

TEST_CASE("oracle: keys split in two and merged by lse equal the whole") {
    const Problem whole = problem("rows=10 keys=7 dims=4,2 scale=0.7 causal top-left");
    const Inputs inputs = random_inputs(whole, 11);
    Problem left = whole;
    left.seqlen_kv = 3;
    Problem right = whole;  // its key 0 is the whole's key 3: rows 0-2 see none
    right.seqlen_kv = 4;
    right.alignment = Alignment::given;
    right.query_offset = {-3};
    const Result a = forward(left, {inputs.query, Values(inputs.key.begin(), inputs.key.begin() + 12),
                                    Values(inputs.value.begin(), inputs.value.begin() + 6)});
    const Result b = forward(right, {inputs.query, Values(inputs.key.begin() + 12, inputs.key.end()),
                                     Values(inputs.value.begin() + 6, inputs.value.end())});
    Result merged = a;
    for (std::size_t i = 0; i < 10; ++i) {
        merged.lse[i] = std::log(std::exp(a.lse[i]) + std::exp(b.lse[i]));
        for (std::size_t d = 0; d < 2; ++d)
            merged.out[i * 2 + d] = std::exp(a.lse[i] - merged.lse[i]) * a.out[i * 2 + d] +
                                    std::exp(b.lse[i] - merged.lse[i]) * b.out[i * 2 + d];
    }
    check_close(merged.out, forward(whole, inputs).out);
    check_close(merged.lse, forward(whole, inputs).lse);
}

TEST_CASE("oracle: sizes that do not fit are refused") {
    const Problem p = problem("batch=2 heads=2,2 rows=2 keys=3");
    const Inputs inputs = random_inputs(p, 12);
    const auto refused = [&](auto change) {
        Problem changed = p;
        change(changed);
        CHECK_THROWS_AS(forward(changed, inputs), std::invalid_argument);
    };
    refused([](Problem& c) { c.head_dim_v = 2; });
    refused([](Problem& c) { c.num_heads_q = 3; });
    refused([](Problem& c) { c.kv_lengths = {1}; });
    refused([](Problem& c) { c.kv_lengths = {1, 4}; });
    refused([](Problem& c) { c.kv_lengths = {1, -1}; });
    refused([](Problem& c) { c.alignment = Alignment::given; });
    refused([](Problem& c) { c.mask = Mask{false, {4}, {1, 1, 1, 1}}; });
    refused([](Problem& c) { c.mask = Mask{false, {3}, {1, 1}}; });
    refused([](Problem& c) {
        c.mask = Mask{false, {c.num_heads_q + 1, 1, 1}, Values(c.num_heads_q + 1, 1)};
    });
    refused([](Problem& c) { c.mask = Mask{false, {0, 1, 1}, {}}; });
    refused([](Problem& c) { c.mask = Mask{false, {3, 3}, Values(9, 1)}; });
    refused([](Problem& c) { c.mask = Mask{false, {1, 1, 1, 1, 1}, {1}}; });
    refused([](Problem& c) { c.mask = Mask{false, {}, {1}}; });
}

TEST_CASE("naive: rounds where the error rule says") {
    // Weights 1/4 and 3/4 are exact in every type; 1 + 2^-9 is a half but no bfloat16.
    const double step = 1 + 0x1p-9;
    Problem p = problem("rows=1 keys=2");
    const Inputs quarters{{1}, {0, std::log(3.0)}, {step, step}};
    CHECK(naive(p, quarters, StorageType::float16).out[0] == doctest::Approx(step));
    CHECK(naive(p, quarters, StorageType::bfloat16).out[0] == 1);
    // Three equal keys: 1/3 is 0x1.554p-2 in float16 and 0x1.56p-2 in bfloat16. Values 1, 2, 4:
    // 7 * 0x1.554p-2 is 1194.375 ulps of 2^-9 (7/3 would be 1194.67), 7 * 0x1.56p-2 149.625 of 2^-6 (149.33).
    p = problem("rows=1 keys=3");
    const Inputs thirds{{0}, {0, 0, 0}, {1, 2, 4}};
    CHECK(naive(p, thirds, StorageType::float32).out[0] == doctest::Approx(7.0 / 3).epsilon(1e-6));
    CHECK(naive(p, thirds, StorageType::float16).out[0] == 1194 * 0x1p-9f);
    CHECK(naive(p, thirds, StorageType::bfloat16).out[0] == 150 * 0x1p-6f);
    // Operands of another type than the storage: out is not rounded, query, key and value are.
    const auto rounding = [&](const Inputs& in) {
        return naive_forward(p, in.query, in.key, in.value, StorageType::float32, StorageType::float16);
    };
    CHECK(rounding(thirds).out[0] == 7 * 0x1.554p-2f);
    const double near = 1 + 0x1p-12;
    CHECK(rounding({{0}, {0, 0, 0}, {near, 2, 4}}).out[0] == 7 * 0x1.554p-2f);
    p = problem("rows=1 keys=1");
    CHECK(rounding({{near}, {2}, {0}}).lse[0] == 2);
    CHECK(rounding({{2}, {near}, {0}}).lse[0] == 2);
}

TEST_CASE("naive: stays near the oracle") {
    const Problem p =
        problem("batch=2 heads=4,2 rows=37 keys=61 dims=24,17 scale=0.2 softcap=5 window=20,-1 causal");
    const Inputs inputs = random_inputs(p, 13);
    const Result expected = forward(p, inputs);
    for (const auto& [storage, tolerance] : {std::pair{StorageType::float32, 1e-6},
                                             {StorageType::float16, 2e-3},
                                             {StorageType::bfloat16, 2e-2}}) {
        const NaiveResult result = naive(p, inputs, storage);
        check_close(Values(result.out.begin(), result.out.end()), expected.out, tolerance);
        check_close(Values(result.lse.begin(), result.lse.end()), expected.lse, 1e-6);
    }
}

TEST_CASE("rounding to storage types") {
    const auto half = [](double x) { return round_to_storage(static_cast<float>(x), StorageType::float16); };
    CHECK(half(1 + 0x1p-11) == 1);            // a tie, to even
    CHECK(half(1 + 0x3p-11) == 1 + 0x1p-9f);  // a tie, to even
    CHECK(half(-(1 + 0x1.2p-11)) == -(1 + 0x1p-10f));
    CHECK(half(0x1p-25) == 0);  // half of the smallest subnormal
    CHECK(half(0x1.8p-25) == 0x1p-24f);
    CHECK(half(0x1.ffcp-15) == 0x1p-14f);  // a tie, up to the smallest normal
    CHECK(half(65519) == 65504);
    CHECK(half(65520) == std::numeric_limits<float>::infinity());
    CHECK(std::signbit(half(-0.0)));
    CHECK(std::isnan(half(not_a_number)));

    const auto bfloat = [](double x) {
        return round_to_storage(static_cast<float>(x), StorageType::bfloat16);
    };
    CHECK(bfloat(1 + 0x1p-8) == 1);
    CHECK(bfloat(1 + 0x3p-8) == 1 + 0x1p-6f);
    CHECK(bfloat(0x1.ffp0) == 2);
    CHECK(bfloat(FLT_MAX) == std::numeric_limits<float>::infinity());
    CHECK(bfloat(-0x1p-133) == -0x1p-133f);  // the smallest subnormal
    CHECK(std::isnan(bfloat(not_a_number)));

    CHECK(storage_ulp(1, StorageType::float16) == 0x1p-10);
    CHECK(storage_ulp(1.999, StorageType::float16) == 0x1p-10);
    CHECK(storage_ulp(0, StorageType::float16) == 0x1p-24);
    CHECK(storage_ulp(-5, StorageType::bfloat16) == 0x1p-5);
    CHECK(storage_ulp(1, StorageType::float32) == 0x1p-23);
}

TEST_CASE("error rule: the bound by hand") {
    const Values expected = {1, -4, 0};
    const std::vector<float> in_float = {1, -4.25, 0.125};  // naive error 0.25
    // float16: 2 * 0.25 + ulp(4) = 0.5 + 2^-8
    Bound bound = check(std::vector<float>{1, -4.5, 0}, expected, in_float, StorageType::float16);
    CHECK(bound.measured == 0.5);
    CHECK(bound.allowed == 0.5 + 0x1p-8);
    CHECK(bound.worst == 1);
    CHECK(bound.ok);
    bound = check(std::vector<float>{1, -4, 0.5f + 0x1.1p-8f}, expected, in_float, StorageType::float16);
    CHECK(bound.worst == 2);
    CHECK_FALSE(bound.ok);
    // bfloat16: + ulp(4) = 2^-5; float32: + 1e-6 * 4
    CHECK(check(in_float, expected, in_float, StorageType::bfloat16).allowed == 0.5 + 0x1p-5);
    CHECK(check(in_float, expected, in_float, StorageType::float32).allowed == 0.5 + 4e-6);
}

TEST_CASE("error rule: a planted error, NaN and misplaced infinities fail") {
    const Problem p = problem("heads=2,2 rows=9 keys=5 dims=8,8 causal");
    const Inputs inputs = random_inputs(p, 14);
    const Result expected = forward(p, inputs);
    const NaiveResult in_float = naive(p, inputs, StorageType::float16);
    const auto passes = [](const std::vector<float>& result, const Values& reference,
                           const std::vector<float>& yardstick,
                           StorageType storage) { return check(result, reference, yardstick, storage).ok; };
    CHECK(passes(in_float.out, expected.out, in_float.out, StorageType::float16));
    CHECK(passes(in_float.lse, expected.lse, in_float.lse, StorageType::float32));
    REQUIRE(expected.lse[0] == -infinity);
    REQUIRE(std::isfinite(expected.lse[5]));

    for (const double wrong : {0.1, -0.1, not_a_number, infinity, -infinity}) {
        CAPTURE(wrong);
        std::vector<float> out = in_float.out;
        out[77] += static_cast<float>(wrong);
        CHECK_FALSE(passes(out, expected.out, in_float.out, StorageType::float16));
        std::vector<float> lse = in_float.lse;
        lse[5] += static_cast<float>(wrong);
        CHECK_FALSE(passes(lse, expected.lse, in_float.lse, StorageType::float32));
    }
    for (const float wrong : {0.0f, -FLT_MAX, HUGE_VALF, std::nanf("")}) {  // where -inf belongs
        std::vector<float> lse = in_float.lse;
        lse[0] = wrong;
        CHECK_FALSE(passes(lse, expected.lse, in_float.lse, StorageType::float32));
        CHECK_FALSE(passes(in_float.lse, expected.lse, lse, StorageType::float32));  // a broken yardstick
    }
    std::vector<float> zeros(in_float.out.size());
    CHECK_FALSE(passes(zeros, expected.out, in_float.out, StorageType::float16));
}

TEST_CASE("error rule: nothing but hidden rows, and nothing at all") {
    CHECK(check(std::vector<float>{-HUGE_VALF}, Values{-infinity}, std::vector<float>{-HUGE_VALF},
                StorageType::float32)
              .ok);
    CHECK(check({}, {}, {}, StorageType::float32).ok);
    CHECK_THROWS_AS(check(std::vector<float>{1}, {}, {}, StorageType::float32), std::invalid_argument);
}
