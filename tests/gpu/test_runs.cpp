// The promises about running beside those of cases/behaviour.txt: one call feeds the next by the documented stages
// alone, and threads build the pipelines of one context.
#include <atomic>
#include <deque>
#include <list>
#include <thread>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "own_work.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Shapes of which every kernel is one; the first two are tiles.
constexpr const char* mixed[] = {"b=2 hq=4 hkv=2 s=57 causal", "sq=33 skv=71 layout=bshd h=3 pad=1 seed=5",
                                 "h=2 sq=29 skv=40 window=9,3 kernel=materialized",
                                 "sq=31 skv=90 scale=-0.5 seed=3"};

}  // namespace

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
        barrier_between(device, commands, attention_last, attention_first);
        plan.cmd_forward(commands, args);
    });
    check_right(first, forward);
    inputs.query.scatter(forward.outcome().out);
    CHECK(compare(second.outcome(), expect(c, inputs)) == "");
}

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

TEST_CASE_FIXTURE(Recorded, "threads plan and record from one context at the same time") {
    const Context fresh = between.context();  // the threads race to build its pipelines
    const int before = between.pipelines_asked_for();
    const Job shared(fresh.get(), mixed[0]);  // its plan is recorded by all threads at once
    constexpr size_t threads = 4;
    std::list<Job> jobs[threads];
    std::list<Forward> forwards[threads];
    std::deque<Recorder> recorders;
    std::atomic<size_t> waiting = threads;
    std::string failures[threads];
    const auto work = [&](size_t t) {
        waiting--;
        while (waiting != 0) std::this_thread::yield();
        try {
            for (size_t i = 0; i < std::size(mixed); i++)  // each in another order
                jobs[t].emplace_back(fresh.get(), mixed[(i + t) % std::size(mixed)]);
            const auto record = [&](const Job& job) {
                forwards[t].push_back(job.forward(device));
                job.plan.cmd_forward(recorders[t].begin(), forwards[t].back().args());
                recorders[t].end();
            };
            record(shared);
            for (const Job& job : jobs[t]) record(job);
        } catch (const std::exception& e) {
            failures[t] = e.what();
        }
    };
    for (size_t t = 0; t < threads; t++) recorders.emplace_back(device);
    std::vector<std::thread> all;
    for (size_t t = 0; t < threads; t++) all.emplace_back(work, t);
    for (std::thread& thread : all) thread.join();
    std::vector<VkCommandBuffer> commands;
    for (const Recorder& recorder : recorders)
        commands.insert(commands.end(), recorder.recorded().begin(), recorder.recorded().end());
    Recorder::submit(device, commands);
    for (size_t t = 0; t < threads; t++) {
        CHECK(failures[t] == "");
        auto forward = forwards[t].begin();
        check_right(shared, *forward++);
        for (const Job& job : jobs[t]) check_right(job, *forward++);
    }
    // Built once, by whoever came first.
    CHECK(between.pipelines_asked_for() - before == static_cast<int>(fresh.get()->pipelines.size()));
}
