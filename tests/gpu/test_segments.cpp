// A plan cut into segments: however they are spread over command buffers and submissions, the bits are those of the
// whole.
#include <fmt/format.h>

#include "case_suite.hpp"
#include "interposer.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Cut over rows and heads; over keys too, with merging; each in its type.
constexpr const char* cut_texts[] = {
    "b=2 hq=4 hkv=2 sq=97 skv=113 causal layout=bshd pad=1 max_flops=200000",
    "b=2 hq=4 hkv=2 sq=7 skv=799 max_flops=60000",
    "b=3 h=2 sq=5 skv=203 splits=4 lengths=203,0,60 causal max_flops=20000 dtype=f16 d=59",
    "sq=97 skv=203 mask=bool mask_shape=97,203 mask_fill=banded max_flops=100000 dtype=bf16",
    "b=2 h=3 s=33 kernel=materialized max_scratch=9728"};

struct Range {
    uint32_t first, count;
};

// All segments in ranges of so many.
std::vector<Range> ranges_of(const Plan& plan, uint32_t each) {
    std::vector<Range> ranges;
    const uint32_t all = plan.segments();
    for (uint32_t first = 0; first < all; first += each)
        ranges.push_back({first, std::min(each, all - first)});
    return ranges;
}

// Each range into a command buffer of its own.
void record(Recorder& recorder, const Plan& plan, const Forward& forward, const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
        plan.cmd_forward(recorder.begin(), forward.args(), range.first, range.count);
        recorder.end();
    }
}

Outcome outcome_of_whole(Device& device, const Job& job) {
    const Forward forward = job.forward(device);
    device.runtime().submit(
        [&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, forward.args()); });
    check_right(job, forward);
    return forward.outcome();
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "segments in several command buffers and submissions give the same bits") {
    for (const char* text : cut_texts) {
        const Job job(context.get(), text);
        CAPTURE(job.c.text);
        const uint32_t segments = job.plan.segments();
        CHECK(segments > 1);
        const Outcome whole = outcome_of_whole(device, job);
        for (const uint32_t each : {1u, 2u, (segments + 1) / 2, segments}) {
            CAPTURE(each);
            const std::vector<Range> ranges = ranges_of(job.plan, each);
            {  // one submission
                const Forward forward = job.forward(device, Place::start, 0x7f800000);
                Recorder recorder(device);
                record(recorder, job.plan, forward, ranges);
                Recorder::submit(device, recorder.recorded());
                check_right(job, forward);
                CHECK(forward.outcome().same_bits(whole));
            }
            {  // one each
                const Forward forward = job.forward(device);
                Recorder recorder(device);
                record(recorder, job.plan, forward, ranges);
                for (VkCommandBuffer commands : recorder.recorded()) Recorder::submit(device, {commands});
                check_right(job, forward);
                CHECK(forward.outcome().same_bits(whole));
            }
        }
    }
}

TEST_CASE_FIXTURE(Recorded, "segments of one command buffer need nothing between them") {
    const Job job(context.get(), cut_texts[1]);
    const Outcome whole = outcome_of_whole(device, job);
    const Forward forward = job.forward(device);
    runtime.submit([&](VkCommandBuffer commands) {
        for (const Range& range : ranges_of(job.plan, 1))
            job.plan.cmd_forward(commands, forward.args(), range.first, range.count);
    });
    check_right(job, forward);
    CHECK(forward.outcome().same_bits(whole));
}

TEST_CASE_FIXTURE(Recorded, "a recording of segments can be run again") {
    const Job job(context.get(), cut_texts[2]);
    const Forward forward = job.forward(device);
    Recorder recorder(device);
    record(recorder, job.plan, forward, ranges_of(job.plan, 2));
    Recorder::submit(device, recorder.recorded());
    const Outcome first = forward.outcome();
    for (int run = 0; run < 3; run++) Recorder::submit(device, recorder.recorded());
    check_right(job, forward);
    CHECK(forward.outcome().same_bits(first));
}

TEST_CASE_FIXTURE(Recorded, "a smaller limit makes more segments, and each records something") {
    uint32_t before = 1;
    for (const uint64_t limit : {uint64_t{0}, uint64_t{4000000}, uint64_t{1000000}, uint64_t{300000}}) {
        const Case c = parse_case(fmt::format("b=2 h=2 sq=203 skv=799 max_flops={}", limit), "here");
        const Plan plan = plan_of(context.get(), with_possible_limit(context.get(), c));
        CAPTURE(limit);
        CHECK(plan.segments() >= before);
        before = plan.segments();
        CHECK(plan.describe().size() > 2);
    }
    CHECK(before > 1);
    CHECK(vkattn_plan_segments(nullptr) == 0);

    const Job job(context.get(), cut_texts[0]);
    const Forward forward = job.forward(device);
    for (uint32_t i = 0; i < job.plan.segments(); i++) {
        Recorder recorder(device);
        between.take_commands();
        job.plan.cmd_forward(recorder.begin(), forward.args(), i, 1);
        recorder.end();
        size_t dispatches = 0;
        for (const Command& command : between.take_commands())
            dispatches += command.kind == Command::Kind::dispatch ? 1 : 0;
        CHECK(dispatches == 1);
    }
}

TEST_CASE_FIXTURE(Recorded, "ranges that a plan does not have are refused, and nothing is recorded") {
    const Job job(context.get(), cut_texts[0]);
    const Forward forward = job.forward(device);
    const uint32_t segments = job.plan.segments();
    Recorder recorder(device);
    const VkCommandBuffer commands = recorder.begin();
    between.take_commands();
    for (const auto& range : {std::pair{0u, segments + 1},
                              {segments, 1u},
                              {segments + 1, 0u},
                              {1u, segments},
                              {1u, 0xffffffffu},
                              {0xffffffffu, 1u},
                              {0xffffffffu, 0xffffffffu}}) {
        const uint32_t first = range.first, count = range.second;
        VkattnError error;
        CAPTURE(first);
        CAPTURE(count);
        CHECK(vkattn_cmd_forward_range(commands, job.plan.get(), &forward.args(), first, count, &error) ==
              VKATTN_INVALID_ARGUMENT);
        CHECK((std::string(error.field) == "first" || std::string(error.field) == "count"));
    }
    // Nothing to record is no fault.
    for (const uint32_t first : {0u, segments}) job.plan.cmd_forward(commands, forward.args(), first, 0);
    CHECK(between.take_commands().empty());
    // What vkattn_cmd_forward refuses, a range refuses too, the last one as well.
    VkattnForwardArgs args = forward.args();
    args.query = 0;
    VkattnError error;
    CHECK(vkattn_cmd_forward_range(commands, job.plan.get(), &args, segments - 1, 1, &error) ==
          VKATTN_INVALID_ARGUMENT);
    CHECK(std::string(error.field) == "args.query");
    CHECK(between.take_commands().empty());
    recorder.end();
}
