// The promises about running: the same bits every time, whatever lay in memory before, next to other work, and from
// several threads.
#include <atomic>
#include <cstring>
#include <list>
#include <thread>

#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

void barrier_to_next_forward(Device& device, VkCommandBuffer commands, VkPipelineStageFlags from,
                             VkAccessFlags written) {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, written, VKATTN_FIRST_ACCESS};
    device.vk().vkCmdPipelineBarrier(commands, from, VKATTN_FIRST_STAGES, 0, 1, &memory, 0, nullptr, 0,
                                     nullptr);
}

// Outputs and scratch are poison before each.
void run_a_hundred_times(Device& device, const Job& job) {
    std::optional<Outcome> first;
    Forward forward = job.forward(device);
    int different = 0;
    for (int run = 0; run < 100; run++) {
        forward.poison();
        device.runtime().submit(
            [&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, forward.args()); });
        const Outcome outcome = forward.outcome();
        if (!first) first = outcome;
        if (!first->same_bits(outcome)) different++;
    }
    CAPTURE(job.c.text);
    CHECK(different == 0);
    check_right(job, forward);
}

// Shapes of which every kernel is one; the first two are tiles.
constexpr const char* mixed[] = {"b=2 hq=4 hkv=2 s=57 causal", "sq=33 skv=71 layout=bshd h=3 pad=1 seed=5",
                                 "h=2 sq=29 skv=40 window=9,3 kernel=materialized",
                                 "sq=31 skv=90 scale=-0.5 seed=3"};

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a hundred runs give the same bits") {
    const std::string everything =
        "b=2 hq=4 hkv=2 sq=9 skv=71 d=40 window=40,3 mask=float mask_shape=2,4,9,70 mask_fill=rows softcap=3 "
        "lengths=71,50 offsets=60,33 layout=bshd pad=3 splits=3 max_flops=100000 ";
    for (const std::string& text :
         {std::string("hq=4 hkv=2 sq=37 skv=71 causal"), std::string("h=2 s=37 kernel=materialized"),
          everything + "dtype=f32", everything + "dtype=f16", everything + "dtype=bf16"}) {
        const Job job(context.get(), text);
        run_a_hundred_times(device, job);
    }
}

TEST_CASE_FIXTURE(Recorded, "a hundred runs on a matrix unit give the same bits") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("a hundred runs on a matrix unit: " + device.info().name + " has none for float16");
    for (const char* text : {"hq=4 hkv=2 sq=37 skv=71 causal kernel=matrix dtype=f16",
                             "hq=4 hkv=2 sq=7 skv=71 splits=3 kernel=matrix dtype=f16"})
        run_a_hundred_times(device, Job(runtime.context(), text));
}

TEST_CASE_FIXTURE(Recorded, "several plans and foreign work share a command buffer") {
    std::list<Job> jobs;
    std::vector<Forward> forwards;
    for (const char* text : mixed) jobs.emplace_back(context.get(), text);
    for (const Job& job : jobs) forwards.emplace_back(device, job.plan, job.c, job.inputs, Place::end);
    const Buffer foreign = runtime.allocate(4096);
    runtime.submit([&](VkCommandBuffer commands) {
        size_t i = 0;
        for (const Job& job : jobs) {
            Forward& forward = forwards[i++];
            device.vk().vkCmdFillBuffer(commands, foreign.handle(), 0, 4096, static_cast<uint32_t>(i));
            device.vk().vkCmdFillBuffer(commands, forward.out().buffer(), forward.out().offset_bytes(),
                                        forward.out().size_bytes(), poison_word);
            barrier_to_next_forward(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                    VK_ACCESS_TRANSFER_WRITE_BIT);
            job.plan.cmd_forward(commands, forward.args());
            const VkMemoryBarrier done{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VKATTN_LAST_ACCESS,
                                       VK_ACCESS_TRANSFER_WRITE_BIT};
            device.vk().vkCmdPipelineBarrier(commands, VKATTN_LAST_STAGES, VK_PIPELINE_STAGE_TRANSFER_BIT, 0,
                                             1, &done, 0, nullptr, 0, nullptr);
            // The same buffer again: without the barrier of above, a hazard that validation sees.
            const VkMemoryBarrier again{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr,
                                        VK_ACCESS_TRANSFER_WRITE_BIT, VK_ACCESS_TRANSFER_WRITE_BIT};
            device.vk().vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                             VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &again, 0, nullptr, 0,
                                             nullptr);
        }
    });
    size_t i = 0;
    for (const Job& job : jobs) check_right(job, forwards[i++]);
    std::vector<std::byte> words(4096);
    runtime.download(foreign, words);
    CHECK(words.back() == std::byte{0});
    CHECK(words[0] == static_cast<std::byte>(jobs.size()));
}

TEST_CASE_FIXTURE(Recorded, "one forward feeds the next by the documented stages and accesses") {
    const Job first(context.get(), "b=2 h=2 s=41 causal");
    Forward forward(device, first.plan, first.c, first.inputs, Place::end);
    Case c = parse_case("b=2 h=2 s=41 seed=4");
    const Plan plan(context.get(), c.problem);
    Inputs inputs = make_inputs(c);
    Forward second(device, plan, c, inputs, Place::end);
    VkattnForwardArgs args = second.args();
    args.query = forward.args().out;
    runtime.submit([&](VkCommandBuffer commands) {
        first.plan.cmd_forward(commands, forward.args());
        barrier_to_next_forward(device, commands, VKATTN_LAST_STAGES, VKATTN_LAST_ACCESS);
        plan.cmd_forward(commands, args);
    });
    check_right(first, forward);
    inputs.query.scatter(forward.outcome().out);
    CHECK(compare(second.outcome(), expect(c, inputs)) == "");
}

TEST_CASE_FIXTURE(Recorded, "threads plan and record from one context at the same time") {
    // A new context: the threads race to build its pipelines.
    between.pretend = true;
    const int before = between.pipelines_asked_for();
    {
        const Context alone = between.context();
        for (const char* text : mixed) {
            const Case c = parse_case(text);
            const Plan plan(alone, c.problem, c.options());
        }
    }
    const int needed = between.pipelines_asked_for() - before;
    between.pretend = false;
    const Context fresh = between.context();
    for (const int threads : {2, 4}) {
        const int built = between.pipelines_asked_for();
        std::vector<std::list<Job>> jobs(static_cast<size_t>(threads));
        std::vector<std::list<Forward>> forwards(jobs.size());
        std::list<Recorder> recorders;
        std::atomic<int> waiting = threads;
        std::vector<std::string> failures(jobs.size());
        const auto work = [&](size_t t, Recorder& recorder) {
            waiting--;
            while (waiting != 0) std::this_thread::yield();
            try {
                for (size_t i = 0; i < std::size(mixed); i++)  // each in another order
                    jobs[t].emplace_back(fresh.get(), mixed[(i + t) % std::size(mixed)]);
                for (const Job& job : jobs[t]) {
                    Forward& forward =
                        forwards[t].emplace_back(device, job.plan, job.c, job.inputs, Place::end);
                    job.plan.cmd_forward(recorder.begin(), forward.args());
                    recorder.end();
                }
            } catch (const std::exception& e) {
                failures[t] = e.what();
            }
        };
        std::vector<std::thread> all;
        for (size_t t = 0; t < jobs.size(); t++) {
            recorders.emplace_back(device);
            all.emplace_back(work, t, std::ref(recorders.back()));
        }
        for (std::thread& thread : all) thread.join();
        CAPTURE(threads);
        for (const std::string& failure : failures) CHECK(failure == "");
        std::vector<VkCommandBuffer> commands;
        for (const Recorder& recorder : recorders)
            commands.insert(commands.end(), recorder.recorded().begin(), recorder.recorded().end());
        Recorder::submit(device, commands);
        for (size_t t = 0; t < jobs.size(); t++) {
            auto forward = forwards[t].begin();
            for (const Job& job : jobs[t]) check_right(job, *forward++);
        }
        // Built once, by whoever came first.
        CHECK(between.pipelines_asked_for() == (threads == 2 ? built + needed : built));
    }
}
