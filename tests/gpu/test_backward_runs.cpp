// The backward's promises about running: the same bits however its segments are spread, whatever lay in memory before,
// next to another recording of the same plan; and after a forward, by the documented stages alone.
#include <list>
#include <thread>

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

// All segments, so many into a command buffer.
void record(Recorder& recorder, const BackwardJob& job, const BackwardMemory& memory, uint32_t each) {
    const uint32_t all = job.plan.segments();
    for (uint32_t first = 0; first < all; first += each) {
        job.plan.cmd_backward(recorder.begin(), memory.args(), first, std::min(each, all - first));
        recorder.end();
    }
}

}  // namespace

TEST_CASE_FIXTURE(Recorded,
                  "a backward's segments in several command buffers and submissions give the same bits") {
    const BackwardJob job(context.get(), cut_text);
    const uint32_t segments = job.plan.segments();
    REQUIRE(segments > 8);
    const Gradients whole = gradients_of_whole(device, job);
    for (const uint32_t each : {1u, (segments + 1) / 2}) {
        CAPTURE(each);
        for (const bool together : {true, false}) {
            const BackwardMemory memory = job.memory(device, Place::start, together ? 0x7f800000 : 0);
            Recorder recorder(device);
            record(recorder, job, memory, each);
            if (together)
                Recorder::submit(device, recorder.recorded());
            else
                for (VkCommandBuffer commands : recorder.recorded()) Recorder::submit(device, {commands});
            check_right(job, memory);
            CHECK(memory.gradients().same_bits(whole));
        }
    }
}

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

TEST_CASE_FIXTURE(Recorded, "one backward recorded by two threads at once, with scratch of their own") {
    const BackwardJob job(context.get(), cut_text);
    std::list<BackwardMemory> memories;
    std::list<Recorder> recorders;
    for (int t = 0; t < 2; t++) {
        memories.push_back(job.memory(device));
        recorders.emplace_back(device);
    }
    const auto record_whole = [&](Recorder& recorder, const BackwardMemory& memory) {
        job.plan.cmd_backward(recorder.begin(), memory.args());
        recorder.end();
    };
    std::thread other([&] { record_whole(recorders.back(), memories.back()); });
    record_whole(recorders.front(), memories.front());
    other.join();
    // Nothing between the two on the queue, so they may overlap.
    Recorder::submit(device, {recorders.front().recorded().front(), recorders.back().recorded().front()});
    for (const BackwardMemory& memory : memories) check_right(job, memory);
    CHECK(memories.front().gradients().same_bits(memories.back().gradients()));
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
