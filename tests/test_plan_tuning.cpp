// Tuning: rows of the table, numbers of one's own, and builds that have not all kernels.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "device_tests/probe.hpp"
#include "plan/matrix.hpp"
#include "plan/tuning.hpp"
#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;

// No property of Vulkan tells Adreno's registers; the names are those of Turnip and of Qualcomm's driver.
TEST_CASE("tuning: Adreno's rows follow the model's registers, under Turnip") {
    using enum core::DeviceKind;
    core::DeviceCaps caps = profile("adreno_740");
    for (const auto& [name, kind] :
         std::map<std::string, core::DeviceKind>{{"Turnip Adreno (TM) 610", adreno_few},
                                                 {"Turnip Adreno (TM) 618", adreno},
                                                 {"Turnip Adreno (TM) 643", adreno_few},
                                                 {"Turnip Adreno (TM) 650", adreno_few},
                                                 {"Turnip Adreno (TM) 690", adreno_few},
                                                 {"Turnip Adreno (TM) 702", adreno_few},
                                                 {"Adreno (TM) 830", adreno},
                                                 {"Turnip Adreno X1-85", adreno},
                                                 {"", adreno_few}}) {
        CAPTURE(name);
        caps.name = name;
        caps.driver_id = core::driver_turnip;
        CHECK(core::kind_of(caps) == kind);
        caps.driver_id = 8;  // VK_DRIVER_ID_QUALCOMM_PROPRIETARY
        CHECK(core::kind_of(caps) == any);
    }
}

namespace {

// Rows of the portable kernels: which kernels of which direction have them, with 16-bit dot products or without.
struct RowsOf {
    core::KernelKind kind;
    bool backward, dot;
    std::vector<const char*> kernels;
};
const RowsOf all_rows[] = {{core::KernelKind::tiles, false, false, {"tiles", "rows"}},
                           {core::KernelKind::tiles_dot, false, true, {"tiles_dot", "rows_dot"}},
                           {core::KernelKind::backward, true, false, {"tiles"}},
                           {core::KernelKind::backward_dot, true, true, {"tiles_dot"}}};

// Names of rows that some device has for some problem, first or, of the backward, where drivers fail after others.
std::set<std::string> chosen_rows(const RowsOf& of) {
    std::set<std::string> chosen;
    for (const Profile& device : usable_devices()) {
        DeviceCaps caps = device.caps;
        if (of.dot) caps.storage_16bit = caps.dot_float16 = true;
        for (uint32_t dim = 1; dim <= VKATTN_MAX_HEAD_DIM; dim += of.backward ? 63 : 1)
            for (const uint32_t seqlen : {4u, 8u, 9u}) {
                const Problem p =
                    resolved(make_problem({dim, dim}, square(1, 1, seqlen), Layout::contiguous, 16,
                                          of.dot ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_FLOAT32));
                for (const char* name : of.kernels) {
                    Options options = kernel(name);
                    const auto plan_of = [&] {
                        return of.backward ? make_plan(caps, p, make_backward(p), options)
                                           : make_plan(caps, p, options);
                    };
                    for (auto plan = plan_of(); plan; plan = plan_of()) {
                        chosen.insert(options.rejected_rows.emplace_back(plan->tuning_row));
                        if (!of.backward) break;
                    }
                }
            }
    }
    return chosen;
}

}  // namespace

TEST_CASE(
    "tuning: every row is well formed, used by some device, and its pool is what the shaders' maps come to") {
    for (const RowsOf& of : all_rows) {
        size_t count = 0;
        const core::TuningRow* rows = core::tuning_rows(of.kind, count);
        const std::set<std::string> chosen = chosen_rows(of);
        std::set<std::string> names;
        for (size_t i = 0; i < count; i++) {
            const core::TileNumbers& n = rows[i].numbers;
            INFO(std::string(rows[i].name));
            CHECK_EQ(numbers_flaw(n, of.backward, of.dot), "");
            CHECK_EQ(to_text(n), to_text(parse_numbers(to_text(n))));
            CHECK(names.insert(rows[i].name).second);
            CHECK_GE(rows[i].max_head_dim, 1);
            CHECK_LE(rows[i].max_head_dim, VKATTN_MAX_HEAD_DIM);
            CHECK_EQ(chosen.count(rows[i].name), 1);
            const auto of_few_rows = of.dot ? core::KernelKind::rows_dot : core::KernelKind::rows;
            const auto kind = n.of_rows_kernel() ? of_few_rows : of.kind;
            for (const uint32_t qk : {1u, 59u, rows[i].max_head_dim})
                for (const uint32_t v : {1u, 40u, rows[i].max_head_dim})
                    CHECK_EQ(
                        core::pool_vec4(n, resolved(make_problem({qk, v}, square(1, 1, 1))), kind),
                        of.backward ? pool_of_backward_maps(n, qk, v, of.dot) : pool_of_maps(n, v, of.dot));
        }
    }
}

// A device with rows of its own that ends up with another's runs, but slowly: nothing else would show it.
TEST_CASE("tuning: on real devices the first row for device and head dim fits") {
    using Device = core::DeviceKind;
    size_t count = 0;
    const core::TuningRow* rows = core::tuning_rows(core::KernelKind::tiles, count);
    Flaws flaws;
    for (const Profile& device : usable_devices()) {
        if (device.name == "smallest") continue;
        const auto& caps = device.caps;
        std::set<Device> kinds = {Device::any};
        if (caps.type == core::DeviceType::cpu) kinds.insert(Device::cpu);
        if (caps.vendor_id == 0x1002) kinds.insert({Device::many_registers, Device::amd});
        if (caps.vendor_id == 0x5143)
            kinds.insert(caps.name.ends_with("660") ? Device::adreno_few : Device::adreno);
        if (caps.vendor_id == 0x10de) kinds.insert({Device::many_registers, Device::nvidia});
        if (device.name == "nvidia_h200") kinds.insert(Device::nvidia_driver);
        const bool is_apple = caps.driver_id == core::driver_honeykrisp;
        if (is_apple) kinds.insert(Device::apple);
        for (uint32_t dim = 1; dim <= VKATTN_MAX_HEAD_DIM; dim++)
            for (const uint32_t seqlen : {1u, 8u, 100u}) {
                const auto* first = std::find_if(rows, rows + count, [&](const core::TuningRow& row) {
                    return kinds.contains(row.device) && dim <= row.max_head_dim && seqlen <= row.max_rows;
                });
                REQUIRE_NE(first, rows + count);
                const auto dtype =
                    is_apple ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_FLOAT32;  // see the next case
                const Problem p =
                    resolved(make_problem({dim, dim}, square(1, 1, seqlen), Layout::contiguous, 4, dtype));
                const std::string row = planned(device.caps, p).tuning_row;
                flaws.add(row == first->name ? "" : fmt::format("{} passed over for {}", first->name, row),
                          device.name, p);
            }
    }
}

TEST_CASE("tuning: a plan's tuning, fed back as an option, gives the same plan") {
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : all_head_dims())
            for (const uint32_t seqlen : {1u, 97u}) {
                const Problem p = resolved(make_problem(dims, {3, 6, 2, seqlen, 1025, true}, Layout::padded));
                const core::Backward b = make_backward(p);
                const Plan back = planned(device.caps, p, b);
                flaws.add(difference(back, planned(device.caps, p, b, tuning(back.tuning))), device.name, p);
                for (const char* name : {"auto", "materialized"}) {
                    const Plan plan = planned(device.caps, p, kernel(name));
                    Plan again = planned(device.caps, p, tuning(plan.tuning, name));
                    // Which kernel has such numbers is what the other was refused for.
                    if (again.kernel == plan.kernel) again.refused = plan.refused;
                    flaws.add(difference(plan, again), device.name, p);
                }
            }
}

TEST_CASE("tuning: a CPU too small for the rows of CPUs has those of others, as its own module") {
    DeviceCaps caps = profile("lavapipe");
    caps.max_shared_bytes = 16384;
    const Problem p = resolved(make_problem({576, 576}, square(1, 1, 100)));
    const Plan plan = planned(caps, p);
    CHECK_EQ(plan.tuning_row.substr(0, 5), "small");
    CHECK_EQ(parse_numbers(plan.tuning).rolled, 1);
    CHECK_EQ(parse_numbers(plan.tuning).prefetch, 0);
    CHECK_EQ(flaw_of(caps, p, plan), "");
}

TEST_CASE("tuning: numbers of one's own, one or all of them") {
    const Problem p = resolved(make_problem(d64, square(1, 1, 100)));
    const DeviceCaps& caps = profile("nvidia_h200");
    const core::TileNumbers row = parse_numbers(planned(caps, p).tuning);
    const Plan changed = planned(caps, p, tuning("prefetch=0"));
    core::TileNumbers expected = row;
    expected.prefetch = 0;
    CHECK_EQ(changed.tuning, core::to_text(expected));
    CHECK_EQ(flaw_of(caps, p, changed), "");

    for (const uint32_t threads : {1u, 8u, 32u, 96u, 256u, 1024u})
        for (const uint32_t lanes : {1u, 2u, 3u, 8u, 32u})
            for (const uint32_t blocks : {1u, 2u, 3u}) {
                if (threads % lanes != 0) continue;
                core::TileNumbers n = row;
                n.threads = threads;
                n.lanes = lanes;
                n.rows = 4;
                n.cols = 12 * blocks;
                n.p_blocks = blocks;
                n.chunk = 8;
                n.v_keys = n.unroll = 4;
                const auto plan = make_plan(caps, p, tuning(core::to_text(n)));
                INFO(core::to_text(n));
                CHECK_EQ(static_cast<bool>(plan), pool_of_maps(n, 64) * 16 <= caps.max_shared_bytes);
                if (plan) CHECK_EQ(plan->tuning, core::to_text(n));
                if (plan) CHECK_EQ(flaw_of(caps, p, *plan), "");
            }
}

TEST_CASE("tuning: of a backward, the larger head dim decides, and a device's own rows come before others'") {
    const std::map<std::string, std::string> own{
        {"nvidia_h200", "nvidia-"}, {"lavapipe", "cpu-"}, {"swiftshader", "cpu-"}};
    for (const Profile& device : usable_devices())
        for (uint32_t dim = 1; dim <= VKATTN_MAX_HEAD_DIM; dim++) {
            const auto row_of = [&](HeadDims dims) {
                const Problem p = resolved(make_problem(dims, square(1, 1, 100)));
                return planned(device.caps, p, make_backward(p)).tuning_row;
            };
            const std::string row = row_of({dim, dim});
            INFO(device.name << " " << dim << " " << row);
            if (own.contains(device.name)) CHECK(row.starts_with(own.at(device.name)));
            for (const HeadDims dims : {HeadDims{dim, 1}, HeadDims{1, dim}}) CHECK_EQ(row_of(dims), row);
        }
}

TEST_CASE("tuning: of a backward, numbers of one's own") {
    const Problem p = resolved(make_problem(d64, {2, 4, 2, 97, 113}));
    const core::Backward b = make_backward(p);
    const DeviceCaps& caps = profile("nvidia_h200");
    size_t planned_count = 0, refused = 0;
    for (const uint32_t threads : {8u, 32u, 96u, 256u})
        for (const uint32_t lanes : {1u, 2u, 8u, 32u})
            for (const uint32_t rows : {4u, 8u})
                for (const uint32_t cols : {4u, 8u, 16u})
                    for (const uint32_t v_keys : {2u, 4u, 16u}) {
                        if (threads % lanes != 0) continue;
                        core::TileNumbers n{threads, lanes, rows, cols, 16, 1, v_keys, 0, 2};
                        n.q_slices = 1 + v_keys % 3;
                        n.kv_slices = rows == 4 ? 1 : 2 * cols / 4;
                        const auto plan = make_plan(caps, p, b, tuning(core::to_text(n)));
                        INFO(core::to_text(n));
                        const bool fits = numbers_flaw(n, true).empty() &&
                                          pool_of_backward_maps(n, 64, 64) * 16 <= caps.max_shared_bytes;
                        CHECK_EQ(static_cast<bool>(plan), fits);
                        if (plan) CHECK_EQ(flaw_of(caps, p, b, *plan), "");
                        planned_count += static_cast<bool>(plan);
                        refused += !plan;
                    }
    CHECK_GT(planned_count, 30);
    CHECK_GT(refused, 30);
}

// Builds that VKATTN_KERNELS leaves kernels out of (test_plan_choices.cpp tells what is chosen without each of them),
// or that VKATTN_CPU_FORMS leaves without forms for CPUs.
namespace {

DeviceCaps without(DeviceCaps caps, core::Kernel kernel) {
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
    const DeviceCaps none = without(h200, core::Kernel::combine);
    const Problem one = problem_of(1);
    CHECK_GT(make_plan(h200, one, Options{})->num_splits, 1);
    const auto whole = make_plan(none, one, Options{});
    REQUIRE(whole);
    CHECK_EQ(whole->kernel, "rows");
    CHECK_EQ(whole->num_splits, 1);
    CHECK_EQ(flaw_of(none, one, *whole), "");
    VkattnCombine given = core::default_combine();
    given.num_parts = given.batch = given.num_heads = given.seqlen_q = 2;
    given.head_dim_v = 64;
    const auto combine = core::resolve(given);
    REQUIRE(combine);
    CHECK_EQ(message_of(make_plan(h200, *combine)), "planned");
    CHECK_EQ(message_of(make_plan(none, *combine)), "this build has no combine");
}

TEST_CASE("missing kernels: matrix units are not probed, nor without full subgroups") {
    const DeviceCaps& h200 = matrix_device("nvidia_h200");
    CHECK_GT(core::probe_size(h200), 0);
    DeviceCaps partial = h200;
    partial.full_subgroups = false;
    CHECK_EQ(core::probe_size(partial), 0);
    DeviceCaps unprobed = without(h200, core::Kernel::probe_matrix);
    CHECK_EQ(core::probe_size(unprobed), 0);
    core::note_probe(unprobed, nullptr);
    CHECK_EQ(unprobed.matrices.size(), h200.matrices.size());
}

TEST_CASE("missing CPU forms: a CPU runs the modules for GPUs but for matrix units, and the plan says so") {
    const DeviceCaps& with = matrix_device("lavapipe");
    DeviceCaps without_forms = with;
    without_forms.missing_cpu_forms = without_forms.missing_matrix_cpu_forms = true;
    DeviceCaps without_matrix = with;
    without_matrix.missing_matrix_cpu_forms = true;
    const auto is_rolled = [](const core::Result<Plan>& plan) {
        REQUIRE(plan);
        const auto of_cpus = [](const core::Pipeline& p) { return p.module.has(core::macros::ROLLED); };
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
        if (options.kernel != "rows") CHECK(is_rolled(make_plan(with, problem, backward, options)));
        if (options.kernel == "matrix") {
            constexpr const char* why = "this build has no form of it for CPUs (VKATTN_CPU_FORMS)";
            for (const DeviceCaps& caps : {without_forms, without_matrix}) {
                CHECK_EQ(message_of(make_plan(caps, problem, options)), why);
                CHECK_EQ(message_of(make_plan(caps, problem, backward, options)), why);
            }
            DeviceCaps gpu = without_forms;
            gpu.type = core::DeviceType::discrete;
            CHECK_FALSE(is_rolled(make_plan(gpu, problem, options)));
        } else {
            CHECK_FALSE(is_rolled(make_plan(without_forms, problem, options)));
            CHECK(is_rolled(make_plan(without_matrix, problem, options)));
            if (options.kernel != "rows")
                CHECK_FALSE(is_rolled(make_plan(without_forms, problem, backward, options)));
        }
        options.tuning = options.kernel == "matrix" ? "rolled=1" : "rolled=1,prefetch=0";
        CHECK(is_rolled(make_plan(with, problem, options)));
        CHECK_EQ(message_of(make_plan(without_forms, problem, options)),
                 "rolled = 1: this build has no forms for CPUs");
    }
}
