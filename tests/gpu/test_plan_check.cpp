// vkattn_plan_check and its kin: the answers of the calls that make plans, without their pipelines.
#include <fmt/format.h>

#include <cstring>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "fixture.hpp"
#include "plan/plan.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

bool same(const VkattnPlanInfo& a, const VkattnPlanInfo& b) {
    return std::strcmp(a.kernel, b.kernel) == 0 && std::strcmp(a.tuning_row, b.tuning_row) == 0 &&
           a.segments == b.segments && a.num_splits == b.num_splits && a.scratch_bytes == b.scratch_bytes &&
           a.flops == b.flops && a.max_segment_flops == b.max_segment_flops;
}

bool same(const Seen& a, const Seen& b) {
    return a.returned == b.returned && a.field() == b.field() &&
           std::strcmp(a.error.message, b.error.message) == 0;
}

VkattnPlanInfo poisoned() {
    VkattnPlanInfo info;
    std::memset(&info, 0x55, sizeof info);
    info.struct_size = sizeof info;
    return info;
}

bool is_untouched(const VkattnPlanInfo& info) {
    const VkattnPlanInfo before = poisoned();
    return std::memcmp(&info, &before, sizeof info) == 0;
}

VkattnPlanInfo info_of(const VkattnPlan* plan) {
    VkattnPlanInfo info = poisoned();
    REQUIRE(vkattn_plan_info(plan, &info, nullptr) == VKATTN_OK);
    return info;
}

std::string json_field(const Plan& plan, const std::string& name) {
    const std::string text = plan.describe(), key = fmt::format("\"{}\":", name);
    const size_t begin = text.find(key) + key.size();
    return text.substr(begin, text.find_first_of(",}", begin) - begin);
}

// check(info) asks, create(plan) makes: both answer the same, and the first builds nothing.
template <class Check, class Create>
void compare_answers(Interposer& between, const Check& check, const Create& create) {
    VkattnPlanInfo info = poisoned();
    const int pipelines = between.pipelines_asked_for();
    const Seen asked = call([&](VkattnError* error) { return check(&info, error); });
    CHECK(same(asked, call([&](VkattnError* error) { return check(nullptr, error); })));
    CHECK(between.pipelines_asked_for() == pipelines);
    VkattnPlan* plan = nullptr;
    const Seen made = call([&](VkattnError* error) {
        vkattn_plan_destroy(plan);
        return create(&plan, error);
    });
    CAPTURE(made.error.message);
    CHECK(same(asked, made));
    if (plan == nullptr) return;
    CHECK(same(info, info_of(plan)));
    CHECK(info.segments == vkattn_plan_segments(plan));
    VkattnScratch scratch;
    vkattn_scratch_init(&scratch);
    CHECK(vkattn_plan_scratch(plan, &scratch, nullptr) == VKATTN_OK);
    CHECK(info.scratch_bytes == scratch.size_bytes);
    CHECK(info.max_segment_flops <= info.flops);
    const bool is_estimated = std::strcmp(info.kernel, VKATTN_KERNEL_MATERIALIZED) != 0;
    CHECK((info.max_segment_flops != 0) == (info.segments != 0 && is_estimated));
    vkattn_plan_destroy(plan);
}

}  // namespace

TEST_CASE_FIXTURE(Abi, "a check answers what making the plan answers, and builds nothing") {
    for (const char* text :
         {"s=33", "s=0", "b=2 hq=4 hkv=2 sq=97 skv=113 causal max_flops=2000000", "h=2 sq=7 skv=799 splits=4",
          "s=33 kernel=materialized", "s=33 kernel=materialized max_scratch=100", "s=33 dtype=f16 d=16",
          "s=33 kernel=matrix dtype=f16 d=16", "s=33 kernel=matrix", "s=33 kernel=none", "s=33 max_flops=1",
          "s=33 hq=3 hkv=2", "s=33 tuning=rows=3", "hq=8 hkv=2 sq=1 skv=300 d=64"}) {
        const Case wanted = parse_case(text, "here");
        const VkattnOptions options = wanted.options();
        CAPTURE(std::string(text));
        compare_answers(
            between,
            [&](VkattnPlanInfo* info, VkattnError* error) {
                return vkattn_plan_check(c, &wanted.problem, &options, info, error);
            },
            [&](VkattnPlan** plan, VkattnError* error) {
                return vkattn_plan_create(c, &wanted.problem, &options, plan, error);
            });
        const VkattnBackward gradients = backward_of(wanted);
        compare_answers(
            between,
            [&](VkattnPlanInfo* info, VkattnError* error) {
                return vkattn_backward_check(c, &wanted.problem, &gradients, &options, info, error);
            },
            [&](VkattnPlan** plan, VkattnError* error) {
                return vkattn_backward_create(c, &wanted.problem, &gradients, &options, plan, error);
            });
    }
    for (const uint32_t parts : {0u, 1u, 7u}) {
        VkattnCombine merge = combine();
        merge.num_parts = parts;
        merge.seqlen_q = 9;
        merge.head_dim_v = 8;
        compare_answers(
            between,
            [&](VkattnPlanInfo* info, VkattnError* error) {
                return vkattn_combine_check(c, &merge, info, error);
            },
            [&](VkattnPlan** plan, VkattnError* error) {
                return vkattn_combine_create(c, &merge, plan, error);
            });
    }
}

TEST_CASE_FIXTURE(Abi, "a plan's info is what its JSON says") {
    for (const char* text : {"s=33", "h=2 sq=7 skv=799 splits=4", "s=33 kernel=materialized",
                             "b=2 hq=4 hkv=2 sq=97 skv=113 causal max_flops=2000000"}) {
        const Case wanted = parse_case(text, "here");
        const Plan plan(c, wanted.problem, wanted.options());
        const VkattnPlanInfo info = plan.info();
        CAPTURE(std::string(text));
        CHECK(json_field(plan, "kernel") == fmt::format("\"{}\"", info.kernel));
        CHECK(json_field(plan, "tuning_row") == fmt::format("\"{}\"", info.tuning_row));
        CHECK(json_field(plan, "num_splits") == fmt::format("{}", info.num_splits));
        CHECK(json_field(plan, "scratch_bytes") == fmt::format("{}", info.scratch_bytes));
        CHECK(same(check(c, wanted.problem, wanted.options()), info));
    }
    VkattnProblem wrong = good_problem();
    wrong.num_heads_kv = 3;
    CHECK_THROWS_AS(check(c, wrong), Error);
    CHECK_THROWS_AS(check(c, wrong, backward()), Error);
    CHECK(std::string(check(c, good_problem(), backward()).kernel) == VKATTN_KERNEL_TILES);
    VkattnCombine merge = combine();
    merge.seqlen_q = 9;
    merge.head_dim_v = 8;
    CHECK(std::string(check(c, merge).kernel) == VKATTN_KERNEL_COMBINE);
}

TEST_CASE_FIXTURE(Abi, "a check names what is null or no struct of ours, and writes nothing then") {
    const VkattnProblem p = good_problem();
    VkattnPlanInfo info = poisoned();
    check_invalid(call(vkattn_plan_check, nullptr, &p, nullptr, &info), "context");
    check_invalid(call(vkattn_backward_check, nullptr, &p, nullptr, nullptr, &info), "context");
    const VkattnCombine merge = combine();
    check_invalid(call(vkattn_combine_check, nullptr, &merge, &info), "context");
    check_invalid(call(vkattn_plan_check, c, nullptr, nullptr, &info), "problem");
    check_invalid(call(vkattn_combine_check, c, nullptr, &info), "combine");
    CHECK(is_untouched(info));
    for (const size_t size : {size_t{0}, sizeof info - 8, sizeof info + 8}) {
        info.struct_size = size;
        check_invalid(call(vkattn_plan_check, c, &p, nullptr, &info), "info.struct_size");
        check_invalid(call(vkattn_backward_check, c, &p, nullptr, nullptr, &info), "info.struct_size");
    }
    info.struct_size = sizeof info;
    CHECK(is_untouched(info));
    const Plan plan(c, p);
    check_invalid(call(vkattn_plan_info, nullptr, &info), "plan");
    check_invalid(call(vkattn_plan_info, static_cast<const VkattnPlan*>(plan.get()), nullptr), "info");
    VkattnPlanInfo zeros;
    vkattn_plan_info_init(&zeros);
    CHECK(zeros.struct_size == sizeof zeros);
    CHECK(zeros.kernel[0] == 0);
    CHECK(zeros.segments == 0);
    vkattn_plan_info_init(nullptr);
}

TEST_CASE_FIXTURE(Abi, "a tuning row that the driver has refused is not planned by a check either") {
    const VkattnProblem p = good_problem();
    const std::string usual = check(c, p).tuning_row;
    int refusals = 1;
    between.before_pipeline = [&](const auto&) { return refusals-- > 0 ? VK_ERROR_UNKNOWN : VK_SUCCESS; };
    const std::string next = Plan(c, p).info().tuning_row;
    between.before_pipeline = nullptr;
    CHECK(next != usual);
    CHECK(check(c, p).tuning_row == next);
}

TEST_CASE("the header's names of kernels are the planner's") {
    const std::vector<std::string> forward = {
        VKATTN_KERNEL_ROWS_DOT,   VKATTN_KERNEL_MATRIX_ROWS, VKATTN_KERNEL_ROWS,  VKATTN_KERNEL_MATRIX,
        VKATTN_KERNEL_MATRIX_KHR, VKATTN_KERNEL_TILES_DOT,   VKATTN_KERNEL_TILES, VKATTN_KERNEL_MATERIALIZED};
    CHECK(core::kernel_names() == forward);
}
