// Builds that VKATTN_KERNELS leaves kernels out of (test_plan_choices.cpp tells what is chosen without each of them). Without VKATTN_CPU_FORMS it takes the forms of modules that there are.
#include <doctest/doctest.h>

#include <algorithm>

#include "plan/matrix.hpp"
#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Kernel;

namespace {

DeviceCaps without(DeviceCaps caps, Kernel kernel) {
    caps.missing_kernels |= 1u << static_cast<uint32_t>(kernel);
    return caps;
}

// A problem with many query rows, or with one; with one, many keys are split on large devices.
Problem problem_of(uint32_t seqlen_q, VkattnDtype dtype = VKATTN_DTYPE_FLOAT32) {
    return resolved(make_problem({64, 64}, {1, 2, 1, seqlen_q, 16384}, Layout::contiguous, 16, dtype));
}

// The message of a refusal; "planned" if there is none.
std::string message_of(const core::Result<Plan>& plan) {
    if (plan) return "planned";
    CHECK_EQ(plan.failure().status, VKATTN_UNSUPPORTED);
    return plan.failure().message;
}

}  // namespace

TEST_CASE("missing kernels: keys are not split where nothing can merge the parts") {
    const DeviceCaps& h200 = profile("nvidia_h200");
    const DeviceCaps none = without(h200, Kernel::combine);
    const Problem one = problem_of(1);
    CHECK_GT(make_plan(h200, one, Options{})->num_splits, 1);
    const auto whole = make_plan(none, one, Options{});
    REQUIRE(whole);
    CHECK_EQ(whole->kernel, "rows");
    CHECK_EQ(whole->num_splits, 1);
    CHECK_EQ(flaw_of(none, one, *whole), "");
    Options asked;
    asked.num_splits = 4;
    CHECK_EQ(message_of(make_plan(none, one, asked)), "this build has no combine");
    VkattnCombine given = core::default_combine();
    given.num_parts = given.batch = given.num_heads = given.seqlen_q = 2;
    given.head_dim_v = 64;
    const auto combine = core::resolve(given);
    REQUIRE(combine);
    CHECK_EQ(message_of(make_plan(h200, *combine)), "planned");
    CHECK_EQ(message_of(make_plan(none, *combine)), "this build has no combine");
}

TEST_CASE("missing kernels: matrix units are not probed") {
    const DeviceCaps& h200 = matrix_device("nvidia_h200");
    CHECK_GT(core::probe_size(h200), 0);
    DeviceCaps unprobed = without(h200, Kernel::probe_matrix);
    CHECK_EQ(core::probe_size(unprobed), 0);
    core::note_probe(unprobed, nullptr);
    CHECK_EQ(unprobed.matrices.size(), h200.matrices.size());
}

TEST_CASE("missing CPU forms: a CPU runs the modules for GPUs, and the plan says so") {
    const DeviceCaps& with = matrix_device("lavapipe");
    DeviceCaps without_forms = with;
    without_forms.missing_cpu_forms = without_forms.missing_matrix_cpu_forms = true;
    DeviceCaps without_matrix = with;
    without_matrix.missing_matrix_cpu_forms = true;
    const auto is_rolled = [](const core::Result<Plan>& plan) {
        REQUIRE(plan);
        const auto of_cpus = [](const core::Pipeline& p) { return p.rolled; };
        const bool rolled = std::ranges::any_of(plan->pipelines, of_cpus);
        CHECK_NE(plan->tuning.find(rolled ? "rolled=1" : "rolled=0"), std::string::npos);
        return rolled;
    };
    for (const char* const kernel : {"tiles", "rows", "matrix"}) {
        CAPTURE(kernel);
        Options options;
        options.kernel = kernel;
        const Problem problem = problem_of(options.kernel == "rows" ? 1 : 512, VKATTN_DTYPE_FLOAT16);
        const core::Backward backward = make_backward(problem);
        CHECK(is_rolled(make_plan(with, problem, options)));
        CHECK_FALSE(is_rolled(make_plan(without_forms, problem, options)));
        CHECK_EQ(is_rolled(make_plan(without_matrix, problem, options)), options.kernel != "matrix");
        if (options.kernel != "rows") {
            CHECK(is_rolled(make_plan(with, problem, backward, options)));
            CHECK_FALSE(is_rolled(make_plan(without_forms, problem, backward, options)));
        }
        options.tuning = options.kernel == "matrix" ? "rolled=1" : "rolled=1,prefetch=0";
        CHECK(is_rolled(make_plan(with, problem, options)));
        CHECK_EQ(message_of(make_plan(without_forms, problem, options)),
                 "rolled = 1: this build has no forms for CPUs");
    }
}
