#include "self_test.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "kept_text.hpp"

namespace vkattn::core {
namespace {

using Shape = SelfTestShape;

constexpr size_t longest_failure = 160;                // of a verdict, in bytes
constexpr std::string_view of_mixed_types = "mixed-";  // before the pass, in the text of a verdict

constexpr struct {
    VkattnDtype dtype;
    VkattnPrecision precision;
} types[] = {
    {VKATTN_DTYPE_FLOAT32, VKATTN_PRECISION_STORAGE},  {VKATTN_DTYPE_FLOAT16, VKATTN_PRECISION_STORAGE},
    {VKATTN_DTYPE_BFLOAT16, VKATTN_PRECISION_STORAGE}, {VKATTN_DTYPE_FLOAT32, VKATTN_PRECISION_FLOAT16},
    {VKATTN_DTYPE_FLOAT32, VKATTN_PRECISION_BFLOAT16},
};

// Returns by how much one operation of a type may be off, relatively: half a step for types of 16 bits, and for float32
// some steps, which is the error of exp2 on GPUs.
double rounding_of(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT32 ? 0x1p-20 : dtype == VKATTN_DTYPE_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

// A 16-bit format with this many bits of exponent; numbers of the test are far from its largest.
struct Format {
    int exponent_bits;
    int fraction_bits() const { return 15 - exponent_bits; }
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
Format format_of(VkattnDtype dtype) {
    return {dtype == VKATTN_DTYPE_FLOAT16 ? 5 : 8};
}

// To nearest, ties to even, as nearbyint rounds. Numbers below the normal ones have the exponent of the smallest.
uint16_t encode(double x, Format format) {
    if (x == 0) return 0;
    int exponent = 0;
    std::frexp(x, &exponent);
    const int scale = std::max(exponent - 1, 1 - format.bias());
    const double fraction = std::nearbyint(std::ldexp(std::fabs(x), format.fraction_bits() - scale));
    // A fraction that was rounded up to the next power of two carries into the exponent, and one below 2^bits is not
    // normal, whose exponent is 0.
    const auto bits = static_cast<int64_t>(fraction) +
                      (static_cast<int64_t>(scale + format.bias() - 1) << format.fraction_bits());
    return static_cast<uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0));
}

double decode(uint16_t bits, Format format) {
    const int fraction = bits & ((1 << format.fraction_bits()) - 1);
    const int exponent = (bits >> format.fraction_bits()) & ((1 << format.exponent_bits) - 1);
    double x = 0;
    if (exponent == (1 << format.exponent_bits) - 1)
        x = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        x = std::ldexp(fraction, 1 - format.bias() - format.fraction_bits());
    else
        x = std::ldexp(fraction + (1 << format.fraction_bits()),
                       exponent - format.bias() - format.fraction_bits());
    return (bits & 0x8000) != 0 ? -x : x;
}

// A test compares with it.
struct Comparison {
    const char* name;
    const std::vector<double>& got;
    std::span<const double> expected;
    double allowed;  // as a part of the largest expected number

    // The first element that is off, NaN included. "" = none.
    std::string failure() const {
        double largest = 0;
        for (const double x : expected) largest = std::max(largest, std::fabs(x));
        if (got.size() != expected.size()) return fmt::format("{} has {} elements", name, got.size());
        for (size_t i = 0; i < got.size(); i++)
            if (!(std::fabs(got[i] - expected[i]) <= allowed * largest))
                return fmt::format("{}[{}] is {:.6g} instead of {:.6g}", name, i, got[i], expected[i]);
        return "";
    }
};

// The last row of each head.
std::vector<double> last_rows(const std::vector<double>& all, size_t width) {
    std::vector<double> some;
    for (uint32_t head = 1; head <= Shape::heads_q; head++) {
        const auto end = all.begin() + static_cast<std::ptrdiff_t>(width) * head * Shape::rows;
        some.insert(some.end(), end - static_cast<std::ptrdiff_t>(width), end);
    }
    return some;
}

std::string first_failure(std::initializer_list<Comparison> all) {
    for (const Comparison& one : all)
        if (std::string failure = one.failure(); !failure.empty()) return failure;
    return "";
}

Result<Plan> plan_of(const DeviceCaps& caps, const SelfTest& test) {
    Options options;
    options.precision = test.precision;
    options.kernel = test.kernel;
    const Problem problem = test.problem();
    if (!test.backward) return make_plan(caps, problem, options);
    const auto backward = resolve(problem, default_backward());
    if (!backward) return backward.failure();
    return make_plan(caps, problem, *backward, options);
}

// Takes the part before the separator off the text, and the separator with it.
std::string_view take(std::string_view& text, char separator) {
    const size_t at = std::min(text.find(separator), text.size());
    const std::string_view taken = text.substr(0, at);
    text.remove_prefix(std::min(at + 1, text.size()));
    return taken;
}

std::optional<VkattnDtype> dtype_of(std::string_view name) {
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        if (name == name_of(dtype)) return dtype;
    return std::nullopt;
}

}  // namespace

Problem SelfTest::problem() const {
    VkattnProblem p = default_problem();
    p.dtype = dtype;
    p.batch = 1;
    p.num_heads_q = Shape::heads_q;
    p.num_heads_kv = Shape::heads_kv;
    p.seqlen_q = rows;
    p.seqlen_kv = Shape::keys;
    p.head_dim_qk = p.head_dim_v = Shape::head_dim;
    p.causal = 1;
    p.alignment_bytes = 16;
    p.key_dtype = p.value_dtype = keys;
    p.query_strides.head = uint64_t{Shape::rows} * Shape::head_dim;
    return *resolve(p);  // nothing of it is wrong on any device
}

std::vector<PlannedTest> pending_tests(const DeviceCaps& caps) {
    std::vector<PlannedTest> pending;
    const auto add = [&](const SelfTest& test) {
        const Result<Plan> plan = plan_of(caps, test);
        // There is nothing to test where the device has no kernel: whoever asks for a plan is told why.
        if (!plan || verdict_on(caps, test.backward, plan->kernel, test.dtype, plan->operands,
                                test.mixed()) != nullptr)
            return;
        KernelVerdict verdict{test.backward, plan->kernel, test.dtype, plan->operands, "", test.mixed()};
        // The kernel `rows` does not round, so that several precisions come to the same test.
        const bool is_there = std::ranges::any_of(pending, [&](const PlannedTest& other) {
            return other.test.rows == test.rows && other.test.keys == test.keys &&
                   is_of(other.verdict, verdict);
        });
        if (is_there) return;
        pending.push_back({test, verdict, plan->scratch_bytes});
        if (test.backward || plan->operands != VKATTN_DTYPE_FLOAT16 || !verdict.kernel.ends_with("_dot"))
            return;
        SelfTest subnormal = test;
        subnormal.numbers = SelfTestNumbers::subnormal;
        pending.push_back({subnormal, std::move(verdict), plan->scratch_bytes});
    };
    for (const auto& [dtype, precision] : types)
        for (const uint32_t rows : {Shape::rows, 1u}) add({false, dtype, precision, rows});
    for (const auto& [dtype, precision] : types) add({true, dtype, precision, Shape::rows});
    for (const bool backward : {false, true})
        for (const auto& [dtype, precision] : types)
            add({backward, dtype, precision, Shape::rows, SelfTestNumbers::normal, "tiles_dot"});
    constexpr auto storage = VKATTN_PRECISION_STORAGE;
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        for (const uint32_t rows : {Shape::rows, 1u})
            add({false, dtype, storage, rows, SelfTestNumbers::normal, "", VKATTN_DTYPE_Q8_0});
    constexpr VkattnDtype f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16;
    // Matrix units fetch keys of 16 bits otherwise than blocks.
    for (const uint32_t rows : {Shape::rows, 1u})
        add({false, f32, VKATTN_PRECISION_FLOAT16, rows, SelfTestNumbers::normal, "", f16});
    add({true, f32, storage, Shape::rows, SelfTestNumbers::normal, "", f16});
    return pending;
}

// Sixteen roundings, as a part of the tensor's largest element: 1.5e-5 of float32, 0.8 % of float16, 6 % of bfloat16.
// float32's dvalue is off by more than 1e-6 on an H100. A kernel that is wrong is off by far more.
std::string judge(const PlannedTest& planned, const SelfTestOutputs& got,
                  const SelfTestReference& reference) {
    const double allowed =
        16 * std::max(rounding_of(planned.verdict.operands), rounding_of(planned.verdict.dtype));
    if (planned.test.backward) {
        const double of_keys = std::max(allowed, 16 * rounding_of(planned.test.key_dtype()));
        return first_failure({{"dquery", got.dquery, reference.dquery, allowed},
                              {"dkey", got.dkey, reference.dkey, of_keys},
                              {"dvalue", got.dvalue, reference.dvalue, of_keys}});
    }
    const double of_scores = 16 * rounding_of(VKATTN_DTYPE_FLOAT32);
    if (planned.test.rows != 1)
        return first_failure(
            {{"out", got.out, reference.out, allowed}, {"lse", got.lse, reference.lse, of_scores}});
    const std::vector<double> out = last_rows(reference.out, Shape::head_dim),
                              lse = last_rows(reference.lse, 1);
    return first_failure({{"out", got.out, out, allowed}, {"lse", got.lse, lse, of_scores}});
}

// Blocks whose factor is 1/16, of which the elements are multiples.
static std::vector<std::byte> stored_in_blocks(std::span<const double> values) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < values.size(); i++) {
        if (i % 32 == 0) bytes.insert(bytes.end(), {std::byte{0x00}, std::byte{0x2c}});
        bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(16 * values[i])));
    }
    return bytes;
}

std::vector<std::byte> stored(std::span<const double> values, VkattnDtype dtype) {
    if (dtype == VKATTN_DTYPE_Q8_0) return stored_in_blocks(values);
    std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
    for (size_t i = 0; i < values.size(); i++)
        if (dtype == VKATTN_DTYPE_FLOAT32) {
            const auto x = static_cast<float>(values[i]);
            std::memcpy(&bytes[i * sizeof x], &x, sizeof x);
        } else {
            const uint16_t x = encode(values[i], format_of(dtype));
            std::memcpy(&bytes[i * sizeof x], &x, sizeof x);
        }
    return bytes;
}

std::vector<double> loaded(std::span<const std::byte> bytes, VkattnDtype dtype) {
    std::vector<double> values(bytes.size() / bytes_of(dtype));
    for (size_t i = 0; i < values.size(); i++)
        if (dtype == VKATTN_DTYPE_FLOAT32) {
            float x = 0;
            std::memcpy(&x, &bytes[i * sizeof x], sizeof x);
            values[i] = static_cast<double>(x);
        } else {
            uint16_t x = 0;
            std::memcpy(&x, &bytes[i * sizeof x], sizeof x);
            values[i] = decode(x, format_of(dtype));
        }
    return values;
}

bool is_of(const KernelVerdict& verdict, const KernelVerdict& other) {
    return verdict.backward == other.backward && verdict.kernel == other.kernel &&
           (verdict.mixed || verdict.dtype == other.dtype) && verdict.operands == other.operands &&
           verdict.mixed == other.mixed;
}

// These decide, beside device and driver, which modules a test runs. A verdict on other modules says nothing.
std::string features_of(const DeviceCaps& caps) {
    return fmt::format(
        "Vulkan {}.{} storage {:d} int64 {:d} dots {:d} {:d} subgroups {:d} {:d} matrices {} {:d}\n",
        caps.api_version >> 22 & 0x7f, caps.api_version >> 12 & 0x3ff, caps.storage_16bit, caps.int64,
        caps.dot_float16, caps.dot_bfloat16, caps.subgroup_size_control, caps.full_subgroups,
        caps.matrices.size(), caps.matrix_conversions);
}

std::string text_of(const KernelVerdict& v) {
    return fmt::format("{}{} {} {} {} {}", v.mixed ? of_mixed_types : "", v.backward ? "backward" : "forward",
                       v.kernel, name_of(v.dtype), name_of(v.operands),
                       v.failure.empty() ? "passed" : "failed " + v.failure);
}

std::string verdicts_text(const DeviceCaps& caps, std::string_view version) {
    std::string body = features_of(caps);
    for (const KernelVerdict& v : caps.verdicts) body += text_of(v) + "\n";
    return kept_text("self-test", caps, version, body);
}

std::vector<KernelVerdict> verdicts_of(const DeviceCaps& caps, std::string_view text,
                                       std::string_view version) {
    text = kept_body("self-test", caps, version, text);
    const std::string features = features_of(caps);
    if (!text.starts_with(features)) return {};
    text.remove_prefix(features.size());
    std::vector<KernelVerdict> verdicts;
    while (!text.empty()) {
        std::string_view line = take(text, '\n');
        std::string_view pass = take(line, ' ');
        const std::string_view kernel = take(line, ' ');
        const bool mixed = pass.starts_with(of_mixed_types);
        if (mixed) pass.remove_prefix(of_mixed_types.size());
        const auto dtype = dtype_of(take(line, ' ')), operands = dtype_of(take(line, ' '));
        const std::string_view word = take(line, ' ');
        const bool known = (pass == "forward" || pass == "backward") && !kernel.empty() && dtype && operands;
        // They will be part of messages, which are one short line.
        const bool is_plain =
            line.size() <= longest_failure &&
            std::ranges::all_of(line, [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
        if (!known || !is_plain || !(word == "failed" ? !line.empty() : word == "passed" && line.empty()))
            return {};
        verdicts.push_back(
            {pass == "backward", std::string(kernel), *dtype, *operands, std::string(line), mixed});
    }
    return verdicts;
}

}  // namespace vkattn::core
