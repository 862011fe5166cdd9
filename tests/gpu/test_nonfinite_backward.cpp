// Weights that vanish in the backward though their keys are visible. That NaN and infinity never vanish is tested by
// the cases with `nonfinite`.
#include <fmt/format.h>

#include "backward_run.hpp"
#include "fixture.hpp"
#include "interposer.hpp"
#include "nonfinite.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

// Keys with a mask of -2e9 weigh nothing beside those with -1e9, whose lse can tell nothing smaller than 100 apart.
TEST_CASE_FIXTURE(Recorded, "keys that a large mask leaves no weight get no gradient") {
    const Case c = parse_case("sq=8 skv=8 mask=float mask_shape=8,8", "here");
    const Plan plan = backward_plan_of(context.get(), c);
    BackwardInputs inputs(c);
    for (size_t i = 0; i < 64; i++) inputs.forward.mask[i] = i % 8 < 4 ? -1e9 : -2e9;
    write_mask_image(c, inputs.forward);
    const auto dense = [](const Tensor& t) {
        const std::vector<float> x = t.gather(t.image);
        return std::vector<double>(x.begin(), x.end());
    };
    const oracle::Result exact =
        oracle::forward(oracle_problem(c, inputs.forward), dense(inputs.forward.query),
                        dense(inputs.forward.key), dense(inputs.forward.value));
    inputs.out.scatter(std::vector<float>(exact.out.begin(), exact.out.end()));
    inputs.lse.assign(exact.lse.begin(), exact.lse.end());
    const BackwardMemory memory(device, plan, c, inputs, Place::end);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, memory.args()); });
    const Gradients got = memory.gradients();
    for (size_t key = 0; key < 8; key++) {
        double most = 0;
        for (const float x : row_of(got.value, key, 8))
            most = std::max(most, std::abs(static_cast<double>(x)));
        CAPTURE(key);
        if (key < 4)
            CHECK(most > 0.01);
        else
            CHECK(most < 1e-30);
    }
}
