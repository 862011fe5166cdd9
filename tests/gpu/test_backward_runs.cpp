// The backward's promises about running beside those of behaviour.txt: the same bits in a hundred runs and in segments
// of one command buffer; and after a forward, by the documented stages alone.
#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Loops over keys, and over the queries of a group, cut into spans; rows and heads into boxes. Of the pipelines that a
// case of [cuts] has.
constexpr const char* cut_text = "b=2 hq=4 hkv=2 sq=41 skv=71 causal max_flops=70000";

struct BackwardJob {
    BackwardJob(VkattnContext* context, const char* text)
        : c(with_possible_backward_limit(context, parse_case(text, "here"))),
          plan(backward_plan_of(context, c)),
          inputs(c),
          expected(expect_gradients(c, inputs)) {}
    BackwardJob(const BackwardJob&) = delete;
    BackwardMemory memory(Device& device, Place place = Place::end,
                          uint32_t old_content = poison_word) const {
        return BackwardMemory(device, plan, c, inputs, place, old_content);
    }

    Case c;
    Plan plan;
    BackwardInputs inputs;
    ExpectedGradients expected;
};

void check_right(const BackwardJob& job, const BackwardMemory& memory) {
    CAPTURE(job.c.text);
    CHECK(memory.damage() == "");
    CHECK(compare(memory.gradients(), job.expected) == "");
}

Gradients gradients_of_whole(Device& device, const BackwardJob& job) {
    const BackwardMemory memory = job.memory(device);
    device.runtime().submit(
        [&](VkCommandBuffer commands) { job.plan.cmd_backward(commands, memory.args()); });
    check_right(job, memory);
    return memory.gradients();
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a hundred runs of a backward on a matrix unit give the same bits") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("a hundred backward runs on a matrix unit: " + device.info().name +
                    " has none for float16");
    // With plain tiles, others and several heads a group; the second one's loops are cut.
    for (const char* text : {"hq=4 hkv=2 sq=137 skv=171 d=64 causal align_bytes=16 kernel=matrix dtype=f16",
                             "b=2 hq=4 hkv=2 sq=97 skv=203 max_flops=200000 kernel=matrix dtype=f16"}) {
        const BackwardJob job(runtime.context(), text);
        const Gradients whole = gradients_of_whole(device, job);
        const BackwardMemory memory = job.memory(device);
        Recorder recorder(device);
        const VkCommandBuffer commands = recorder.begin();
        job.plan.cmd_backward(commands, memory.args());
        recorder.end();
        for (int run = 0; run < 100; run++) {
            Recorder::submit(device, {commands});
            CHECK(memory.gradients().same_bits(whole));
        }
        check_right(job, memory);
    }
}

TEST_CASE_FIXTURE(Recorded,
                  "a backward's segments of one command buffer need nothing between them, and run again") {
    const BackwardJob job(context.get(), cut_text);
    const Gradients whole = gradients_of_whole(device, job);
    const BackwardMemory memory = job.memory(device);
    Recorder recorder(device);
    const VkCommandBuffer commands = recorder.begin();
    for (uint32_t i = 0; i < job.plan.segments(); i++) job.plan.cmd_backward(commands, memory.args(), i, 1);
    recorder.end();
    for (int run = 0; run < 8; run++) {
        Recorder::submit(device, {commands});
        CHECK(memory.gradients().same_bits(whole));
    }
    check_right(job, memory);
}

TEST_CASE_FIXTURE(Recorded, "a forward feeds its backward by the documented stages and accesses") {
    const BackwardJob job(context.get(), cut_text);
    const Plan plan = plan_of(context.get(), with_possible_limit(context.get(), job.c));
    const Forward forward(device, plan, job.c, job.inputs.forward, Place::end);
    const BackwardMemory memory = job.memory(device);
    VkattnBackwardArgs args = memory.args();
    args.out = forward.args().out;
    args.lse = forward.args().lse;
    runtime.submit([&](VkCommandBuffer commands) {
        plan.cmd_forward(commands, forward.args());
        const VkMemoryBarrier done{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VKATTN_LAST_ACCESS,
                                   VKATTN_FIRST_ACCESS};
        device.vk().vkCmdPipelineBarrier(commands, VKATTN_LAST_STAGES, VKATTN_FIRST_STAGES, 0, 1, &done, 0,
                                         nullptr, 0, nullptr);
        job.plan.cmd_backward(commands, args);
    });
    check_right(job, memory);
}
