// These tests plan the matrix kernel on every device with matrix units, crossed with layouts, features, head dims and
// shapes, plant faults into such plans, and check the order of workgroups.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "plan_faults.hpp"
#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Returns a device in each state that the planner can meet it in.
std::vector<Profile> states_of(const Profile& device) {
    std::vector<Profile> states{{device.name + ", unknown layout", device.caps},
                                {device.name + ", known layout", probed(device.caps)},
                                {device.name + ", another left operand", probed(device.caps, false)},
                                {device.name + ", as RDNA4", probed_turned(device.caps, false)},
                                {device.name + ", as RDNA3", probed_turned(device.caps, true)}};
    DeviceCaps other = device.caps;
    other.matrix_conversions = !other.matrix_conversions;
    states.push_back({device.name + ", conversions the other way", other});
    return states;
}

bool multiplies(const DeviceCaps& caps, VkattnDtype dtype) {
    return std::any_of(caps.matrices.begin(), caps.matrices.end(),
                       [&](const auto& s) { return s.dtype == dtype; });
}

VkattnDtype operands_of(VkattnDtype dtype, const Options& o) {
    return o.precision == VKATTN_PRECISION_FLOAT16    ? VKATTN_DTYPE_FLOAT16
           : o.precision == VKATTN_PRECISION_BFLOAT16 ? VKATTN_DTYPE_BFLOAT16
                                                      : dtype;
}

// Returns "" if the refusal has one of the reasons that there are.
std::string refusal_flaw(const DeviceCaps& caps, const Problem& p, const Options& o,
                         const core::Failure& why) {
    const auto says = [&](const char* text) { return why.message.find(text) != std::string::npos; };
    if (why.status == VKATTN_UNSUPPORTED) {
        if (!multiplies(caps, operands_of(p.dtype, o)) && says("the matrix unit has no shape for")) return "";
        if (caps.type == core::DeviceType::cpu && says("lie 2^31 bytes apart")) return "";
        const bool parts = o.num_splits > 1 || o.max_dispatch_flops != 0 || o.batch_invariant;
        if (parts && says("bytes of scratch")) return "";
        if (o.max_dispatch_flops != 0 && why.field == "options.max_dispatch_flops") return "";
    }
    return "refused: " + why.field + " " + why.message;
}

// This counts how many problems were planned on matrix units and otherwise.
struct Count {
    size_t matrix = 0, other = 0, refused = 0;
};

std::string planning_flaw(const DeviceCaps& caps, const Problem& p, const Options& o, Count& count) {
    const auto plan = make_plan(caps, p, o);
    if (!plan) {
        count.refused++;
        return refusal_flaw(caps, p, o, plan.failure());
    }
    (on_matrices(*plan) ? count.matrix : count.other)++;
    return flaw_of(caps, p, *plan, o);
}

// The kernel is asked for by name or left to the planner, in turn; float32 problems are rounded.
Options matrix_options(const Features& f, size_t turn) {
    Options o = options_of(f);
    static constexpr const char* kernels[] = {"matrix", "auto", "matrix_khr"};
    o.kernel = kernels[turn % 3];
    if (f.dtype == VKATTN_DTYPE_FLOAT32)
        o.precision = turn % 4 == 3 ? VKATTN_PRECISION_BFLOAT16 : VKATTN_PRECISION_FLOAT16;
    return o;
}

uint32_t alignment_of(VkattnDtype dtype, size_t turn) {
    return std::max(2u << turn % 4, dtype == VKATTN_DTYPE_FLOAT32 ? 4u : 2u);
}

}  // namespace

TEST_CASE("matrix plans: every feature and shape on every device, in every state of its layout") {
    Flaws flaws;
    Count count;
    size_t turn = 0;
    for (const Profile& device : matrix_devices())
        for (const Profile& state : states_of(device))
            for (const Features& f : all_features()) {
                turn++;
                for (const Shape& shape : all_shapes()) {
                    turn++;
                    if (f.query_offsets && shape.align == VKATTN_ALIGN_OFFSET) continue;
                    const HeadDims dims = all_head_dims()[turn % all_head_dims().size()];
                    const auto layout = static_cast<Layout>(turn / 3 % static_cast<size_t>(Layout::count));
                    VkattnProblem given =
                        make_problem(dims, shape, layout, alignment_of(f.dtype, turn / 5), f.dtype);
                    set_features(given, f);
                    given.softcap = turn % 7 == 0 ? 30.0f : 0.0f;
                    const Problem p = resolved(given);
                    if (is_heavy(p) && turn % 32 != 0) continue;
                    flaws.add(planning_flaw(state.caps, p, matrix_options(f, turn / 2), count),
                              fmt::format("{}, {}, {}", state.name, f.name, name_of(layout)), p);
                }
            }
    CHECK_GT(count.matrix, 8000);
    CHECK_GT(count.other, 500);
}

TEST_CASE("matrix plans: every head dim, shape and storage type") {
    Flaws flaws;
    Count count;
    size_t turn = 0;
    for (const Profile& device : matrix_devices()) {
        const std::vector<Profile> states = states_of(device);
        for (const HeadDims dims : all_head_dims())
            for (const Shape& shape : all_shapes())
                for (const auto dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16}) {
                    const Profile& state = states[turn++ % states.size()];
                    const auto layout = static_cast<Layout>(turn / 7 % static_cast<size_t>(Layout::count));
                    Features f{};
                    f.dtype = dtype;
                    const Problem p =
                        resolved(make_problem(dims, shape, layout, alignment_of(dtype, turn / 11), dtype));
                    if (is_heavy(p) && turn % 32 != 0) continue;
                    flaws.add(planning_flaw(state.caps, p, matrix_options(f, turn / 3), count),
                              fmt::format("{}, {}", state.name, name_of(layout)), p);
                }
    }
    CHECK_GT(count.matrix, 4000);
}

TEST_CASE(
    "matrix plans: the backward, every feature and shape on every device, in every state of its layout") {
    Flaws flaws;
    size_t turn = 0, on_units = 0, cut = 0;
    for (const Profile& device : matrix_devices())
        for (const Profile& state : states_of(device))
            for (const Features& f : all_features())
                for (const Shape& shape : all_shapes()) {
                    if (++turn % 3 != 0 || f.num_splits > 1 || f.batch_invariant) continue;
                    if (f.query_offsets && shape.align == VKATTN_ALIGN_OFFSET) continue;
                    constexpr HeadDims dims[] = {d64, d128, {256, 256}, {111, 59}, {72, 72}};
                    VkattnProblem given =
                        make_problem(dims[turn / 3 % std::size(dims)], shape,
                                     static_cast<Layout>(turn / 7 % static_cast<size_t>(Layout::count)),
                                     alignment_of(f.dtype, turn / 5), f.dtype);
                    set_features(given, f);
                    const Problem p = resolved(given);
                    if ((is_heavy(p) || p.seqlen_kv > 1u << 20) && turn % 32 != 0) continue;
                    Options o = matrix_options(f, turn / 2);
                    // A step or a few of a loop, so that it is cut.
                    if (turn % 5 == 0) o.max_dispatch_flops = 100'000'000;
                    const core::Backward b = make_backward(p, turn % 2 == 0);
                    const auto plan = make_plan(state.caps, p, b, o);
                    if (!plan || plan->dispatches.size() > 5000) continue;
                    on_units += on_matrices(*plan);
                    cut += on_matrices(*plan) && is_cut(*plan);
                    flaws.add(flaw_of(state.caps, p, b, *plan, o), fmt::format("{}, {}", state.name, f.name),
                              p);
                }
    CHECK_GT(on_units, 1000);
    CHECK_GT(cut, 50);
}

TEST_CASE("matrix plans: heads and slices that pass 2^32 together are for another kernel") {
    const DeviceCaps& caps = matrix_device("amd_navi31");
    const auto problem = [](uint32_t batch) {
        return resolved(
            make_problem({64, 576}, {batch, 1, 1, 97, 97}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16));
    };
    const Plan some = planned(caps, problem(1000)), most = planned(caps, problem(INT32_MAX));
    REQUIRE_EQ(some.kernel, "matrix");
    REQUIRE_EQ(constant(some.pipelines.front(), "slices"), 5);
    CHECK_EQ(most.kernel, "tiles_dot");
    const auto by_name = make_plan(caps, problem(INT32_MAX), kernel("matrix"));
    REQUIRE_FALSE(by_name);
    CHECK_EQ(by_name.failure().message, "2147483647 heads of all batches in 5 slices pass 2^32");
}

namespace {

// Callers may ask for these numbers instead of the table's.
const char* const tunings[] = {"chunk=32,running=1",
                               "chunk=16,slice=64,running=1",
                               "slice=64",
                               "slice=40,q_held=0",
                               "running=1",
                               "running=1,q_held=16",
                               "halves=2",
                               "halves=1",
                               "move=0",
                               "move=1",
                               "move=2",
                               "move=3,halves=1",
                               "move=3,halves=1,running=1",
                               "subgroups=1",
                               "subgroups=2,row_blocks=3",
                               "tile_kv=16,halves=1",
                               "tile_kv=96",
                               "q_held=0",
                               "q_held=33",
                               "l2_group_kib=1,min_group_workgroups=7",
                               "l2_group_kib=0",
                               "rolled=1"};

}  // namespace

TEST_CASE("matrix plans: other numbers than the table's make a sound plan or none") {
    Flaws flaws;
    size_t planned = 0, turn = 0;
    std::map<std::string, size_t> with_plan;
    for (const Profile& device : matrix_devices())
        for (const Profile& state : states_of(device))
            for (const char* text : tunings)
                for (const HeadDims dims : {d64, d128, HeadDims{111, 59}, HeadDims{576, 512}}) {
                    turn++;
                    const auto dtype = turn % 5 == 0 ? VKATTN_DTYPE_FLOAT32 : VKATTN_DTYPE_FLOAT16;
                    VkattnProblem given = make_problem(dims, {2, 8, 2, 300, 3000, turn % 2 == 0},
                                                       Layout::contiguous, alignment_of(dtype, turn), dtype);
                    if (turn % 3 == 0) set_mask(given, VKATTN_MASK_FLOAT, MaskShape::all_batches);
                    const Problem p = resolved(given);
                    Options o = tuning(text, turn % 7 == 0 ? "matrix_khr" : "matrix");
                    o.num_splits = turn % 11 == 0 ? 3 : 0;
                    if (dtype == VKATTN_DTYPE_FLOAT32) o.precision = VKATTN_PRECISION_FLOAT16;
                    const auto plan = make_plan(state.caps, p, o);
                    const std::string where = fmt::format("{}, {}, {}", state.name, o.kernel, text);
                    if (!plan) {
                        flaws.add(plan.failure().field == "options.tuning" ? "" : plan.failure().message,
                                  where, p);
                        continue;
                    }
                    planned++;
                    with_plan[text]++;
                    flaws.add(flaw_of(state.caps, p, *plan, o), where, p);
                }
    CHECK_GT(planned, turn / 4);
    for (const char* text : tunings) {
        INFO(text);
        CHECK_GT(with_plan[text], 0);
    }
}

namespace {

Sound sound(const char* name, DeviceCaps caps, const VkattnProblem& p, const Options& o = kernel("matrix")) {
    return {name, std::move(caps), resolved(p), o, {}};
}

VkattnProblem with_dtype(HeadDims dims, const Shape& shape, VkattnDtype dtype, bool softcap = false) {
    VkattnProblem p = make_problem(dims, shape, Layout::contiguous, 16, dtype);
    p.softcap = softcap ? 30.0f : 0.0f;
    return p;
}

// Each kind of module, loop, move of P and feature is in some of these plans.
std::vector<Sound> sound_plans() {
    constexpr auto f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16, f32 = VKATTN_DTYPE_FLOAT32;
    const DeviceCaps h200 = matrix_device("nvidia_h200"), known = probed(h200),
                     navi = matrix_device("amd_navi31");
    const Shape shape{2, 8, 2, 300, 3000, true};
    VkattnProblem bias = with_dtype(d128, {2, 4, 2, 700, 900}, f16), lengths = bias;
    set_mask(bias, VKATTN_MASK_FLOAT, MaskShape::all_batches);
    set_mask(lengths, VKATTN_MASK_BOOL, MaskShape::whole);
    lengths.kv_lengths = 1;
    lengths.align = VKATTN_ALIGN_OFFSETS;
    Options rounded = kernel("matrix"), parts = rounded, cut = rounded, invariant = rounded;
    rounded.precision = VKATTN_PRECISION_FLOAT16;
    parts.num_splits = 3;
    cut.max_dispatch_flops = 2'000'000'000;
    invariant.batch_invariant = true;
    return {sound("registers", known, with_dtype(d64, shape, f16)),
            sound("converted", h200, with_dtype(d128, shape, bf16, true)),
            sound("rounded", navi, with_dtype(d128, shape, f16), kernel("matrix_khr")),
            sound("of float32", known, with_dtype({111, 59}, shape, f32), rounded),
            sound("chunks, slices", navi, with_dtype({576, 512}, shape, f16)),
            sound("bias", known, bias),
            sound("lengths, offsets, mask", h200, lengths),
            sound("parts", known, with_dtype(d64, shape, f16), parts),
            sound("cut", known, with_dtype(d64, {2, 16, 16, 2048, 2048}, bf16), cut),
            sound("invariant", h200, with_dtype({72, 72}, shape, f16), invariant),
            sound("packed", known, with_dtype(d64, {2, 16, 2, 9, 2048}, f16))};
}

}  // namespace

TEST_CASE("matrix plans: a fault in any field of a backward is noticed") {
    constexpr auto f16 = VKATTN_DTYPE_FLOAT16;
    const DeviceCaps h200 = probed(matrix_device("nvidia_h200")), navi = matrix_device("amd_navi31");
    const Shape shape{2, 8, 2, 300, 700, true};
    VkattnProblem bias = with_dtype(d64, {2, 4, 2, 300, 512}, f16);
    set_mask(bias, VKATTN_MASK_FLOAT, MaskShape::all_batches);
    Options rounded = kernel("matrix"), cut = rounded;
    rounded.precision = VKATTN_PRECISION_FLOAT16;
    cut.max_dispatch_flops = 60'000'000;
    std::vector<Sound> all{
        sound("registers", h200, with_dtype(d64, shape, f16)),
        sound("gradient of the mask", h200, bias),
        sound("pairs", h200, with_dtype({256, 256}, shape, f16)),
        sound("turned", probed_turned(navi, true), with_dtype(d128, shape, f16)),
        sound("rounded", matrix_device("nvk_ampere"), with_dtype(d64, shape, VKATTN_DTYPE_FLOAT32), rounded),
        sound("cut", h200, with_dtype(d64, {1, 4, 1, 700, 900}, f16), cut)};
    for (Sound& s : all) {
        INFO(std::string(s.name));
        s.backward = make_backward(s.problem, true);
        Faults f(s);
        REQUIRE(on_matrices(f.plan()));
        REQUIRE_EQ(f.flaw(), "");
        plant_in_work(f);
        plant_in_plan(f);
        CHECK_EQ(f.unnoticed(), "");
        CHECK_GT(f.planted(), 200);
    }
}

TEST_CASE("matrix plans: a fault in any field is noticed") {
    for (const Sound& s : sound_plans()) {
        INFO(std::string(s.name));
        Faults f(s);
        REQUIRE(on_matrices(f.plan()));
        REQUIRE_EQ(f.flaw(), "");
        plant_in_work(f);
        plant_in_plan(f);
        // Head dims that these limit are the same for more than one number.
        plant_in_tuning(f, {"q_held", "chunk", "slice"});
        CHECK_EQ(f.unnoticed(), "");
        CHECK_GT(f.planted(), 200);
    }
}
