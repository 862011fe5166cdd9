// The self-test without a device: its reference against the oracle, its judgement, and what the planner makes of
// verdicts. That drivers' results pass is tested in gpu/test_self_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "device_tests/kept_text.hpp"
#include "device_tests/self_test.hpp"
#include "oracle/backward.hpp"
#include "plan_cases.hpp"
#include "profile.hpp"

using namespace vkattn::core;
using Shape = SelfTestShape;

namespace {

constexpr const char* version = "1.2.3";
constexpr VkattnDtype dtypes[] = {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16};

DeviceCaps device(const std::string& name) {
    return vkattn::test::load_with_matrix_units(std::string(VKATTN_TESTS_DIR "/profiles/") + name + ".txt");
}

void check_near(const std::vector<double>& got, const std::vector<double>& expected) {
    REQUIRE_EQ(got.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) worst = std::max(worst, std::fabs(got[i] - expected[i]));
    CHECK_LT(worst, 1e-12);
}

// Says that a kernel has failed each of its pending tests on the device.
void fail_all(DeviceCaps& caps, const std::string& kernel) {
    for (PlannedTest& planned : pending_tests(caps))
        if (planned.verdict.kernel == kernel) {
            planned.verdict.failure = "out[0] is 2 instead of 1";
            caps.verdicts.push_back(planned.verdict);
        }
}

// The kernels of tests whose operands have all one type.
std::vector<std::string> kernels_of(const std::vector<PlannedTest>& tests) {
    std::vector<std::string> kernels;
    for (const PlannedTest& t : tests)
        if (!t.verdict.mixed) kernels.push_back(t.verdict.kernel);
    return kernels;
}

Problem problem_of(VkattnDtype dtype) {
    return SelfTest{false, dtype, VKATTN_PRECISION_STORAGE, Shape::rows}.problem();
}

}  // namespace

TEST_CASE("self-test: its reference is the oracle's attention") {
    const SelfTestInputs in = self_test_inputs();
    const SelfTestReference reference = self_test_reference(in);
    oracle::Problem p;
    p.num_heads_q = Shape::heads_q;
    p.num_heads_kv = Shape::heads_kv;
    p.seqlen_q = Shape::rows;
    p.seqlen_kv = Shape::keys;
    p.head_dim_qk = p.head_dim_v = Shape::head_dim;
    p.softmax_scale = 1 / std::sqrt(static_cast<double>(Shape::head_dim));
    p.causal = true;
    const oracle::Result forward = oracle::forward(p, in.query, in.key, in.value);
    check_near(reference.out, forward.out);
    check_near(reference.lse, forward.lse);
    const oracle::Gradients gradients = oracle::backward(p, in.query, in.key, in.value, in.dout, {});
    check_near(reference.dquery, gradients.query);
    check_near(reference.dkey, gradients.key);
    check_near(reference.dvalue, gradients.value);
}

TEST_CASE("self-test: every storage type has the inputs exactly, and the largest scores stand last") {
    const SelfTestInputs in = self_test_inputs();
    for (const VkattnDtype dtype : dtypes)
        for (const auto& x : {in.query, in.key, in.value, in.dout})
            CHECK(loaded(stored(x, dtype), dtype) == x);
    const auto reach = [&](size_t key) {
        const auto first = in.key.begin() + static_cast<std::ptrdiff_t>(key * Shape::head_dim);
        return *std::max_element(first, first + Shape::head_dim);
    };
    CHECK_GT(reach(Shape::keys - 1), 3 * reach(0));
}

TEST_CASE("self-test: numbers are rounded to storage types as the oracle rounds them") {
    for (int exponent = -30; exponent <= 15; exponent++)
        for (const double fraction : {1.0, 1.00048828125, 1.0009765625, 1.00146484375, 1.00390625, 1.01171875,
                                      1.7, 1.9990, 1.99951171875, 1.99999})
            for (const double sign : {1.0, -1.0}) {
                const double x = sign * std::ldexp(fraction, exponent);
                if (std::fabs(x) > 65504) continue;
                CAPTURE(x);
                const auto rounded = [&](oracle::StorageType type) {
                    return static_cast<double>(oracle::round_to_storage(static_cast<float>(x), type));
                };
                const std::vector<double> one = {static_cast<double>(static_cast<float>(x))};
                CHECK_EQ(loaded(stored(one, VKATTN_DTYPE_FLOAT16), VKATTN_DTYPE_FLOAT16)[0],
                         rounded(oracle::StorageType::float16));
                CHECK_EQ(loaded(stored(one, VKATTN_DTYPE_BFLOAT16), VKATTN_DTYPE_BFLOAT16)[0],
                         rounded(oracle::StorageType::bfloat16));
            }
    const std::vector<double> zeros = {0.0};
    for (const VkattnDtype dtype : dtypes) CHECK_EQ(loaded(stored(zeros, dtype), dtype)[0], 0);
    const std::vector<std::byte> poison(8, std::byte{0xff});
    for (const VkattnDtype dtype : dtypes) CHECK(std::isnan(loaded(poison, dtype)[0]));
}

TEST_CASE("self-test: one wrong element of any tensor is a failure, and is named") {
    const SelfTestReference reference = self_test_reference(self_test_inputs());
    for (const VkattnDtype dtype : dtypes) {
        CAPTURE(dtype);
        const auto rounded = [&](const std::vector<double>& x) { return loaded(stored(x, dtype), dtype); };
        const PlannedTest forward{{false, dtype, VKATTN_PRECISION_STORAGE, Shape::rows},
                                  {false, "tiles", dtype, dtype, ""}};
        PlannedTest backward = forward;
        backward.test.backward = backward.verdict.backward = true;
        SelfTestOutputs of_forward, of_backward;
        of_forward.out = rounded(reference.out);
        of_forward.lse = loaded(stored(reference.lse, VKATTN_DTYPE_FLOAT32), VKATTN_DTYPE_FLOAT32);
        of_backward.dquery = rounded(reference.dquery);
        of_backward.dkey = rounded(reference.dkey);
        of_backward.dvalue = rounded(reference.dvalue);
        CHECK_EQ(judge(forward, of_forward, reference), "");
        CHECK_EQ(judge(backward, of_backward, reference), "");

        const auto check_notices = [&](const PlannedTest& test, SelfTestOutputs& got,
                                       std::vector<double>& tensor, const std::string& name) {
            for (const size_t at : {size_t{0}, tensor.size() / 2, tensor.size() - 1})
                for (const double wrong : {tensor[at] + 1, tensor[at] - 1, std::nan("")}) {
                    const double right = std::exchange(tensor[at], wrong);
                    CHECK_EQ(judge(test, got, reference).rfind(name + "[" + std::to_string(at) + "] is ", 0),
                             0);
                    tensor[at] = right;
                }
            const double last = tensor.back();
            tensor.pop_back();
            CHECK_NE(judge(test, got, reference), "");
            tensor.push_back(last);
        };
        check_notices(forward, of_forward, of_forward.out, "out");
        check_notices(forward, of_forward, of_forward.lse, "lse");
        check_notices(backward, of_backward, of_backward.dquery, "dquery");
        check_notices(backward, of_backward, of_backward.dkey, "dkey");
        check_notices(backward, of_backward, of_backward.dvalue, "dvalue");
    }
}

namespace {

double flushed(double x) {
    return std::fabs(x) < 0x1p-14 ? 0 : x;  // the smallest normal float16
}

std::vector<double> all_flushed(std::vector<double> x) {
    std::ranges::transform(x, x.begin(), flushed);
    return x;
}

double rounded_to_float16(double x) {
    return loaded(stored(std::vector<double>{x}, VKATTN_DTYPE_FLOAT16), VKATTN_DTYPE_FLOAT16)[0];
}

// Returns what a kernel finds that makes operands of weights by operand_of. Weights are relative to the largest one of
// their row here.
SelfTestOutputs with_weights(const SelfTestInputs& in, double (*operand_of)(double)) {
    SelfTestOutputs got;
    for (size_t row = 0; row < Shape::lse_elements; row++) {
        const size_t keys = row % Shape::rows + 1 + Shape::keys - Shape::rows;
        std::vector<double> scores(keys), out(Shape::head_dim);
        for (size_t j = 0; j < keys; j++)
            for (size_t d = 0; d < Shape::head_dim; d++)
                scores[j] += in.query[row * Shape::head_dim + d] * in.key[j * Shape::head_dim + d] / 8;
        const double most = *std::ranges::max_element(scores);
        double sum = 0;
        for (size_t j = 0; j < keys; j++) {
            const double weight = std::exp(scores[j] - most), operand = operand_of(weight);
            sum += weight;
            for (size_t d = 0; d < Shape::head_dim; d++)
                out[d] += operand * in.value[j * Shape::head_dim + d];
        }
        for (const double x : out) got.out.push_back(rounded_to_float16(x / sum));
        got.lse.push_back(most + std::log(sum));
    }
    return got;
}

// Returns the last row of each head, which is what a test of one row has.
SelfTestOutputs of_last_rows(const SelfTestOutputs& all) {
    SelfTestOutputs some;
    for (size_t row = Shape::rows - 1; row < Shape::lse_elements; row += Shape::rows) {
        const auto first = all.out.begin() + static_cast<std::ptrdiff_t>(row * Shape::head_dim);
        some.out.insert(some.out.end(), first, first + Shape::head_dim);
        some.lse.push_back(all.lse[row]);
    }
    return some;
}

}  // namespace

TEST_CASE("self-test: a device that takes subnormal operands of dot products for 0 fails") {
    const SelfTestInputs in = self_test_inputs(SelfTestNumbers::subnormal);
    for (const auto& x : {in.query, in.key, in.value})
        CHECK(loaded(stored(x, VKATTN_DTYPE_FLOAT16), VKATTN_DTYPE_FLOAT16) == x);
    const SelfTestReference reference = self_test_reference(in);
    const auto verdicts = [&](const SelfTestOutputs& got) {
        PlannedTest test{
            {false, VKATTN_DTYPE_FLOAT16, VKATTN_PRECISION_STORAGE, Shape::rows, SelfTestNumbers::subnormal},
            {false, "tiles_dot", VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_FLOAT16, ""}};
        const std::string all = judge(test, got, reference);
        test.test.rows = 1;
        return std::pair(all, judge(test, of_last_rows(got), reference));
    };
    const auto passes = [&](const SelfTestOutputs& got) {
        const auto [all, last] = verdicts(got);
        CHECK_EQ(all, "");
        CHECK_EQ(last, "");
    };
    const auto fails = [&](const SelfTestOutputs& got, const char* tensor) {
        const auto [all, last] = verdicts(got);
        CHECK_EQ(all.rfind(tensor, 0), 0);
        CHECK_EQ(last.rfind(tensor, 0), 0);
    };
    passes(with_weights(in, rounded_to_float16));
    fails(with_weights(in, [](double weight) { return flushed(rounded_to_float16(weight)); }), "out[");
    for (std::vector<double> SelfTestInputs::*const tensor : {&SelfTestInputs::query, &SelfTestInputs::key}) {
        SelfTestInputs lost = in;
        lost.*tensor = all_flushed(lost.*tensor);
        SelfTestOutputs got = with_weights(lost, rounded_to_float16);
        got.out = with_weights(in, rounded_to_float16).out;  // that lse tells suffices
        fails(got, "lse[");
    }
    SelfTestInputs lost = in;
    lost.value = all_flushed(lost.value);
    fails(with_weights(lost, rounded_to_float16), "out[");
}

TEST_CASE("self-test: a kernel that failed is not planned, and its successor is tested") {
    DeviceCaps caps = device("nvidia_h200");
    const Problem f16 = problem_of(VKATTN_DTYPE_FLOAT16), f32 = problem_of(VKATTN_DTYPE_FLOAT32);
    REQUIRE_EQ(make_plan(caps, f16, Options{})->kernel, "matrix");
    const auto at_first = kernels_of(pending_tests(caps));
    CHECK(at_first == std::vector<std::string>{"tiles", "rows", "matrix", "matrix_rows", "matrix",
                                               "matrix_rows", "matrix", "matrix_rows", "matrix",
                                               "matrix_rows", "tiles", "matrix", "matrix", "matrix",
                                               "matrix"});
    fail_all(caps, "matrix");
    const auto plan = make_plan(caps, f16, Options{});
    REQUIRE(plan);
    CHECK_EQ(plan->kernel, "tiles");
    const auto refusal = std::ranges::find(plan->refused, "matrix", &Refusal::kernel);
    REQUIRE(refusal != plan->refused.end());
    CHECK_EQ(refusal->reason, "it failed the self-test on this device: out[0] is 2 instead of 1");
    // Types with which it has not failed are not concerned, and neither are products that nobody may do without it.
    CHECK_EQ(make_plan(caps, f32, Options{})->kernel, "tiles");
    Options named;
    named.kernel = "matrix";
    const auto forced = make_plan(caps, f16, named);
    REQUIRE(!forced);
    CHECK_EQ(forced.failure().status, VKATTN_UNSUPPORTED);
    CHECK_NE(forced.failure().message.find("failed the self-test"), std::string::npos);

    CHECK(kernels_of(pending_tests(caps)) ==
          std::vector<std::string>{"tiles", "rows", "tiles", "matrix_rows", "tiles", "matrix_rows",
                                   "matrix_rows", "matrix_rows", "tiles", "tiles", "tiles"});
    fail_all(caps, "tiles");
    const auto none = make_plan(caps, f16, Options{});
    REQUIRE(!none);
    CHECK_EQ(none.failure().status, VKATTN_UNSUPPORTED);
}

TEST_CASE("self-test: every device is through with it once all kernels have a verdict") {
    for (const auto& profile : vkattn::test::load_profiles(VKATTN_TESTS_DIR "/profiles")) {
        CAPTURE(profile.name);
        DeviceCaps caps = device(profile.name);
        if (!refuse_device(caps).empty()) continue;
        const auto tests = pending_tests(caps);
        CHECK_GE(tests.size(), 6);
        for (const PlannedTest& planned : tests) {
            caps.verdicts.push_back(planned.verdict);
            CHECK_LE(planned.scratch_bytes, self_test_scratch_bytes);
        }
        CHECK(pending_tests(caps).empty());
    }
}

TEST_CASE("self-test: verdicts are kept as text, which another device or version does not believe") {
    DeviceCaps caps;
    caps.identity = "device 1:2 with driver 3";
    caps.api_version = version_1_2;
    caps.verdicts = {
        {false, "tiles", VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT32, ""},
        {true, "matrix", VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_BFLOAT16, "dkey[7] is nan instead of 0.25"},
        {false, "rows", VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT32, "", true}};
    const std::string text = verdicts_text(caps, version);
    const std::string features = "Vulkan 1.2 storage 0 int64 0 dots 0 0 subgroups 0 0 matrices 0 0\n";
    const std::string body = features +
                             "forward tiles float32 float32 passed\n"
                             "backward matrix float32 bfloat16 failed dkey[7] is nan instead of 0.25\n"
                             "mixed-forward rows float32 float32 passed\n";
    CHECK(text.starts_with("vkattn 1.2.3 self-test of device 1:2 with driver 3, checksum "));
    CHECK(text.ends_with("\n" + body));
    const auto verdicts_in = [&](const std::string& of) { return verdicts_of(caps, of, version); };
    DeviceCaps told = caps;
    told.verdicts = verdicts_in(text);
    CHECK(told.verdicts == caps.verdicts);
    CHECK_EQ(verdicts_text(told, version), text);
    CHECK(verdicts_of(caps, text, "1.2.4").empty());
    for (const auto change :
         {+[](DeviceCaps& c) { c.identity = "device 1:2 with driver 4"; },
          +[](DeviceCaps& c) { c.api_version += 1 << 12; }, +[](DeviceCaps& c) { c.storage_16bit = true; },
          +[](DeviceCaps& c) { c.int64 = true; }, +[](DeviceCaps& c) { c.matrices.resize(1); }}) {
        DeviceCaps other = told;
        change(other);
        CHECK(verdicts_of(other, text, version).empty());
    }
    CHECK(kept_body("probe", caps, version, text).empty());
    // A body that nobody writes is not believed under a right first line, either.
    const auto of_body = [&](const std::string& other) {
        return verdicts_in(kept_text("self-test", caps, version, other));
    };
    CHECK_EQ(of_body(body).size(), 3);
    for (const char* damaged :
         {"", "x", "forward tiles float32 float32\n", "sideways tiles float32 float32 passed\n",
          "forward tiles float31 float32 passed\n", "forward tiles float32 float32 failed \n",
          "forward tiles float32 float32 passed away\n", "forward  float32 float32 passed\n", "\n\n"}) {
        CAPTURE(damaged);
        CHECK(of_body(features + damaged).empty());
    }
    for (const std::string& failure : {std::string("a\rb"), std::string(1, '\x01'), std::string(161, 'x')})
        CHECK(of_body(features + "forward tiles float32 float32 failed " + failure + "\n").empty());
    for (size_t at = 0; at < text.size(); at++) {
        CHECK(verdicts_in(text.substr(0, at)).empty());
        std::string damaged = text;
        damaged[at] ^= 1;
        CHECK(verdicts_in(damaged).empty());
    }
}

TEST_CASE("self-test: modules for operands in types of their own have tests and verdicts of their own") {
    using Key = std::tuple<std::string, bool, VkattnDtype>;  // kernel, backward, operands
    const auto mixed_tests = [](const DeviceCaps& caps) {
        std::set<Key> found;
        for (const PlannedTest& t : pending_tests(caps))
            if (t.verdict.mixed) found.emplace(t.verdict.kernel, t.verdict.backward, t.verdict.operands);
        return found;
    };
    const auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;
    const std::set<Key> portable = {{"tiles", false, f32}, {"rows", false, f32}, {"tiles", true, f32}};
    CHECK(mixed_tests(vkattn::test::profile("lavapipe")) == portable);
    std::set<Key> all = portable;
    all.insert({{"matrix", false, f16},
                {"matrix", false, bf16},
                {"matrix_rows", false, f16},
                {"matrix_rows", false, bf16}});
    DeviceCaps caps = device("nvidia_h200");
    CHECK(mixed_tests(caps) == all);
    // A wrong module for several types is not planned, and that says nothing of the module for one type.
    for (PlannedTest& t : pending_tests(caps)) {
        if (t.verdict.kernel == "matrix" && t.verdict.mixed) t.verdict.failure = "out[0] is 2 instead of 1";
        caps.verdicts.push_back(t.verdict);
    }
    const auto kernel_with = [&](VkattnDtype keys) {
        const SelfTest test{false, f16, VKATTN_PRECISION_STORAGE, Shape::rows, SelfTestNumbers::normal,
                            "",    keys};
        return make_plan(caps, test.problem(), Options{})->kernel;
    };
    CHECK_EQ(kernel_with(VKATTN_DTYPE_SAME), "matrix");
    CHECK_EQ(kernel_with(VKATTN_DTYPE_Q4_0), "tiles");
    // A plan that decodes keys first multiplies them with the module for one type, whose verdict counts.
    const SelfTest many{
        false, f16, VKATTN_PRECISION_STORAGE, 400, SelfTestNumbers::normal, "", VKATTN_DTYPE_Q8_0};
    CHECK_EQ(make_plan(caps, many.problem(), Options{})->kernel, "matrix");
    for (KernelVerdict& v : caps.verdicts)
        if (v.kernel == "matrix") v.failure = v.mixed ? "" : "out[0] is 2 instead of 1";
    CHECK_EQ(kernel_with(VKATTN_DTYPE_Q4_0), "matrix");
    CHECK_EQ(make_plan(caps, many.problem(), Options{})->kernel, "tiles");
}

// A forward's tests are of normal numbers and of subnormal ones, which no other kernel has a test of.
TEST_CASE("self-test: 16-bit dot products, and subnormal operands of float16") {
    using Key = std::tuple<std::string, bool, bool>;  // kernel, backward, subnormal
    const std::multiset<Key> of_dots = {{"rows_dot", false, false},
                                        {"rows_dot", false, true},
                                        {"tiles_dot", false, false},
                                        {"tiles_dot", false, true},
                                        {"tiles_dot", true, false}};
    for (const char* name : {"amd_navi21", "amd_navi31", "amd_gfx1201", "nvidia_h200", "lavapipe"}) {
        CAPTURE(name);
        const DeviceCaps& without_units = vkattn::test::profile(name);
        const DeviceCaps caps = without_units.dot_float16 ? without_units : device(name);
        std::multiset<Key> found;
        for (const auto& [test, verdict, scratch_bytes] : pending_tests(caps)) {
            const bool subnormal = test.numbers == SelfTestNumbers::subnormal;
            if (subnormal || (verdict.kernel.ends_with("_dot") && verdict.operands == VKATTN_DTYPE_FLOAT16))
                found.emplace(verdict.kernel, test.backward, subnormal);
        }
        CHECK(found == (caps.dot_float16 ? of_dots : std::multiset<Key>{}));
    }
}
