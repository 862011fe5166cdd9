// Trials of a driver's workgroups, shared memory, matrices and stores.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "driver_checks.hpp"
#include "gpu/storage.hpp"
#include "plan/matrix.hpp"
#include "plan/quirks.hpp"

namespace vkattn::tools::conformance {
namespace {

constexpr uint32_t driver_threads = DRIVER_THREADS;

uint32_t float16_of(int number) {
    uint16_t bits = 0;
    test::store(reinterpret_cast<std::byte*>(&bits), number, VKATTN_DTYPE_FLOAT16);
    return bits;
}

// The lengths of driver_shared.comp's arrays, in words.
size_t shared_words(uint32_t rows, uint32_t columns) {
    return size_t{4} * rows * (columns + 1) + size_t{8} * std::max(rows, columns) +
           size_t{2} * (columns * 2 + rows - 1);
}

Trial shared_trial(uint32_t rows, uint32_t columns) {
    Trial t;
    const size_t words = shared_words(rows, columns);
    t.title = fmt::format("{} bytes in arrays of {} x {}", words * sizeof(uint32_t), rows, columns);
    t.frame = &code_driver_shared_f32;
    t.module = "driver_shared_f32";
    t.specialization.constants = {rows, columns};
    t.result_words = words;
    t.numbers = [words](Random32& random) { return random_words(random, words); };
    t.judge = [](const Words& numbers, std::span<const uint32_t> got) { return difference(got, numbers); };
    return t;
}

// Returns what the places of a workgroup must hold behind the rounds of driver_workgroup.comp.
Words workgroup_values(Words values, uint32_t width, uint32_t rounds) {
    const auto places = static_cast<uint32_t>(values.size());
    for (uint32_t round = 0; round < rounds; round++) {
        const Words before = values;
        for (uint32_t i = 0; i < places; i++) values[i] = before[(i + width + round) % places] * 3 + i;
    }
    return values;
}

// Numbers of subgroups are judged where the workgroup has one dimension. In one of 10 x 12 the lavapipe of Mesa 22.3
// gives several invocations the same number, and nothing depends on it: no kernel has a workgroup of two dimensions.
std::optional<Wrong> judge_workgroup(const Words& values, bool judges_subgroups,
                                     std::span<const uint32_t> got) {
    constexpr size_t words = DRIVER_WORKGROUP_WORDS;
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (uint32_t place = 0; place < values.size(); place++) {
        const auto own = got.subspan(place * words, words);
        const auto wrong = [&](size_t i, const char* name, const std::string& expected) {
            return Wrong{place * words + i, fmt::format("{} {}", name, text_of_word(own[i])), expected};
        };
        if (own[0] != 1) return wrong(0, "a count of visits of", "1");
        if (own[1] != place) return wrong(1, "gl_LocalInvocationIndex", fmt::format("{}", place));
        if (own[2] != values[place]) return wrong(2, "a value of", text_of_word(values[place]));
        if (!judges_subgroups) continue;
        if (own[3] >= own[6]) return wrong(3, "gl_SubgroupID", fmt::format("less than {}", own[6]));
        if (own[4] >= own[5]) return wrong(4, "gl_SubgroupInvocationID", fmt::format("less than {}", own[5]));
        if (!seen.emplace(own[3], own[4]).second)
            return wrong(4, "gl_SubgroupInvocationID", "one that no other invocation of the subgroup has");
        if (own[5] != got[5]) return wrong(5, "gl_SubgroupSize", fmt::format("{} as before", got[5]));
        if (own[6] != got[6]) return wrong(6, "gl_NumSubgroups", fmt::format("{} as before", got[6]));
    }
    return {};
}

Trial workgroup_trial(uint32_t width, uint32_t height) {
    constexpr uint32_t rounds = 6;
    Trial t;
    t.title = fmt::format("{} x {} invocations", width, height);
    t.frame = &code_driver_workgroup_f32;
    t.module = "driver_workgroup_f32";
    t.specialization.constants = {width, height};
    t.push.count = rounds;
    t.result_words = size_t{width} * height * DRIVER_WORKGROUP_WORDS;
    t.numbers = [=](Random32& random) { return random_words(random, size_t{width} * height); };
    t.judge = [=](const Words& numbers, std::span<const uint32_t> got) {
        return judge_workgroup(workgroup_values(numbers, width, rounds), height == 1, got);
    };
    return t;
}

// driver_barriers.comp, on the host.
Words barrier_values(const Words& numbers, uint32_t rounds) {
    Words all;
    for (size_t group = 0; group < numbers.size(); group += driver_threads) {
        const auto first = numbers.begin() + static_cast<std::ptrdiff_t>(group);
        Words values(first, first + driver_threads);
        for (uint32_t round = 0; round < rounds; round++) {
            const Words before = values;
            for (uint32_t i = 0; i < driver_threads; i++)
                values[i] = before[(i + 1) % driver_threads] * 5 + before[(i * 3 + round) % driver_threads];
        }
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

// driver_loops.comp, on the host. What a round does is the same for all numbers: x becomes factor * x + summand.
Words loop_values(const Words& numbers, uint32_t rounds) {
    Words values(numbers.begin() + rounds, numbers.end());
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t factor = 1, summand = 0;
        for (uint32_t i = 0; i < numbers[round]; i++) {
            factor *= DRIVER_LOOP_FACTOR;
            summand = summand * DRIVER_LOOP_FACTOR + DRIVER_LOOP_SUMMAND;
        }
        for (uint32_t& x : values) x = x * factor + summand + round;
    }
    return values;
}

// The words behind driver_halves.comp: every fifth half is as it was.
Words stored_halves(const Words& numbers) {
    Words words = numbers;
    for (size_t place = 4; place < words.size() * 2; place += 5) {
        const uint32_t half = 0xffffu << place % 2 * 16;
        words[place / 2] = (words[place / 2] & ~half) | (unwritten_word & half);
    }
    return words;
}

Trials trials_of_halves(const core::Frame& frame, const char* module) {
    constexpr uint32_t groups = 4, halves = 3;
    constexpr size_t words = size_t{groups} * halves * driver_threads / 2;
    Trials trials;
    for (const bool split : {false, true}) {
        Trial t;
        t.title = split ? "two workgroups to a word" : "neighbours in a workgroup";
        t.frame = &frame;
        t.module = module;
        t.specialization.constants = {split ? 1u : 0u};
        t.push.count = halves;
        t.groups = groups;
        t.result_words = words;
        t.numbers = [](Random32& random) { return random_words(random, words); };
        t.judge = [](const Words& numbers, std::span<const uint32_t> got) {
            return difference(got, stored_halves(numbers));
        };
        trials.all.push_back(std::move(t));
    }
    return trials;
}

// Matrices of small whole numbers, one for each subgroup: left operands, then right ones.
struct MatrixTrial {
    uint32_t m, n, k, subgroups;

    size_t lefts() const { return size_t{subgroups} * m * k; }
    size_t numbers() const { return lefts() + size_t{subgroups} * k * n; }
    size_t shared_bytes() const {
        return size_t{subgroups} * (4 * size_t{m} * k + 2 * size_t{k} * n + 4 * size_t{m} * n);
    }
    static int number(Random32& random) { return static_cast<int>(random() % 9) - 4; }
    // The words hold two float16 each.
    static int number_in(const Words& words, size_t i) {
        const auto bits = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
        return static_cast<int>(test::load(reinterpret_cast<const std::byte*>(&bits), VKATTN_DTYPE_FLOAT16));
    }
    Words draw(Random32& random) const {
        Words words(numbers() / 2);
        for (uint32_t& word : words) {
            const uint32_t low = float16_of(number(random));
            word = low | float16_of(number(random)) << 16;
        }
        return words;
    }
    std::vector<float> sums(const Words& words) const {
        std::vector<float> all;
        for (uint32_t s = 0; s < subgroups; s++)
            for (uint32_t row = 0; row < m; row++)
                for (uint32_t column = 0; column < n; column++) {
                    int sum = 0;
                    for (uint32_t step = 1; step <= 2; step++)
                        for (uint32_t i = 0; i < k; i++)
                            sum += number_in(words, (size_t{(s + step) % subgroups} * m + row) * k + i) *
                                   number_in(words, lefts() + (size_t{s} * k + i) * n + column);
                    all.push_back(static_cast<float>(sum));
                }
        return all;
    }
};

}  // namespace

Trials try_shared_arrays(test::Device&, const DriverFacts& facts) {
    // The compiler needs some for itself, and exceeding the limit can lose the device.
    const size_t most_words = size_t{facts.caps.max_shared_bytes} / sizeof(uint32_t) / 8 * 7;
    constexpr uint32_t wide = 33, narrow = 12;
    uint32_t tall = 1;
    while (shared_words(tall + 1, narrow) <= most_words) tall++;
    uint32_t rows = 1;
    while (shared_words(rows + 1, wide) <= most_words) rows++;
    Trials trials;
    trials.all = {shared_trial(16, 8), shared_trial(5, 24), shared_trial(tall, narrow),
                  shared_trial(rows, wide)};
    return trials;
}

Trials try_workgroups(test::Device&, const DriverFacts& facts) {
    const core::DeviceCaps& caps = facts.caps;
    Trials trials;
    for (const auto& [width, height] : {std::pair{8u, 8u},
                                        {10u, 12u},
                                        {16u, 16u},
                                        {12u, 20u},
                                        {24u, 10u},
                                        {15u, 17u},
                                        {32u, 32u},
                                        {64u, 1u},
                                        {120u, 1u},
                                        {256u, 1u}})
        if (width * height <= caps.max_invocations && width <= caps.max_workgroup_size[0] &&
            height <= caps.max_workgroup_size[1])
            trials.all.push_back(workgroup_trial(width, height));
    return trials;
}

Trials try_barriers(test::Device&, const DriverFacts&) {
    constexpr uint32_t groups = 4;
    Trials trials;
    for (const uint32_t rounds : {3u, 20u}) {
        Trial t;
        t.title = fmt::format("{} rounds", rounds);
        t.frame = &code_driver_barriers_f32;
        t.module = "driver_barriers_f32";
        t.push.count = rounds;
        t.groups = groups;
        t.result_words = size_t{groups} * driver_threads;
        t.numbers = [](Random32& random) { return random_words(random, size_t{groups} * driver_threads); };
        t.judge = [rounds](const Words& numbers, std::span<const uint32_t> got) {
            return difference(got, barrier_values(numbers, rounds));
        };
        trials.all.push_back(std::move(t));
    }
    return trials;
}

Trials try_long_loops(test::Device&, const DriverFacts& facts) {
    // Kernels are planned by how this driver's loops end, so that they are right all the same.
    for (const core::Quirk& quirk : core::quirks)
        if (quirk.is_active == core::quirk_loops_end_early && quirk.is_active(facts.caps))
            return {fmt::format("a workaround for this driver is active: {}", quirk.effect), {}, {}};
    constexpr uint32_t rounds = 200, shortest = 800, longest = 1200;
    Trial t;
    t.frame = &code_driver_loops_f32;
    t.module = "driver_loops_f32";
    t.push.count = rounds;
    t.result_words = DRIVER_LOOP_THREADS;
    t.numbers = [](Random32& random) {
        Words numbers = random_words(random, rounds + DRIVER_LOOP_THREADS);
        for (uint32_t i = 0; i < rounds; i++) numbers[i] = shortest + numbers[i] % (longest - shortest + 1);
        return numbers;
    };
    t.judge = [](const Words& numbers, std::span<const uint32_t> got) {
        return difference(got, loop_values(numbers, rounds));
    };
    Trials trials;
    trials.all.push_back(std::move(t));
    return trials;
}

Trials try_halves(test::Device&, const DriverFacts& facts) {
    if (!facts.caps.storage_16bit)
        return {"the device has no 16-bit storage (storageBuffer16BitAccess)", {}, {}};
    return trials_of_halves(code_driver_halves_f16, "driver_halves_f16");
}

Trials try_packed_halves(test::Device&, const DriverFacts&) {
    return trials_of_halves(code_driver_halves_f16_packed, "driver_halves_f16_packed");
}

Trials try_matrices(test::Device&, const DriverFacts& facts) {
    const core::DeviceCaps& caps = facts.caps;
    const uint32_t subgroup_size = core::matrix_subgroup_size(caps);
    const auto is_tried = [&](const core::MatrixShape& s) {
        return s.dtype == VKATTN_DTYPE_FLOAT16 && core::is_usable(s, subgroup_size);
    };
    Trials trials;
    for (const core::MatrixShape& shape : caps.matrices) {
        if (subgroup_size == 0 || !is_tried(shape)) continue;
        MatrixTrial matrix{shape.m, shape.n, shape.k, 4};
        while (matrix.subgroups > 1 && (matrix.shared_bytes() > caps.max_shared_bytes / 2 ||
                                        matrix.subgroups * subgroup_size > caps.threads_up_to(1024)))
            matrix.subgroups--;
        if (matrix.subgroups == 1) continue;
        Trial t;
        t.title = fmt::format("{} x {} x {}", shape.m, shape.n, shape.k);
        t.frame = &code_driver_matrix_f16;
        t.module = "driver_matrix_f16";
        t.specialization = {{matrix.subgroups * subgroup_size, subgroup_size, shape.m, shape.n, shape.k},
                            caps.subgroup_size_control ? subgroup_size : 0,
                            true};
        t.result_words = size_t{matrix.subgroups} * shape.m * shape.n;
        t.numbers = [matrix](Random32& random) { return matrix.draw(random); };
        t.judge = [matrix](const Words& numbers, std::span<const uint32_t> got) {
            return difference_of_floats(got, matrix.sums(numbers));
        };
        trials.all.push_back(std::move(t));
    }
    if (trials.all.empty())
        trials.skipped = "no matrix unit is enabled that two subgroups could share matrices of float16 on";
    return trials;
}

}  // namespace vkattn::tools::conformance
