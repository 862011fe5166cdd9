// The planner on every profile and many problems: what it plans can run, covers the work, and synchronises
// it.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan_flaws.hpp"
#include "plan_reading.hpp"

#ifdef VULKAN_CORE_H_
#error "the planner must not see Vulkan"
#endif

using namespace vkattn;
using namespace vkattn::test;

TEST_CASE("plan: odd strides that are never taken change nothing, wide loads included") {
    for (const Profile& device : usable_devices())
        for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16})
            for (const Shape& shape : {Shape{1, 4, 1, 97, 113}, {1, 1, 1, 97, 113}, {3, 4, 1, 1, 113}}) {
                VkattnProblem p = make_problem(d64, shape, Layout::contiguous, 16, dtype);
                const Problem plain = resolved(p);
                if (p.batch == 1)
                    p.query_strides.batch = p.key_strides.batch = p.value_strides.batch =
                        p.out_strides.batch = 7777777;
                if (p.num_heads_kv == 1) p.key_strides.head = p.value_strides.head = 77777;
                if (p.num_heads_q == 1) p.query_strides.head = p.out_strides.head = 77777;
                if (p.seqlen_q == 1) p.query_strides.seq = p.out_strides.seq = 777;
                const Problem odd = resolved(p);
                const Plan plan = planned(device.caps, odd);
                INFO(device.name);
                CHECK_EQ(difference(planned(device.caps, plain), plan), "");
                bool wide = false;
                for (const core::Pipeline& pipeline : plan.pipelines)
                    if (pipeline.of_tuning_row) wide = core::constant_of(pipeline, "load_bytes") >= 8;
                CHECK(wide);
                CHECK_EQ(difference(planned(device.caps, plain, make_backward(plain)),
                                    planned(device.caps, odd, make_backward(odd))),
                         "");
            }
}

TEST_CASE("plan: constants, so pipelines, depend on neither lengths nor counts") {
    // What decides which pipelines are built, but for parts of the keys, which are merged by one more.
    const auto built = [](const Plan& plan) {
        std::set<std::pair<core::Module, Values>> all;
        for (const core::Pipeline& pipeline : plan.pipelines) {
            Values values = constants_of(pipeline);
            values.erase("is_split");
            if (kind_of(pipeline) != Kind::combine) all.emplace(pipeline.module, values);
        }
        return all;
    };
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : all_head_dims())
            for (const bool backward : {false, true}) {
                const auto plan_of = [&](const Problem& p) {
                    return backward ? planned(device.caps, p, make_backward(p)) : planned(device.caps, p);
                };
                const Plan first = plan_of(resolved(make_problem(dims, square(1, 1, 1000))));
                for (const Shape& shape :
                     {Shape{3, 6, 2, 597, 1025, true}, Shape{1, 8, 1, 1025, 97, false, 16, 3},
                      Shape{70000, 1, 1, 300, 7}, Shape{1, 1, 1, 6553, 1}}) {
                    const Problem p = resolved(make_problem(dims, shape, Layout::bshd));
                    const Plan other = plan_of(p);
                    flaws.add(built(first) == built(other) ? "" : "pipelines", device.name, p);
                    flaws.add(first.tuning_row == other.tuning_row ? "" : "row", device.name, p);
                }
            }
}

TEST_CASE("plan: scratch stays within options.max_scratch_bytes") {
    Flaws flaws;
    const DeviceCaps& caps = profile("nvidia_h200");
    for (const Layout layout : {Layout::contiguous, Layout::wide})
        for (const uint32_t seqlen : {1u, 4u, 97u, 1025u}) {
            const Problem p = resolved(make_problem(d64, square(3, 5, seqlen), layout));
            const uint64_t matrix = matrix_bytes(p);
            for (const uint64_t limit :
                 {uint64_t{1}, matrix - 1, matrix, matrix + 255, matrix + 512, 4 * matrix, 7 * matrix + 300,
                  15 * matrix, 16 * matrix, 1000 * matrix}) {
                Options options = kernel("materialized");
                options.max_scratch_bytes = limit;
                const auto plan = make_plan(caps, p, options);
                if (plan) {
                    const bool fits = plan->scratch_bytes <= limit;
                    flaws.add(fits ? "" : "more scratch than allowed", fmt::format("limit {}", limit), p);
                    CHECK_EQ(flaw_of(caps, p, *plan), "");
                    continue;
                }
                INFO(to_text(p) << ", limit " << limit);
                CHECK_EQ(plan.failure().status, VKATTN_UNSUPPORTED);
                CHECK_NE(plan.failure().message.find("scratch"), std::string::npos);
                CHECK_LT(limit, matrix + 512);  // a matrix and the argument block, each rounded up to 256
            }
        }
}

TEST_CASE("plan: constants of scores are right for every finite scale and softcap") {
    Flaws flaws;
    constexpr float most = std::numeric_limits<float>::max(),
                    least = std::numeric_limits<float>::denorm_min();
    for (const float scale : {0.0f, 1.0f, -1.0f, 1e30f, 2.3e38f, -2.3e38f, 1.2e-38f})
        for (const float softcap : {0.0f, 1.0f, 30.0f, 1e-30f, least, most}) {
            VkattnProblem given = make_problem(d64, square(1, 1, 8));
            given.softmax_scale = scale;
            given.softcap = softcap;
            const Plan plan = planned(profile("lavapipe"), resolved(given));
            flaws.add(flaw_of(profile("lavapipe"), plan.problem, plan),
                      fmt::format("scale {}, softcap {}", scale, softcap), plan.problem);
        }
}

TEST_CASE("plan: describe says in JSON what the plan holds") {
    for (const char* name : {"tiles", "materialized"}) {
        const Problem p = resolved(make_problem(d64, square(2, 3, 97), Layout::wide));
        const Plan plan = planned(profile("intel_dg2"), p, kernel(name));
        const auto json = nlohmann::json::parse(core::describe(plan));
        CHECK_EQ(json.at("kernel"), name);
        CHECK_EQ(json.at("tuning_row"), plan.tuning_row);
        CHECK_EQ(json.at("tuning"), plan.tuning);
        CHECK_EQ(json.at("scratch_bytes"), plan.scratch_bytes);
        CHECK_EQ(json.at("num_splits"), plan.num_splits);
        CHECK_EQ(json.at("tiles").at("tile_q"), plan.tiles.tile_q);
        CHECK_EQ(json.at("tiles").at("tile_kv"), plan.tiles.tile_kv);
        CHECK_EQ(json.at("tiles").at("threads"), plan.tiles.threads);
        CHECK_EQ(json.at("tiles").at("shared_bytes"), plan.tiles.shared_bytes);
        REQUIRE_EQ(json.at("dispatches").size(), plan.dispatches.size());
        for (size_t i = 0; i < plan.dispatches.size(); i++) {
            const auto& d = json.at("dispatches").at(i);
            CHECK_EQ(d.at("variant"), name_of(pipeline_of(plan, plan.dispatches[i])));
            CHECK_EQ(d.at("groups"), plan.dispatches[i].groups);
            CHECK_EQ(d.at("barrier_before"), plan.dispatches[i].barrier_before);
            CHECK_EQ(d.at("flops"), plan.dispatches[i].flops);
        }
        CHECK_EQ(json.at("refused").size(), core::kernel_names().size() - 1);
    }
}
