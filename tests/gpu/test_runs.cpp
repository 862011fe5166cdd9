// The promises about running beside those of cases/behaviour.txt: one call feeds the next by the documented stages
// alone, and threads build the pipelines of one context.
#include <atomic>
#include <list>
#include <thread>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "own_work.hpp"

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
    CHECK(compare(memory.gradients(), expect_gradients(job.c, inputs)) == "");
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
