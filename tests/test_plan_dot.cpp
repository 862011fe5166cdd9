// The kernels with 16-bit dot products: on which devices and problems the planner takes them, and that what it plans
// with them holds.
#include <doctest/doctest.h>

#include <set>

#include <fmt/format.h>

#include "plan/self_test.hpp"
#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr VkattnDtype f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16, f32 = VKATTN_DTYPE_FLOAT32;

Problem many_rows(VkattnDtype dtype, HeadDims dims = d128) {
    return resolved(make_problem(dims, square(1, 2, 300), Layout::contiguous, 16, dtype));
}

Problem few_rows(VkattnDtype dtype, HeadDims dims = d128) {
    return resolved(make_problem(dims, {1, 4, 1, 1, 300}, Layout::contiguous, 16, dtype));
}

Options of_dots(const char* tuning_text = "") {
    return tuning(tuning_text, "tiles_dot");
}

// The device, as if it had 16-bit dot products of both types.
DeviceCaps with_dots(DeviceCaps caps) {
    caps.storage_16bit = caps.dot_float16 = caps.dot_bfloat16 = true;
    return caps;
}

std::string forward_module(const Plan& plan) {
    return std::string(core::name_of(plan.pipelines.at(0).module));
}

std::string refusal_of(const DeviceCaps& caps, const Problem& p, const Options& options) {
    const auto plan = make_plan(caps, p, options);
    return plan ? "planned" : plan.failure().message;
}

std::string backward_refusal_of(const DeviceCaps& caps, const Problem& p, const Options& options) {
    const auto plan = make_plan(caps, p, make_backward(p), options);
    return plan ? "planned" : plan.failure().message;
}

std::set<std::string> modules_of(const Plan& plan) {
    std::set<std::string> modules;
    for (const core::Pipeline& pipeline : plan.pipelines) modules.emplace(core::name_of(pipeline.module));
    return modules;
}

}  // namespace

TEST_CASE("dot products: float16 problems take them where a device has them and no matrix unit") {
    const DeviceCaps& navi21 = profile("amd_navi21");
    CHECK(navi21.dot_float16);
    CHECK_FALSE(navi21.dot_bfloat16);
    const Plan plan = planned(navi21, many_rows(f16));
    CHECK_EQ(plan.kernel, "tiles_dot");
    CHECK_EQ(forward_module(plan), "forward_tiles_f16_dot");
    CHECK(plan.operands == f16);
    CHECK_EQ(planned(navi21, few_rows(f16)).kernel, "rows_dot");
    CHECK_EQ(forward_module(planned(navi21, few_rows(f16))), "forward_rows_f16_dot");
    CHECK_EQ(planned(navi21, few_rows(bf16)).kernel, "rows");
    CHECK_EQ(planned(navi21, few_rows(f32)).kernel, "rows");
    CHECK_EQ(planned(navi21, many_rows(bf16)).kernel, "tiles");
    CHECK_EQ(planned(navi21, many_rows(f32)).kernel, "tiles");
    CHECK_EQ(planned(matrix_device("amd_gfx1201"), many_rows(f16)).kernel, "matrix");
    CHECK_EQ(forward_module(planned(matrix_device("amd_gfx1201"), many_rows(bf16), of_dots())),
             "forward_tiles_bf16_dot");
    CHECK_EQ(planned(with_dots(profile("lavapipe")), many_rows(f16)).kernel, "tiles");
    CHECK_EQ(planned(with_dots(profile("lavapipe")), many_rows(f16), of_dots()).kernel, "tiles_dot");
}

TEST_CASE("dot products: the backward of 16-bit problems takes them likewise, dbias too") {
    const DeviceCaps& navi21 = profile("amd_navi21");
    const auto backward = [](const DeviceCaps& caps, const Problem& p, const Options& options = {}) {
        return planned(caps, p, make_backward(p), options);
    };
    VkattnProblem asked = make_problem(d128, square(1, 2, 300), Layout::contiguous, 16, f16);
    set_mask(asked, VKATTN_MASK_FLOAT, MaskShape::whole);
    const Plan plan = backward(navi21, resolved(asked));
    CHECK_EQ(plan.kernel, "tiles_dot");
    CHECK(plan.operands == f16);
    const std::set<std::string> modules = modules_of(plan);
    for (const char* name : {"backward_delta_f16", "backward_query_f16_dot", "backward_key_value_f16_dot",
                             "backward_mask_f16_dot"})
        CHECK(modules.contains(name));
    CHECK_EQ(backward(navi21, few_rows(f16)).kernel, "tiles_dot");
    CHECK_EQ(backward(navi21, many_rows(bf16)).kernel, "tiles");
    CHECK_EQ(backward(navi21, many_rows(f32)).kernel, "tiles");
    CHECK_EQ(backward(matrix_device("amd_gfx1201"), many_rows(f16, d64)).kernel, "matrix");
    // Before a probe it has rows of 64 head dims only.
    CHECK_EQ(backward(matrix_device("amd_gfx1201"), many_rows(f16)).kernel, "tiles_dot");
    CHECK(modules_of(backward(matrix_device("amd_gfx1201"), many_rows(bf16), of_dots()))
              .contains("backward_query_bf16_dot"));
    CHECK_EQ(backward(with_dots(profile("lavapipe")), many_rows(f16)).kernel, "tiles");
    CHECK_EQ(backward(with_dots(profile("lavapipe")), many_rows(f16), of_dots()).kernel, "tiles_dot");
}

TEST_CASE("dot products: refusals of the backward name what is missing") {
    const DeviceCaps& navi21 = profile("amd_navi21");
    CHECK_EQ(backward_refusal_of(navi21, many_rows(f32), of_dots()),
             "its products are of 16-bit types, not float32");
    CHECK_EQ(backward_refusal_of(navi21, many_rows(bf16), of_dots()),
             "the device has no 16-bit dot products of bfloat16");
    const Problem one_key = resolved(make_problem(d64, {1, 1, 1, 300, 1}, Layout::contiguous, 16, f16));
    CHECK_EQ(backward_refusal_of(navi21, one_key, of_dots()),
             "rows see one key at most, whose dS is exactly dlse");
    CHECK_EQ(planned(navi21, one_key, make_backward(one_key)).kernel, "tiles");
    for (const auto& [numbers, why] : std::initializer_list<std::pair<const char*, const char*>>{
             {"threads=32,lanes=4,rows=4,cols=8,p_blocks=2,v_keys=2,chunk=8,unroll=1", "planned"},
             {"v_keys=1,unroll=1", "v_keys is not a multiple of 2, a pair of keys"},
             {"threads=16,lanes=1,rows=4,cols=16,p_blocks=4,v_keys=4,chunk=8,unroll=1",
              "p_blocks does not divide the pairs of rows"},
             {"threads=32,lanes=16,rows=4,cols=4,p_blocks=1,v_keys=8,chunk=8,unroll=1",
              "the pairs of v_keys do not divide p_blocks * threads / lanes"}})
        CHECK_EQ(backward_refusal_of(navi21, many_rows(f16), of_dots(numbers)), why);
}

TEST_CASE("dot products: refusals name what is missing") {
    const DeviceCaps& navi21 = profile("amd_navi21");
    CHECK_EQ(refusal_of(navi21, many_rows(f32), of_dots()), "its products are of 16-bit types, not float32");
    Options rounded = of_dots();
    rounded.precision = VKATTN_PRECISION_FLOAT16;
    CHECK_EQ(refusal_of(navi21, many_rows(f32), rounded), "its products are of 16-bit types, not float32");
    CHECK_EQ(refusal_of(navi21, many_rows(bf16), of_dots()),
             "the device has no 16-bit dot products of bfloat16");
    CHECK_EQ(refusal_of(profile("nvidia_h200"), many_rows(f16), of_dots()),
             "the device has no 16-bit dot products of float16");
    DeviceCaps no_storage = navi21;
    no_storage.storage_16bit = false;  // which their modules need
    CHECK_EQ(forward_module(planned(no_storage, many_rows(f16))), "forward_tiles_f16_packed");
    CHECK_EQ(refusal_of(navi21, many_rows(f16), of_dots("chunk=8,unroll=8,v_keys=8")),
             "planned");  // a loop shorter than unroll is unrolled whole
    CHECK_EQ(refusal_of(navi21, many_rows(f16), of_dots("chunk=24,unroll=8")),
             "unroll does not divide the pairs of chunk and v_keys");
    CHECK_EQ(refusal_of(navi21, few_rows(f16), tuning("unroll=1", "rows_dot")),
             "unroll is not a multiple of 2, a pair of keys");
}

TEST_CASE("dot products: the self-test tests them, whose rounding is the device's") {
    const auto tests = core::pending_tests(profile("amd_navi21"));
    for (const char* name : {"tiles_dot", "rows_dot"})
        CHECK_EQ(std::ranges::count_if(tests,
                                       [&](const core::PlannedTest& test) {
                                           return !test.test.backward && test.verdict.kernel == name &&
                                                  test.verdict.dtype == f16 && test.verdict.operands == f16;
                                       }),
                 2);  // of normal numbers, and of subnormal ones
    CHECK_EQ(std::ranges::count_if(tests,
                                   [](const core::PlannedTest& test) {
                                       return test.test.backward && test.verdict.kernel == "tiles_dot" &&
                                              test.verdict.dtype == f16 && test.verdict.operands == f16;
                                   }),
             1);
}

// Matrix units take the self-test's shape there, and 16-bit dot products what they are too small for.
TEST_CASE("dot products: the self-test tests them beside matrix units") {
    for (const char* name : {"amd_navi31", "amd_gfx1201"}) {
        CAPTURE(name);
        const DeviceCaps caps = profile(name);
        const Problem p = many_rows(f16, {320, 320});
        const auto tests = core::pending_tests(caps);
        for (const Plan& plan : {planned(caps, p), planned(caps, p, make_backward(p))}) {
            CHECK_EQ(plan.kernel, "tiles_dot");
            const bool backward = plan.backward.has_value();
            CHECK_EQ(std::ranges::count_if(tests,
                                           [&](const core::PlannedTest& test) {
                                               return test.test.backward == backward &&
                                                      test.verdict.kernel == "tiles_dot" &&
                                                      test.verdict.dtype == f16;
                                           }),
                     backward ? 1 : 2);
        }
    }
}

// A driver that miscompiles them, or a device that computes otherwise, leaves the kernel without them.
TEST_CASE("dot products: where a self-test has failed, `tiles` follows") {
    const Problem p = many_rows(f16);
    DeviceCaps caps = profile("amd_navi21");
    caps.verdicts = {{true, "tiles_dot", f16, f16, "dkey[0] is 2 instead of 1"}};
    const Plan backward = planned(caps, p, make_backward(p));
    CHECK_EQ(backward.kernel, "tiles");
    CHECK(modules_of(backward).contains("backward_key_value_f16"));
    CHECK(backward.operands == f32);
    CHECK_EQ(planned(caps, p).kernel, "tiles_dot");
    // The forward's self-test, which has subnormal numbers, counts for both.
    caps.verdicts = {{false, "tiles_dot", f16, f16, "out[0] is 2 instead of 1"}};
    const Plan forward = planned(caps, p);
    CHECK_EQ(forward.kernel, "tiles");
    CHECK_EQ(forward_module(forward), "forward_tiles_f16");
    CHECK(forward.operands == f32);
    CHECK_EQ(planned(caps, p, make_backward(p)).kernel, "tiles");
    caps.verdicts = {{false, "rows_dot", f16, f16, "out[0] is 2 instead of 1"}};
    CHECK_EQ(planned(caps, p).kernel, "tiles_dot");
    CHECK_EQ(planned(caps, few_rows(f16)).kernel, "rows");
}

TEST_CASE("dot products: plans hold on every device, for all head dims, shapes and features") {
    Flaws flaws;
    size_t turn = 0;
    for (const Profile& device : usable_devices()) {
        const DeviceCaps caps = with_dots(device.caps);
        for (const HeadDims dims : all_head_dims())
            for (const VkattnDtype dtype : {f16, bf16}) {
                const Shape& shape = all_shapes()[++turn % all_shapes().size()];
                const Features& features = all_features()[turn % all_features().size()];
                const auto layout = static_cast<Layout>(turn % static_cast<size_t>(Layout::count));
                VkattnProblem asked = make_problem(dims, shape, layout, turn % 2 == 0 ? 16 : 2, dtype);
                set_features(asked, features);
                const Problem p = resolved(asked);
                if (is_heavy(p)) continue;
                Options options = options_of(features);
                for (const char* name : {"tiles_dot", "rows_dot"}) {
                    options.kernel = name;
                    const auto plan = make_plan(caps, p, options);
                    if (plan) flaws.add(flaw_of(caps, p, *plan, options), device.name, p);
                }
                options.kernel = "tiles_dot";
                const core::Backward b = make_backward(p, turn % 2 == 0);
                const auto backward = make_plan(caps, p, b, options);
                if (backward) flaws.add(flaw_of(caps, p, b, *backward, options), device.name, p);
            }
    }
}
