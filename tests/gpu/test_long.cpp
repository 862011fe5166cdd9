// A million keys, some of which a row must find, and none of which may be left out or taken twice.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "case_suite.hpp"
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
    const Outcome outcome = run_forward(device, plan, c, inputs);
    const Expected e = expect(c, inputs);
    CHECK(compare(outcome, e) == "");
    double worst = 0;
    for (size_t i = searching * dim; i < outcome.out.size(); i++)
        worst = std::max(worst, std::fabs(static_cast<double>(outcome.out[i]) - e.exact.out[i]));
    CHECK(worst < 1e-6);
}

}  // namespace million_keys
