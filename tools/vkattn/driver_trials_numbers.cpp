// Trials of a driver's subgroups, arithmetic and addresses.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "driver_checks.hpp"
#include "gpu/far_places.hpp"
#include "gpu/storage.hpp"

namespace vkattn::tools::conformance {
namespace {

constexpr size_t lanes_tried = DRIVER_THREADS;

// A trial with a word of numbers and so many words of results for each of the invocations of some workgroups.
Trial number_trial(const core::Frame& frame, const char* module, uint32_t groups, size_t words_of_each) {
    Trial t;
    t.frame = &frame;
    t.module = module;
    t.groups = groups;
    t.result_words = groups * lanes_tried * words_of_each;
    t.numbers = [groups](Random32& random) { return random_words(random, groups * lanes_tried); };
    return t;
}

// ---- subgroups

// Tells who is where, by what invocations have written of themselves.
class Lanes {
  public:
    explicit Lanes(std::span<const uint32_t> got) : got_(got) {
        for (uint32_t i = 0; i < lanes_tried; i++) places_.emplace(std::pair{word(i, 0), word(i, 1)}, i);
    }
    uint32_t word(size_t invocation, size_t i) const { return got_[invocation * DRIVER_SHUFFLE_WORDS + i]; }
    // The invocation that is this one's lane ^ mask; none if the subgroup has no such lane.
    std::optional<uint32_t> other(uint32_t invocation, uint32_t mask) const {
        const auto at = places_.find({word(invocation, 0), word(invocation, 1) ^ mask});
        return at != places_.end() ? std::optional(at->second) : std::nullopt;
    }
    // The invocations of this one's subgroup, by lane.
    std::vector<uint32_t> members(uint32_t invocation) const {
        std::vector<uint32_t> all;
        for (auto at = places_.lower_bound({word(invocation, 0), 0});
             at != places_.end() && at->first.first == word(invocation, 0); ++at)
            all.push_back(at->second);
        return all;
    }
    // False if subgroups have gaps, so that their places in the kernel's shared memory may collide.
    bool are_dense() const {
        return std::ranges::all_of(places_, [&](const auto& at) {
            return at.first.first * word(at.second, 2) + at.first.second < lanes_tried;
        });
    }
    bool are_all_different() const { return places_.size() == lanes_tried; }

  private:
    std::span<const uint32_t> got_;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> places_;
};

uint32_t number_of(const Words& numbers, size_t invocation, size_t i) {
    return numbers[invocation * DRIVER_SHUFFLE_STEP + i];
}

// Returns what ballot, any and broadcast must have given an invocation: words 3 to 5.
Words votes_of(const Words& numbers, const Lanes& lanes, uint32_t invocation) {
    uint32_t ballot = 0, any = 0;
    const std::vector<uint32_t> members = lanes.members(invocation);
    for (const uint32_t i : members) {
        const uint32_t first = number_of(numbers, i, 4);
        const uint32_t second = number_of(numbers, i, 5);
        if (lanes.word(i, 1) < 32) ballot |= (first & 1) << lanes.word(i, 1);
        any |= (second & 31) == 0 ? 1 : 0;
    }
    return {ballot, any, number_of(numbers, members.front(), 4)};
}

std::optional<Wrong> judge_lane(const Words& numbers, const Lanes& lanes, uint32_t i) {
    const auto wrong = [&](size_t word, const std::string& name, uint32_t expected) -> std::optional<Wrong> {
        if (lanes.word(i, word) == expected) return {};
        return Wrong{size_t{i} * DRIVER_SHUFFLE_WORDS + word, name + " " + text_of_word(lanes.word(i, word)),
                     text_of_word(expected)};
    };
    constexpr const char* names[] = {"a ballot of", "subgroupAny", "a broadcast of"};
    const Words votes = votes_of(numbers, lanes, i);
    for (size_t v = 0; v < votes.size(); v++)
        if (auto found = wrong(3 + v, names[v], votes[v])) return found;
    const uint32_t size = lanes.word(i, 2);
    const auto beside = lanes.other(i, 1);
    if (beside && size > 1 && lanes.are_dense())
        if (auto found = wrong(6, "behind subgroupBarrier", number_of(numbers, *beside, 4))) return found;
    for (uint32_t b = 0; b < DRIVER_SHUFFLE_STEPS && (1u << b) < size; b++) {
        const auto other = lanes.other(i, 1u << b);
        if (!other) continue;
        for (size_t c = 0; c < DRIVER_SHUFFLE_STEP; c++)
            if (auto found = wrong(DRIVER_SHUFFLE_HEAD + b * DRIVER_SHUFFLE_STEP + c,
                                   fmt::format("component {} of a shuffle by {}", c, 1u << b),
                                   number_of(numbers, *other, c)))
                return found;
    }
    return {};
}

std::optional<Wrong> judge_shuffles(const Words& numbers, std::span<const uint32_t> got) {
    const Lanes lanes(got);
    for (uint32_t i = 0; i < lanes_tried; i++) {
        const uint32_t lane = lanes.word(i, 1), size = lanes.word(i, 2);
        if (lane >= size || !std::has_single_bit(size) || size != lanes.word(0, 2))
            return Wrong{i * size_t{DRIVER_SHUFFLE_WORDS} + 2,
                         fmt::format("lane {} of a subgroup of {}", text_of_word(lane), text_of_word(size)),
                         "a lane within a power of two that all subgroups share"};
    }
    if (!lanes.are_all_different())
        return Wrong{1, "a lane that two invocations share", "one for each invocation"};
    for (uint32_t i = 0; i < lanes_tried; i++)
        if (auto found = judge_lane(numbers, lanes, i)) return found;
    return {};
}

// ---- numbers

// True if it is right, or 0 where a subnormal number may be taken for 0.
bool is_or_vanishes(uint32_t got, double exact) {
    const auto x = static_cast<double>(std::bit_cast<float>(got));
    return x == exact || x == 0;
}

float float_of_half(uint32_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    return test::load(reinterpret_cast<const std::byte*>(&half), VKATTN_DTYPE_FLOAT16);
}

// Returns what float16_bits() of shaders/lib/storage.glsl finds in the sum, which is rounded to nearest, ties to even.
uint32_t bits_of_small(uint32_t word) {
    const float small = std::bit_cast<float>((100 + word % 13) << 23 | word >> 9);
    return static_cast<uint32_t>(std::nearbyint(std::ldexp(static_cast<double>(small), 24)));
}

std::optional<Wrong> judge_denormals(const Words& numbers, std::span<const uint32_t> got) {
    for (size_t i = 0; i < numbers.size(); i++) {
        const uint32_t word = numbers[i];
        const auto own = got.subspan(i * DRIVER_DENORMAL_WORDS, DRIVER_DENORMAL_WORDS);
        const auto wrong = [&](size_t at, const std::string& expected) {
            return Wrong{i * DRIVER_DENORMAL_WORDS + at, text_of_float(own[at]), expected};
        };
        for (const size_t h : {0u, 1u})
            if (const float exact = float_of_half(word >> 16 * h); std::bit_cast<float>(own[h]) != exact)
                return wrong(h, fmt::format("{}, of the float16 {:#06x}", exact, word >> 16 * h & 0xffff));
        if (own[2] != bits_of_small(word))
            return wrong(2, fmt::format("{:#x}, the bits of a float16", bits_of_small(word)));
        const double sign = word >> 31 != 0 ? -1 : 1;
        const double raised = sign * std::ldexp(static_cast<double>(word & 0x7fffff), 100 - 149);
        if (!is_or_vanishes(own[3], raised)) return wrong(3, fmt::format("{} or 0", raised));
        const double lowered = std::ldexp(static_cast<double>(word & 255), -135);
        if (!is_or_vanishes(own[4], lowered)) return wrong(4, fmt::format("{} or 0", lowered));
    }
    return {};
}

// Half of the float16 are subnormal, and none is infinite or NaN.
Words draw_denormals(Random32& random, size_t count) {
    Words words = random_words(random, count);
    for (uint32_t& word : words) {
        if (random() % 2 == 0) word &= 0x83ff83ff;
        for (const uint32_t exponent : {0x7c00u, 0x7c000000u})
            if ((word & exponent) == exponent) word &= ~exponent;
    }
    return words;
}

// The distance between float32 numbers of this size.
double float32_ulp(double x) {
    return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23);
}

// Vulkan allows exp2 an error of 3 + 2 |x| ulp, and log2 one of 2^-21 from 1/2 to 2 and of 3 ulp elsewhere (the table
// "Precision of GLSL.std.450 Instructions"). log2 has 4 here, because NVIDIA's manual of PTX promises no more than
// 2^-22 of the result, and nothing in vkattn depends on the last one. Subnormal results may be 0.
std::optional<Wrong> judge_exponents(const Words& numbers, std::span<const uint32_t> got) {
    constexpr double smallest_normal = 0x1p-126;
    for (size_t i = 0; i < numbers.size(); i++) {
        const auto x = static_cast<double>(std::bit_cast<float>(numbers[i]));
        const double power = std::exp2(x), logarithm = std::log2(std::fabs(x));
        const double power_error =
            power < smallest_normal ? smallest_normal : (3 + 2 * std::fabs(x)) * float32_ulp(power);
        const bool is_near_1 = std::fabs(x) >= 0.5 && std::fabs(x) <= 2;
        const double log_error = is_near_1 ? 0x1p-21 : 4 * float32_ulp(logarithm);
        const std::pair<double, double> wanted[] = {{power, power_error}, {logarithm, log_error}};
        for (const size_t f : {0u, 1u}) {
            const uint32_t word = got[i * DRIVER_EXPONENT_WORDS + f];
            const auto& [exact, allowed] = wanted[f];
            // Negated, so that NaN is wrong.
            if (!(std::fabs(static_cast<double>(std::bit_cast<float>(word)) - exact) <= allowed))
                return Wrong{
                    i * DRIVER_EXPONENT_WORDS + f, text_of_float(word),
                    fmt::format("{} +- {:.2g}, {} of {}", exact, allowed, f == 0 ? "exp2" : "log2", x)};
        }
    }
    return {};
}

// Arguments as the kernels have them: most within -125 .. 125, some near 0, some far below.
Words draw_arguments(Random32& random, size_t count) {
    Words words(count);
    for (size_t i = 0; i < count; i++) {
        const double part = static_cast<double>(random()) / 0x1p32 - 0.5;  // -1/2 .. 1/2
        double x = part * 250;
        if (i % 8 == 1) x = std::ldexp(part, -static_cast<int>(random() % 60));
        if (i % 16 == 2) x = -std::ldexp(1 + std::fabs(part), 7 + static_cast<int>(random() % 100));
        if (x == 0) x = 1;
        words[i] = std::bit_cast<uint32_t>(static_cast<float>(x));
    }
    return words;
}

// ---- dot products

int dot_number(uint32_t bits) {
    return static_cast<int>(float_of_half(bits));
}

std::vector<float> dot_sums(const Words& numbers) {
    std::vector<float> sums;
    for (size_t i = 0; i < numbers.size(); i += 8) {
        int sum = 0;
        for (size_t j = i; j < i + 8; j += 2)
            for (const uint32_t shift : {0u, 16u})
                sum += dot_number(numbers[j] >> shift) * dot_number(numbers[j + 1] >> shift);
        sums.push_back(static_cast<float>(sum));
    }
    return sums;
}

Words draw_pairs(Random32& random, size_t count) {
    Words words(count);
    for (uint32_t& word : words) {
        uint16_t halves[2] = {};
        for (uint16_t& half : halves)
            test::store(reinterpret_cast<std::byte*>(&half), static_cast<int>(random() % 17) - 8,
                        VKATTN_DTYPE_FLOAT16);
        word = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
    }
    return words;
}

// ---- addresses

std::optional<Wrong> judge_far(uint64_t base, uint64_t distance, const Words& there, const Words& numbers,
                               std::span<const uint32_t> got) {
    for (size_t group = 0; group < 2; group++) {
        const uint64_t place = base + group * distance;
        Words expected(3 * lanes_tried);
        for (uint32_t i = 0; i < lanes_tried; i++) {
            expected[i] = static_cast<uint32_t>(i % 2 == 0 ? place : place >> 32);
            expected[lanes_tried + i] = there[group * lanes_tried + i];
            expected[2 * lanes_tried + i] = numbers[group * lanes_tried + i];
        }
        auto found = difference(got.subspan(group * expected.size()), expected);
        if (!found) continue;
        found->element += group * expected.size();
        return found;
    }
    return {};
}

// Returns the trial of a kernel whose invocations read a word each.
template <class Judge>
Trials trials_of_numbers(const core::Frame& frame, const char* module, uint32_t words_of_lane,
                         Words (*draw)(Random32& random, size_t count), Judge judge) {
    constexpr uint32_t groups = 2;
    Trial t = number_trial(frame, module, groups, words_of_lane);
    t.numbers = [draw](Random32& random) { return draw(random, size_t{groups} * lanes_tried); };
    t.judge = judge;
    return {"", {std::move(t)}, {}};
}

}  // namespace

Trials try_shuffles(test::Device&, const DriverFacts& facts) {
    constexpr VkSubgroupFeatureFlags needed = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |
                                              VK_SUBGROUP_FEATURE_BALLOT_BIT |
                                              VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if ((facts.subgroups.supportedOperations & needed) != needed ||
        (facts.subgroups.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) == 0)
        return {"the device's subgroups do not vote, ballot and shuffle", {}, {}};
    Trial t = number_trial(code_driver_shuffles_f32, "driver_shuffles_f32", 1, DRIVER_SHUFFLE_WORDS);
    t.numbers = [](Random32& random) {
        Words words = random_words(random, lanes_tried * DRIVER_SHUFFLE_STEP);
        for (uint32_t& word : words) word = (word & 0xbfffffff) | 0x20000000;  // normal float32 numbers
        return words;
    };
    t.judge = judge_shuffles;
    return {"", {std::move(t)}, {}};
}

Trials try_denormals(test::Device&, const DriverFacts&) {
    return trials_of_numbers(code_driver_denormals_f32, "driver_denormals_f32", DRIVER_DENORMAL_WORDS,
                             draw_denormals, judge_denormals);
}

Trials try_exponents(test::Device&, const DriverFacts&) {
    return trials_of_numbers(code_driver_exponents_f32, "driver_exponents_f32", DRIVER_EXPONENT_WORDS,
                             draw_arguments, judge_exponents);
}

Trials try_dot_products(test::Device&, const DriverFacts& facts) {
    if (!facts.caps.dot_float16)
        return {"the device has no 16-bit dot products (VK_VALVE_shader_mixed_float_dot_product)", {}, {}};
    constexpr uint32_t groups = 2;
    Trial t = number_trial(code_driver_dot_f16_dot, "driver_dot_f16_dot", groups, 1);
    t.numbers = [](Random32& random) { return draw_pairs(random, size_t{8} * groups * lanes_tried); };
    t.judge = [](const Words& numbers, std::span<const uint32_t> got) {
        return difference_of_floats(got, dot_sums(numbers));
    };
    return {"", {std::move(t)}, {}};
}

Trials try_far_addresses(test::Device& device, const DriverFacts&) {
    const auto places = std::make_shared<test::FarPlaces>(device);
    if (!places->obstacle().empty()) return {places->obstacle(), {}, {}};
    Random32 random(1);
    const Words there = random_words(random, 2 * lanes_tried);
    for (const size_t p : {0u, 1u})
        device.runtime().upload(places->at(p),
                                std::as_bytes(std::span(there).subspan(p * lanes_tried, lanes_tried)));
    constexpr uint32_t steps = 64;  // the product of two numbers of the device exceeds 32 bits
    const uint64_t base = places->at(0).address(), distance = places->distance();
    if (distance % steps != 0)
        return {fmt::format("the distance of two places in memory is no multiple of {}", steps), {}, {}};
    Trial t = number_trial(code_driver_far_f32, "driver_far_f32", 2, 3);
    t.title = fmt::format("{} bytes apart", distance);
    t.push.base = base;
    t.push.stride = distance / steps;
    t.push.count = steps;
    t.judge = [=](const Words& numbers, std::span<const uint32_t> got) {
        return judge_far(base, distance, there, numbers, got);
    };
    return {"", {std::move(t)}, places};
}

}  // namespace vkattn::tools::conformance
