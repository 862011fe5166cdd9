// A million keys, checked against arithmetic that streams over them: the oracle would hold their scores.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "fixture.hpp"
#include "forward_run.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace million_keys {
namespace {

constexpr uint32_t keys = 1000000, rows = 16, dim = 16, searching = 8;
// Where half the weight of a searching row lies: around what tiles, parts and 16-bit counters end at.
constexpr uint32_t special[searching] = {0, 63, 64, 65535, 65536, 500000, 999935, 999999};

struct Long {
    std::vector<float> query = std::vector<float>(rows * dim), key = std::vector<float>(size_t{keys} * dim),
                       value = std::vector<float>(size_t{keys} * dim);
};

// The first rows look along a dimension each, along which only their special key goes far. To the others all keys are
// the same: their sums are whole numbers, exact in any order, so that one key left out, or taken twice, shows.
Long make_long() {
    Long t;
    for (uint32_t r = 0; r < searching; r++) t.query[r * dim + r] = 8;
    uint32_t state = 1;
    for (size_t j = 0; j < keys; j++)
        for (size_t d = 0; d < dim; d++) {
            state = state * 1664525 + 1013904223;
            t.key[j * dim + d] = 0.2f * (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f);
            t.value[j * dim + d] = j * dim / keys == d ? 16.0f : 0.0f;
        }
    for (uint32_t r = 0; r < searching; r++) {
        t.key[size_t{special[r]} * dim + r] = 6.9f;  // the score is 8 * 6.9 / 4; e^13.8 is a million
        for (size_t d = 0; d < dim; d++) t.value[special[r] * dim + d] = static_cast<float>(100 + r);
    }
    return t;
}

// One row, in T; keys in order. All keys are seen.
template <class T>
void attend(const Long& t, uint32_t r, std::span<T> out, T& lse) {
    const T scale = static_cast<T>(0.25);
    std::vector<T> scores(keys);
    for (size_t j = 0; j < keys; j++) {
        T s = 0;
        for (size_t d = 0; d < dim; d++)
            s += static_cast<T>(t.query[r * dim + d]) * static_cast<T>(t.key[j * dim + d]);
        scores[j] = s * scale;
    }
    const T most = *std::max_element(scores.begin(), scores.end());
    T sum = 0;
    std::fill(out.begin(), out.end(), T{0});
    for (size_t j = 0; j < keys; j++) {
        const T weight = std::exp(scores[j] - most);
        sum += weight;
        for (size_t d = 0; d < dim; d++) out[d] += weight * static_cast<T>(t.value[j * dim + d]);
    }
    for (T& x : out) x /= sum;
    lse = most + std::log(sum);
}

Expected expect_long(const Long& t) {
    Expected e;
    e.exact.out.resize(rows * dim);
    e.naive.out.resize(rows * dim);
    e.exact.lse.resize(rows);
    e.naive.lse.resize(rows);
    const auto work = [&](uint32_t first) {
        for (uint32_t r = first; r < rows; r += 2) {
            attend(t, r, std::span(e.exact.out).subspan(r * dim, dim), e.exact.lse[r]);
            attend(t, r, std::span(e.naive.out).subspan(r * dim, dim), e.naive.lse[r]);
        }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    return e;
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a million keys") {
    const char* const on = std::getenv("VKATTN_ON");
    if (on == nullptr || std::string(on) != "lavapipe")
        return skip("a million keys: seconds of one CPU device are enough; tools/on lavapipe runs them");
    const Case c = parse_case(fmt::format("sq={} skv={} d={}", rows, keys, dim), "here");
    const Plan plan = plan_of(context.get(), c);
    const Long t = make_long();
    Inputs inputs = make_inputs(c);
    inputs.query.scatter(t.query);
    inputs.key.scatter(t.key);
    inputs.value.scatter(t.value);
    const Forward forward(device, plan, c, inputs, Place::end);
    runtime.submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
    const Outcome outcome = forward.outcome();
    const Expected e = expect_long(t);
    CHECK(compare(outcome, e) == "");
    double worst = 0;
    for (size_t i = searching * dim; i < outcome.out.size(); i++)
        worst = std::max(worst, std::fabs(static_cast<double>(outcome.out[i]) - e.exact.out[i]));
    CHECK(worst < 1e-6);
    CHECK(forward.damage() == "");
}

}  // namespace million_keys
