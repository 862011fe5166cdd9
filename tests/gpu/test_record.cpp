// What the library creates and records, seen from between it and Vulkan.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;
using Kind = Command::Kind;

namespace {

// One case through a context of the caller's, against the oracle. Returns what was recorded.
std::vector<Command> run_in(Interposer& between, const Context& context, const Case& c) {
    Device& device = Device::get();
    const Plan plan(context, c.problem, c.options());
    const Inputs inputs = make_inputs(c);
    between.take_commands();
    CAPTURE(c.text);
    CHECK(compare(run_forward(device, plan, c, inputs), expect(c, inputs)) == "");
    return between.take_commands();
}

// Memory that several dispatches of a plan can share is the score matrix, whose address is in `scores` or `weights`.
bool share_scores(const Command& a, const Command& b, VkDeviceAddress scores) {
    const auto has = [&](const Command& c, const char* field) {
        return has_field(c, field) && pushed(c, field) == scores;
    };
    const auto touches = [&](const Command& c) { return has(c, "scores") || has(c, "weights"); };
    return touches(a) && touches(b);
}

int count_of(const std::vector<Command>& commands, Kind kind) {
    return static_cast<int>(
        std::count_if(commands.begin(), commands.end(), [&](const Command& c) { return c.kind == kind; }));
}

// A barrier stands between every two dispatches that share scores; returns how many such pairs there are.
int check_dependencies(const std::vector<Command>& commands, VkDeviceAddress scores) {
    int pairs = 0;
    for (size_t i = 0; i < commands.size(); i++)
        for (size_t j = i + 1; j < commands.size(); j++) {
            if (commands[i].kind != Kind::dispatch || commands[j].kind != Kind::dispatch ||
                !share_scores(commands[i], commands[j], scores))
                continue;
            pairs++;
            CHECK(std::any_of(commands.begin() + static_cast<std::ptrdiff_t>(i),
                              commands.begin() + static_cast<std::ptrdiff_t>(j), guards_compute));
        }
    return pairs;
}

std::string tuning_row(const Plan& plan) {
    return plan.info().tuning_row;
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "the fused kernel records one dispatch and no barrier") {
    const auto commands = run_in(between, context, parse_case("s=33 causal"));
    CHECK(count_of(commands, Kind::dispatch) == 1);
    CHECK(count_of(commands, Kind::barrier) == 0);
    CHECK(count_of(commands, Kind::update) == 0);
}

TEST_CASE_FIXTURE(Recorded, "a barrier stands between every two dependent dispatches") {
    // Two heads' matrices at a time: 33 rows of 36 floats are 4752 bytes.
    const Case c = parse_case("b=2 h=3 s=33 kernel=materialized max_scratch=9728");
    const Plan plan(context, c.problem, c.options());
    const Inputs inputs = make_inputs(c);
    const Forward forward(device, plan, c, inputs, Place::start);
    between.take_commands();
    runtime.submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
    const auto commands = between.take_commands();
    CHECK(count_of(commands, Kind::dispatch) == 9);
    CHECK(check_dependencies(commands, forward.args().scratch_address) == 9 * 8 / 2);
    CHECK(compare(forward.outcome(), expect(c, inputs)) == "");
    // None before the first dispatch or after the last: those are the caller's.
    const auto is_dispatch = [](const Command& command) { return command.kind == Kind::dispatch; };
    const auto first = std::find_if(commands.begin(), commands.end(), is_dispatch);
    CHECK(std::none_of(commands.begin(), first, guards_compute));
    CHECK(is_dispatch(commands.back()));
}

TEST_CASE_FIXTURE(Recorded, "the argument block is written to scratch, then waited for") {
    between.pretend = true;
    const Context fresh = between.context();
    const Buffer memory = runtime.allocate(4096);
    for (const char* kernel : {"tiles", "materialized"}) {
        // Strides of 24 GB; recorded into thin air, never run.
        const Case c = parse_case(std::string("b=2 s=3 qs=6000000000,24,8 kernel=") + kernel);
        const Plan plan(fresh, c.problem, c.options());
        REQUIRE(plan.scratch().size_bytes <= 2048);
        VkattnForwardArgs args = forward_args();
        args.query = args.key = args.value = memory.address();
        args.out = memory.address() + 1024;
        args.scratch_buffer = memory.handle();
        args.scratch_offset = 2048;
        args.scratch_address = memory.address() + 2048;
        between.take_commands();
        plan.cmd_forward(reinterpret_cast<VkCommandBuffer>(uintptr_t{16}), args);
        const auto commands = between.take_commands();
        CAPTURE(std::string(kernel));
        REQUIRE(commands.size() > 2);
        const auto first = std::ranges::find(commands, Kind::dispatch, &Command::kind);
        REQUIRE(first != commands.end());
        const uint64_t block = pushed(*first, "block");
        CHECK(block >= args.scratch_address);
        for (const Command& command : commands)
            if (command.kind == Kind::dispatch && !has_field(command, "block"))
                CHECK(pushed(command, has_field(command, "arguments") ? "arguments" : "operand_layout") ==
                      block);
    }
}

TEST_CASE_FIXTURE(Recorded, "on a device with small grids the work is cut into dispatches") {
    const std::array<uint32_t, 3> limit = {3, 5, 9};
    between.largest_grid = limit;
    const Context fresh = between.context();
    between.largest_grid.reset();
    const auto dispatches = [&](const char* text) {
        const auto commands = run_in(between, fresh, parse_case(text));
        for (const Command& command : commands)
            for (size_t i = 0; i < 3; i++) CHECK(command.groups[i] <= limit[i]);
        return count_of(commands, Kind::dispatch);
    };
    // Heads, whether or not those of a group share tiles; query tiles; parts of the keys.
    CHECK(dispatches("b=2 hq=8 hkv=4 sq=7 skv=9") > 1);
    CHECK(dispatches("b=3 h=1 sq=1403 skv=13 causal") > 1);
    CHECK(dispatches("sq=3 skv=799 splits=40") > 2);
    CHECK(dispatches("b=2 hq=8 hkv=4 sq=403 skv=399 mask=bool mask_shape=403,399 mask_fill=banded") > 1);
    CHECK(dispatches("b=5 h=1 sq=41 skv=23 kernel=materialized") == 6);
    // Heads and rows of each pass of a backward.
    const char* const text_of_backward = "b=2 hq=4 hkv=2 sq=203 skv=297 mask=float mask_shape=203,297 dlse";
    const Report report = run_backward_case(device, fresh.get(), parse_case(text_of_backward));
    for (const std::string& failure : report.failures) FAIL_CHECK(failure);
    CHECK(report.segments > 12);  // uncut there are eight, with large tiles too
    for (const char* text : {"sq=1000000000 skv=1", "sq=60 skv=1 kernel=materialized"}) {
        VkattnPlan* plan = nullptr;
        VkattnError error;
        const Case c = parse_case(text);
        const VkattnOptions options = c.options();
        CAPTURE(std::string(text));
        CHECK(vkattn_plan_create(fresh.get(), &c.problem, &options, &plan, &error) == VKATTN_UNSUPPORTED);
        CHECK(error.message[0] != 0);
    }
}

TEST_CASE_FIXTURE(Recorded, "a plan for other lengths, batches, heads or bounds compiles nothing") {
    between.pretend = true;
    const Context fresh = between.context();
    const int pipelines = between.pipelines_asked_for(), modules = between.modules_created();
    const Plan first(fresh, parse_case("s=33").problem);
    CHECK(between.pipelines_asked_for() == pipelines + 1);
    for (const char* text :
         {"s=34", "b=300 sq=40 skv=9999", "b=7 s=33", "hq=12 hkv=4 s=133", "s=33 causal", "s=33 window=1,2",
          "s=33 scale=-1", "s=33 layout=bshd pad=1", "s=33 align=offset offset=-4", "s=0"})
        const Plan other(fresh, parse_case(text).problem);
    CHECK(between.pipelines_asked_for() == pipelines + 1);
    CHECK(between.modules_created() <= modules + 1);
    const Plan wider(fresh, parse_case("s=33 d=9").problem);
    CHECK(between.pipelines_asked_for() == pipelines + 2);
}

TEST_CASE_FIXTURE(Recorded, "a handful of pipelines do for all lengths, batches and heads") {
    between.pretend = true;
    const Context fresh = between.context();
    const int none = between.pipelines_asked_for();
    const auto sweep = [&](uint32_t odd) {
        for (const uint32_t length : {1u, 4u, 33u, 100u, 5000u})
            for (const char* heads : {"h=1", "hq=6 hkv=2", "b=7 hq=8 hkv=1", "b=64 hq=32 hkv=8"})
                for (const char* bounds : {"", "causal", "window=9,4"}) {
                    const auto text =
                        fmt::format("{} sq={} skv={} {}", heads, length + odd, 9 * length + odd, bounds);
                    const Plan plan(fresh, parse_case(text).problem);
                }
    };
    sweep(0);
    // Kernels for few rows and many, packed or not, in parts or not, and the merge.
    const int all = between.pipelines_asked_for();
    CHECK(all - none <= 12);
    for (const uint32_t odd : {2u, 3u, 11u}) sweep(odd);
    CHECK(between.pipelines_asked_for() - all <= 2);
}

TEST_CASE_FIXTURE(Recorded, "a driver that cannot build a pipeline gets the next tuning row") {
    const Case c = parse_case("s=33 causal");
    const std::string usual = tuning_row(Plan(context, c.problem));
    std::string told;
    const Context fresh = between.context([&](VkattnMessageLevel level, const char* text) {
        if (level == VKATTN_MESSAGE_WARNING) told += text;
    });
    int refusals = 1;
    between.before_pipeline = [&](const auto&) { return refusals-- > 0 ? VK_ERROR_UNKNOWN : VK_SUCCESS; };
    const int before = between.pipelines_asked_for();
    const std::string next = tuning_row(Plan(fresh, c.problem));
    CHECK(between.pipelines_asked_for() == before + 2);
    CHECK(next != usual);
    CHECK(told.starts_with(fmt::format("the tuning row {} is set aside, because this driver", usual)));
    // The row stays set aside: nothing is tried twice.
    CHECK(tuning_row(Plan(fresh, parse_case("s=34").problem)) == next);
    CHECK(between.pipelines_asked_for() == before + 2);
    run_in(between, fresh, c);
}

TEST_CASE_FIXTURE(Recorded, "a driver that cannot build a helper of all rows rejects none of them") {
    between.pretend = true;
    for (const auto& [helper, text, plain] :
         {std::tuple{"combine", "sq=3 skv=799 splits=4 kernel=tiles", "s=33"},
          {"mask_classes", "sq=403 skv=399 mask=bool mask_shape=403,399 mask_fill=banded", "sq=403 skv=399"},
          {"materialized", "s=33 kernel=materialized", "s=33"}}) {
        CAPTURE(std::string(helper));
        const Context fresh = between.context();
        const Case needs = parse_case(text), plain_case = parse_case(plain);
        const std::string usual = tuning_row(Plan(fresh, plain_case.problem));
        int refused = 0;
        between.before_pipeline = [&](std::string_view variant) {
            if (!variant.starts_with(helper)) return VK_SUCCESS;
            refused++;
            return VK_ERROR_UNKNOWN;
        };
        VkattnPlan* plan = nullptr;
        VkattnError error;
        const VkattnOptions options = needs.options();
        CHECK(vkattn_plan_create(fresh.get(), &needs.problem, &options, &plan, &error) ==
              VKATTN_DEVICE_ERROR);
        CHECK(plan == nullptr);
        CHECK(std::string(error.message).find(helper) != std::string::npos);
        CHECK(refused == 1);
        CHECK(fresh.get()->rejected_rows.empty());
        CHECK(tuning_row(Plan(fresh, plain_case.problem)) == usual);
        between.before_pipeline = nullptr;
    }
}

TEST_CASE_FIXTURE(Recorded, "of a backward, just the kernels that recompute tiles reject a row") {
    between.pretend = true;
    const VkattnProblem problem = parse_case("s=33 mask=float mask_shape=33,33").problem;
    VkattnBackward wanted = backward();
    wanted.dbias = 1;
    for (const auto& [failing, rejects] : {std::pair{"backward_delta", false},
                                           {"backward_query", true},
                                           {"backward_key_value", true},
                                           {"backward_mask", true}}) {
        CAPTURE(std::string(failing));
        const Context fresh = between.context();
        const std::string usual = tuning_row(Plan(fresh, problem, wanted));
        const Context other = between.context();
        int refused = 0;
        between.before_pipeline = [&](std::string_view variant) {
            return variant.starts_with(failing) && refused++ == 0 ? VK_ERROR_UNKNOWN : VK_SUCCESS;
        };
        VkattnPlan* plan = nullptr;
        VkattnError error;
        const VkattnStatus status =
            vkattn_backward_create(other.get(), &problem, &wanted, nullptr, &plan, &error);
        CHECK(status == (rejects ? VKATTN_OK : VKATTN_DEVICE_ERROR));
        vkattn_plan_destroy(plan);
        CHECK(refused == 1 + int{rejects});
        CHECK((tuning_row(Plan(other, problem, wanted)) == usual) == !rejects);
        between.before_pipeline = nullptr;
    }
}

TEST_CASE_FIXTURE(Recorded, "a device that can build no pipeline is an error with the VkResult") {
    const VkattnProblem problem = parse_case("s=33").problem;
    const int alive = between.objects_alive();
    const auto create = [&](const char* tuning) {
        const Context fresh = between.context();
        VkattnOptions o = options();
        o.tuning = tuning;
        VkattnPlan* plan = nullptr;
        VkattnError error;
        CHECK(vkattn_plan_create(fresh.get(), &problem, &o, &plan, &error) == error.status);
        CHECK(plan == nullptr);
        return error;
    };
    for (const VkResult result : {VK_ERROR_UNKNOWN, VK_ERROR_DEVICE_LOST}) {
        between.before_pipeline = [&](const auto&) { return result; };
        for (const char* tuning : {static_cast<const char*>(nullptr), "chunk=4,unroll=1"}) {
            const int before = between.pipelines_asked_for();
            const VkattnError error = create(tuning);
            CAPTURE(result);
            CAPTURE(error.message);
            CHECK(error.status ==
                  (result == VK_ERROR_DEVICE_LOST ? VKATTN_DEVICE_LOST : VKATTN_DEVICE_ERROR));
            CHECK(error.vk_result == result);
            CHECK(error.message[0] != 0);
            // A lost device, or a tuning that was asked for: nothing else is tried.
            if (tuning != nullptr || result == VK_ERROR_DEVICE_LOST)
                CHECK(between.pipelines_asked_for() == before + 1);
        }
    }
    CHECK(between.objects_alive() == alive);
}

TEST_CASE_FIXTURE(Recorded, "a range records a dispatch for each of its segments") {
    const Job job(context.get(), "b=2 hq=4 hkv=2 sq=97 skv=113 causal layout=bshd pad=1 max_flops=200000");
    const Forward forward = job.forward(device);
    const uint32_t segments = job.plan.segments();
    CHECK(segments > 1);
    CHECK(vkattn_plan_segments(nullptr) == 0);
    Recorder recorder(device);
    const VkCommandBuffer commands = recorder.begin();
    for (uint32_t i = 0; i < segments; i++) {
        between.take_commands();
        job.plan.cmd_forward(commands, forward.args(), i, 1);
        CHECK(count_of(between.take_commands(), Kind::dispatch) == 1);
    }
    recorder.end();
}
