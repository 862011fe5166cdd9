// The promises about running beside those of cases/behaviour.txt: splits share the keys that rows see, and a forward
// feeds its backward by the documented stages alone.
#include <algorithm>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "own_work.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

TEST_CASE_FIXTURE(Recorded,
                  "splits share the keys that a batch has and a row sees, not those of the buffer") {
    // 1,024 keys are four times as many as a split gets at least, so that none of four splits may be idle.
    for (const char* text : {"b=2 hq=4 hkv=2 sq=2 skv=9000 d=16 lengths=1024,1500 splits=4 kernel=rows",
                             "b=2 hq=4 hkv=2 sq=2 skv=9000 d=16 lengths=1024,1500 splits=4 kernel=tiles",
                             "b=2 sq=1 skv=9000 d=16 lengths=9000,4000 window=1100,0 splits=4 kernel=rows"}) {
        CAPTURE(text);
        const Job job(context.get(), text);
        const Forward forward = job.forward(device);
        runtime.submit([&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, forward.args()); });
        check_right(job, forward);
        const core::Plan& plan = job.plan.get()->plan;
        REQUIRE(plan.num_splits == 4);
        const auto part =
            std::ranges::find(plan.scratch, core::Region::parts_lse, &core::ScratchRegion::region);
        REQUIRE(part != plan.scratch.end());
        const std::vector<float> scratch = forward.floats("scratch");
        for (uint64_t at = part->offset_bytes / 4; at < (part->offset_bytes + part->size_bytes) / 4; at += 2)
            CHECK(scratch[at + 1] > 0);  // the sum of a row's weights
    }
}

TEST_CASE_FIXTURE(Recorded, "a forward feeds its backward by the documented stages and accesses") {
    const Job job(context.get(), "b=2 hq=4 hkv=2 sq=41 skv=71 causal");
    const Forward forward = job.forward(device);
    const BackwardInputs inputs(job.c);
    const Plan plan = backward_plan_of(context.get(), job.c);
    const BackwardMemory memory(device, plan, job.c, inputs, Place::end);
    VkattnBackwardArgs args = memory.args();
    args.out = forward.args().out;
    args.lse = forward.args().lse;
    runtime.submit([&](VkCommandBuffer commands) {
        job.plan.cmd_forward(commands, forward.args());
        barrier_between(device, commands, attention_last, attention_first);
        plan.cmd_backward(commands, args);
    });
    CHECK(memory.damage() == "");
    CHECK(compare(memory.outcome(), expect_gradients(job.c, inputs)) == "");
}
