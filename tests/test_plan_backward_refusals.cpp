// Of the backward: what is refused, tuning rows, and numbers of one's own.
#include <doctest/doctest.h>

#include <set>

#include <fmt/format.h>

#include "plan/tuning.hpp"
#include "plan_flaws.hpp"
#include "plan_reading.hpp"
#include "problem_fields.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Backward;
using core::KernelKind;
using core::TileNumbers;

namespace {

Problem simple() {
    return resolved(make_problem(d64, {2, 4, 2, 97, 113}));
}

// The field that is wrong; "" if nothing is.
std::string bad_field(const Problem& p, void (*change)(VkattnBackward&)) {
    VkattnBackward b = core::default_backward();
    change(b);
    return field_of(core::resolve(p, b));
}

std::string refusal(const DeviceCaps& caps, const Problem& p, const Options& o) {
    const auto plan = make_plan(caps, p, make_backward(p), o);
    if (plan) return "planned";
    const core::Failure& f = plan.failure();
    return fmt::format("{} {}: {}", f.status == VKATTN_INVALID_ARGUMENT ? "INVALID" : "UNSUPPORTED", f.field,
                       f.message);
}

bool begins(const std::string& text, const std::string& with) {
    return text.compare(0, with.size(), with) == 0;
}

Options numbers(const TileNumbers& n) {
    return tuning(core::to_text(n));
}

}  // namespace

TEST_CASE("backward refusal: dbias of no float mask") {
    VkattnProblem p = make_problem(d64, {2, 4, 2, 9, 9});
    const auto dbias = [](VkattnBackward& b) { b.dbias = 1; };
    CHECK_EQ(bad_field(resolved(p), dbias), "backward.dbias");
    set_mask(p, VKATTN_MASK_BOOL, MaskShape::whole);
    CHECK_EQ(bad_field(resolved(p), dbias), "backward.dbias");
    set_mask(p, VKATTN_MASK_FLOAT, MaskShape::whole);
    CHECK_EQ(bad_field(resolved(p), dbias), "");
    CHECK_EQ(bad_field(resolved(p), [](VkattnBackward&) {}), "");
}

TEST_CASE(
    "backward refusal: strides that are too large, break the alignment, or make a gradient overlap itself") {
    using B = VkattnBackward;
    const Problem p = simple(),
                  aligned = resolved(make_problem(d64, {2, 4, 2, 97, 113}, Layout::contiguous, 16));
    const std::pair<const char*, VkattnStrides B::*> all[] = {
        {"backward.dout_strides", &B::dout_strides},
        {"backward.dquery_strides", &B::dquery_strides},
        {"backward.dkey_strides", &B::dkey_strides},
        {"backward.dvalue_strides", &B::dvalue_strides}};
    for (const auto& [name, strides] : all) {
        const std::string field = name;
        const bool input = strides == &B::dout_strides;
        const auto with = [&, at = strides](const Problem& problem, uint64_t VkattnStrides::*level,
                                            uint64_t stride) {
            VkattnBackward b = core::default_backward();
            b.*at.*level = stride;
            return field_of(core::resolve(problem, b));
        };
        INFO(field);
        for (const auto level : {&VkattnStrides::batch, &VkattnStrides::head, &VkattnStrides::seq}) {
            CHECK_EQ(with(p, level, uint64_t{1} << 61), field);
            CHECK_EQ(with(aligned, level, (uint64_t{1} << 22) + 2), field);
            CHECK_EQ(with(p, level, (uint64_t{1} << 22) + 2), "");
            CHECK_EQ(with(p, level, 0), input ? "" : field);
        }
        CHECK_EQ(with(p, &VkattnStrides::seq, 63), input ? "" : field);
        CHECK_EQ(with(p, &VkattnStrides::head, 64), input ? "" : field);
        CHECK_EQ(with(p, &VkattnStrides::batch, 64), input ? "" : field);
    }
}

TEST_CASE("backward refusal: options") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const Problem p = simple();
    Options o;
    o.num_splits = 2;
    CHECK(begins(refusal(caps, p, o), "INVALID options.num_splits: "));
    o.num_splits = 1;
    CHECK_EQ(refusal(caps, p, o), "planned");
    o.batch_invariant = true;
    CHECK_EQ(refusal(caps, p, o), "planned");
    for (const char* name : {"rows", "Materialized", "tile", "Tiles", " "})
        CHECK_EQ(refusal(caps, p, kernel(name)),
                 fmt::format("INVALID options.kernel: no kernel is named '{}'; there are: auto, matrix, "
                             "matrix_khr, tiles_dot, tiles, materialized",
                             name));
    for (const char* name : {"", "auto", "tiles"}) CHECK_EQ(refusal(caps, p, kernel(name)), "planned");
    o = {};
    o.max_dispatch_flops = 1000;
    CHECK(begins(refusal(caps, p, o), "UNSUPPORTED options.max_dispatch_flops: one workgroup may cost "));
    o.max_dispatch_flops = 250'000'000;
    const Problem long_one = resolved(make_problem(d64, {64, 32, 32, 65536, 4096}));
    const std::string why = refusal(caps, long_one, o);
    CHECK_MESSAGE(begins(why, "UNSUPPORTED options.max_dispatch_flops: this would take "), why);
}

TEST_CASE("backward refusal: devices") {
    const Problem p = simple();
    for (const Profile& device : profiles()) {
        INFO(device.name);
        const std::string why = refusal(device.caps, p, {});
        if (core::refuse_device(device.caps).empty())
            CHECK_EQ(why, "planned");
        else
            CHECK(begins(why, "UNSUPPORTED device: "));
    }
    DeviceCaps caps = smallest_device();
    caps.max_shared_bytes = 1024;
    CHECK_NE(refusal(caps, p, {}).find("bytes of shared memory, the device has 1024"), std::string::npos);
    caps = smallest_device();
    caps.max_invocations = 4;
    CHECK_NE(refusal(caps, p, {}).find("invocations, the device has 4"), std::string::npos);
}

TEST_CASE("backward refusal: more rows than the device can allocate statistics for") {
    DeviceCaps caps = profile("nvidia_h200");
    const Problem p = resolved(make_problem({1, 1}, {1, 64, 64, million, 1}));  // 1 GiB of them
    caps.max_buffer_bytes = (uint64_t{1} << 30) + 512;
    const Plan plan = planned(caps, p, make_backward(p));
    CHECK_EQ(plan.scratch_bytes, (uint64_t{1} << 30) + 512);
    CHECK_EQ(flaw_of(caps, p, make_backward(p), plan), "");
    caps.max_buffer_bytes--;
    CHECK_EQ(refusal(caps, p, {}),
             "UNSUPPORTED : 16 bytes of scratch for each of 67108864 query rows exceed the device's largest "
             "allocation of 1073742335");
    // As many rows as there can be: the product must not wrap.
    const Problem most = resolved(make_problem({1, 1}, {32768, 65535, 65535, 1u << 28, 1}));
    CHECK(begins(refusal(caps, most, {}), "UNSUPPORTED : "));
}

TEST_CASE("backward refusal: tuning numbers that do not go together") {
    const TileNumbers good = parse_numbers(
        "threads=64,lanes=8,rows=8,cols=16,chunk=16,p_blocks=2,v_keys=16,prefetch=0,unroll=8,rolled=0");
    const DeviceCaps& caps = profile("nvidia_h200");
    REQUIRE_EQ(refusal(caps, simple(), numbers(good)), "planned");
    const auto refused = [&](std::initializer_list<std::pair<uint32_t TileNumbers::*, uint32_t>> changes,
                             const char* says) {
        TileNumbers n = good;
        for (const auto& [field, value] : changes) n.*field = value;
        INFO(core::to_text(n));
        CHECK_NE(numbers_flaw(n, true), "");
        const std::string why = refusal(caps, simple(), numbers(n));
        CHECK(begins(why, "INVALID options.tuning: "));
        CHECK_NE(why.find(says), std::string::npos);
    };
    using N = TileNumbers;
    refused({{&N::lanes, 3}}, "multiple of lanes");
    refused({{&N::rows, 6}}, "multiples of 4");
    refused({{&N::cols, 18}}, "multiples of 4");
    refused({{&N::chunk, 10}}, "multiples of 4");
    refused({{&N::p_blocks, 3}}, "p_blocks does not divide");
    refused({{&N::v_keys, 24}}, "v_keys does not divide");
    refused({{&N::unroll, 3}}, "unroll does not divide");
    refused({{&N::prefetch, 2}}, "prefetch");
    refused({{&N::q_slices, 0}}, "q_slices = 0");
    refused({{&N::kv_slices, 0}}, "kv_slices = 0");
    refused({{&N::kv_slices, 3}}, "neither 1 nor even");
    refused({{&N::v_keys, 0}}, "v_keys = 0");
    // 128 keys in groups of 12; in 2 groups of 64 invocations' 3; 96 keys in 24 groups, which 64 invocations do not
    // fill.
    refused({{&N::rows, 12}}, "do not share");
    refused({{&N::cols, 12}, {&N::rows, 4}, {&N::p_blocks, 1}, {&N::v_keys, 8}}, "do not share");
    refused({{&N::cols, 64}, {&N::p_blocks, 16}}, "p_blocks does not divide rows");
    refused({{&N::v_keys, 32}}, "p_blocks * threads / lanes");
    const auto unknown = refusal(caps, simple(), tuning("speed=3"));
    CHECK(begins(unknown, "INVALID options.tuning: "));
}

TEST_CASE("backward refusal: tuning of matrix units that does not go together") {
    const DeviceCaps turned = probed_turned(matrix_device("amd_navi31"), true);
    const Problem p =
        resolved(make_problem(d64, {1, 2, 2, 97, 97}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16));
    const auto refused = [&](const char* numbers) { return refusal(turned, p, tuning(numbers, "matrix")); };
    CHECK_EQ(refused("q_v_staged=32"), "planned");
    // Once 40 was taken for 32, the whole steps in it.
    CHECK_EQ(refused("q_v_staged=40"), "INVALID options.tuning: q_v_staged is not a multiple of 16");
    CHECK_EQ(refused("turned=0,q_v_staged=32"), "INVALID options.tuning: q_v_staged goes with turned=1");
    // Once matrix_khr was turned, which takes no layout.
    CHECK(begins(refusal(turned, p, tuning("turned=1", "matrix_khr")),
                 "INVALID options.tuning: turned=1 needs the kernel"));
}

TEST_CASE("backward tuning: float32 without a mask has a row of its own under NVK") {
    const DeviceCaps caps = matrix_device("nvk_ampere");
    VkattnProblem text = make_problem({128, 128}, {1, 2, 2, 97, 97}, Layout::contiguous, 16);
    const auto row_of = [&] {
        const Problem p = resolved(text);
        Options o = tuning("", "matrix");
        if (text.dtype == VKATTN_DTYPE_FLOAT32) o.precision = VKATTN_PRECISION_FLOAT16;
        const auto plan = make_plan(caps, p, make_backward(p), o);
        return plan ? plan->tuning_row : plan.failure().message;
    };
    CHECK_EQ(row_of(), "nvk-backward-d128-f32");
    set_mask(text, VKATTN_MASK_BOOL, MaskShape::whole);
    CHECK_EQ(row_of(), "nvk-backward-matrix-d128");
    text = make_problem({128, 128}, {1, 2, 2, 97, 97}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16);
    CHECK_EQ(row_of(), "nvk-backward-matrix-d128");
}

TEST_CASE("backward refusal: tuning too large for the device") {
    for (const Profile& device : usable_devices()) {
        INFO(device.name);
        CHECK(begins(refusal(device.caps, simple(), tuning("threads=4096")), "UNSUPPORTED options.tuning: "));
        CHECK(begins(refusal(device.caps, simple(), tuning("chunk=4096")), "UNSUPPORTED options.tuning: "));
    }
    const TileNumbers n = parse_numbers(
        "threads=128,lanes=8,rows=4,cols=4,chunk=16,p_blocks=1,v_keys=16,prefetch=0,unroll=2,rolled=0");
    DeviceCaps caps = smallest_device();
    caps.max_shared_bytes = pool_of_backward_maps(n, 64, 64) * 16;
    CHECK_EQ(refusal(caps, simple(), numbers(n)), "planned");
    caps.max_shared_bytes--;
    CHECK(begins(refusal(caps, simple(), numbers(n)), "UNSUPPORTED options.tuning: "));
}

TEST_CASE("backward tuning: there is a row for every device and head dim") {
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (uint32_t dim = 1; dim <= VKATTN_MAX_HEAD_DIM; dim++)
            for (const HeadDims dims : {HeadDims{dim, dim}, HeadDims{1, dim}, HeadDims{dim, 64}}) {
                const Problem p = resolved(make_problem(dims, square(1, 1, 100)));
                const auto plan = make_plan(device.caps, p, make_backward(p), {});
                flaws.add(plan ? "" : plan.failure().message, device.name, p);
            }
}

TEST_CASE("backward tuning: the larger head dim decides, and a device's own rows come before others'") {
    for (const char* name : {"nvidia_h200", "lavapipe", "swiftshader"}) {
        const std::string own = profile(name).type == core::DeviceType::cpu ? "cpu-" : "nvidia-";
        for (uint32_t dim = 1; dim <= VKATTN_MAX_HEAD_DIM; dim++)
            for (const HeadDims dims : {HeadDims{dim, 1}, HeadDims{1, dim}}) {
                const Problem p = resolved(make_problem(dims, square(1, 1, 100)));
                const Plan plan = planned(profile(name), p, make_backward(p));
                INFO(name << " " << dims.qk << " " << dims.v << " " << plan.tuning_row);
                CHECK(begins(plan.tuning_row, own));
                const Problem both = resolved(make_problem({dim, dim}, square(1, 1, 100)));
                CHECK_EQ(planned(profile(name), both, make_backward(both)).tuning_row, plan.tuning_row);
            }
    }
}

TEST_CASE("backward tuning: numbers of one's own") {
    const Problem p = simple();
    const Backward b = make_backward(p);
    const DeviceCaps& caps = profile("nvidia_h200");
    size_t planned_count = 0, refused = 0;
    for (const uint32_t threads : {8u, 32u, 96u, 256u})
        for (const uint32_t lanes : {1u, 2u, 8u, 32u})
            for (const uint32_t rows : {4u, 8u})
                for (const uint32_t cols : {4u, 8u, 16u})
                    for (const uint32_t v_keys : {2u, 4u, 16u}) {
                        if (threads % lanes != 0) continue;
                        TileNumbers n{threads, lanes, rows, cols, 16, 1, v_keys, 0, 2};
                        n.q_slices = 1 + v_keys % 3;
                        n.kv_slices = rows == 4 ? 1 : 2 * cols / 4;
                        const auto plan = make_plan(caps, p, b, numbers(n));
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
