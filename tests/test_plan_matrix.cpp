// Plans on matrix units: on what the devices report of them, of float32 that may be rounded, and what a probe tells.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "plan/matrix.hpp"
#include "plan_cases.hpp"
#include "plan_pieces.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::DeviceCaps;
using core::Options;
using core::Plan;

namespace {

VkattnProblem half(HeadDims dims, const Shape& shape, uint32_t alignment_bytes = 16) {
    return make_problem(dims, shape, Layout::contiguous, alignment_bytes, VKATTN_DTYPE_FLOAT16);
}

Options named(const char* kernel, const char* tuning = "") {
    Options o;
    o.kernel = kernel;
    o.tuning = tuning;
    return o;
}

Plan planned(const DeviceCaps& caps, const VkattnProblem& p, const Options& o = {}) {
    auto plan = make_plan(caps, resolved(p), o);
    if (!plan) throw std::runtime_error(plan.failure().field + " " + plan.failure().message);
    return *plan;
}

std::string refusal(const DeviceCaps& caps, const VkattnProblem& p, const Options& o) {
    const auto plan = make_plan(caps, resolved(p), o);
    return plan ? "" : plan.failure().field + ": " + plan.failure().message;
}

// The pipeline on matrix units.
const core::Pipeline& forward_of(const Plan& plan) {
    for (const core::Pipeline& pipeline : plan.pipelines)
        if ((core::info_of(pipeline.module).needs & core::NEED_MATRIX) != 0) return pipeline;
    throw std::runtime_error("no pipeline is on matrix units");
}

// One of the forward's constants in the plan of a problem.
uint32_t planned_constant(const DeviceCaps& caps, const VkattnProblem& p, const Options& o,
                          std::string_view name) {
    return constant(forward_of(planned(caps, p, o)), name);
}

bool is_running(const Plan& plan) {
    return name_of(forward_of(plan)).ends_with("_running");
}

const char* const with_units[] = {"amd_gfx1201", "amd_navi31",  "amd_phoenix", "amd_strix1", "intel_dg2",
                                  "lavapipe",    "nvidia_h200", "nvk_ampere",  "nvk_turing"};

}  // namespace

TEST_CASE("matrix: on CPUs only by name, or where float32 is rounded") {
    DeviceCaps caps = matrix_device("lavapipe");
    const VkattnProblem p = half({64, 64}, {1, 2, 2, 300, 300});
    const auto reason = [](const Plan& plan) {
        for (const core::Refusal& r : plan.refused)
            if (r.kernel == "matrix") return r.reason;
        return std::string();
    };
    const Plan plan = planned(caps, p);
    CHECK(plan.kernel == "tiles");
    CHECK(reason(plan).find("only by name: CPUs have no matrix unit") == 0);
    CHECK(planned(caps, p, named("matrix")).kernel == "matrix");
    Options rounded;
    rounded.precision = VKATTN_PRECISION_FLOAT16;
    CHECK(planned(caps, make_problem({64, 64}, {1, 2, 2, 300, 300}), rounded).kernel == "matrix");
    caps.type = core::DeviceType::integrated;
    CHECK(planned(caps, p).kernel == "matrix");
}

TEST_CASE("matrix: not on a driver that loads matrices wrong") {
    DeviceCaps caps = matrix_device("lavapipe");
    const VkattnProblem p = half({64, 64}, {1, 2, 2, 300, 300});
    CHECK(planned(caps, p, named("matrix")).kernel == "matrix");
    caps.min_subgroup_size = caps.max_subgroup_size = caps.subgroup_size = 16;  // quirk_wrong_matrices
    CHECK(refusal(caps, p, named("matrix")).find("loads matrices wrong") != std::string::npos);
}

TEST_CASE("matrix: the profiles with units are these") {
    std::vector<std::string> names;
    for (const Profile& device : matrix_devices()) names.push_back(device.name);
    CHECK(names == std::vector<std::string>(std::begin(with_units), std::end(with_units)));
}

TEST_CASE("matrix: every device with units for float16 plans them at any head dim") {
    for (const char* name : with_units) {
        const DeviceCaps caps = matrix_device(name);
        CAPTURE(name);
        REQUIRE(!caps.matrices.empty());
        for (const HeadDims dims : {HeadDims{1, 1},
                                    {40, 72},
                                    {64, 64},
                                    {80, 80},
                                    {111, 59},
                                    {128, 128},
                                    {160, 160},
                                    {256, 256},
                                    {512, 512},
                                    {576, 512}})
            for (const uint32_t alignment : {2u, 8u, 16u}) {
                CAPTURE(dims.qk);
                CAPTURE(dims.v);
                const Plan plan =
                    planned(caps, half(dims, {2, 4, 2, 300, 500, true}, alignment), named("matrix"));
                const bool cpu = caps.type == core::DeviceType::cpu;
                CHECK(planned(caps, half(dims, {2, 4, 2, 300, 500, true}, alignment)).kernel ==
                      (cpu ? "tiles" : "matrix"));
                CHECK(plan.kernel == "matrix");
                const core::Pipeline& forward = forward_of(plan);
                CHECK(constant(forward, "element_layout") == 0);
                const bool second =
                    caps.matrix_conversions && constant(forward, "matrix_n") == constant(forward, "matrix_k");
                const bool rounded = std::string(name) != "intel_dg2";  // which has no 16-bit accumulators
                CHECK(constant(forward, "p_move") == (second    ? MOVE_CONVERT
                                                      : rounded ? MOVE_SHARED
                                                                : MOVE_SHARED_FLOAT));
            }
    }
}

TEST_CASE("matrix: only asked for, only what is there") {
    const DeviceCaps h200 = matrix_device("nvidia_h200"), skl = profile("intel_skl");
    const VkattnProblem p = half({64, 64}, {1, 2, 2, 300, 300});
    CHECK(planned(h200, make_problem({64, 64}, {1, 2, 2, 300, 300})).kernel == "tiles");
    CHECK(refusal(h200, make_problem({64, 64}, {1, 2, 2, 300, 300}), named("matrix")).find("float32") !=
          std::string::npos);
    CHECK(planned(skl, p).kernel == "tiles");
    CHECK(refusal(skl, p, named("matrix")).find("no matrix unit") != std::string::npos);
    CHECK(planned(h200, half({64, 64}, {1, 2, 2, 1, 300})).kernel == "rows");
    VkattnProblem bf16 = p;
    bf16.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK(planned(h200, bf16).kernel == "matrix");
    CHECK(planned(matrix_device("amd_navi31"), bf16).kernel == "tiles");  // has units for float16 only
    DeviceCaps varying = matrix_device("amd_navi31");
    varying.subgroup_size_control = false;
    CHECK(refusal(varying, p, named("matrix")).find("several sizes") != std::string::npos);
    varying.max_subgroup_size = varying.min_subgroup_size;
    CHECK(refusal(varying, p, named("matrix")) == "");
    varying.full_subgroups = false;
    CHECK(refusal(varying, p, named("matrix")).find("computeFullSubgroups") != std::string::npos);
    CHECK(planned(varying, p).kernel == "tiles_dot");
}

TEST_CASE("matrix: the path that knows nothing, and what a plan forces") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const VkattnProblem p = half({64, 64}, {1, 2, 2, 300, 300});
    const auto moves = [&](const Options& o) {
        return std::pair(planned_constant(caps, p, o, "p_move"),
                         planned_constant(caps, p, o, "element_layout") != 0);
    };
    CHECK(moves({}) == std::pair(uint32_t{MOVE_FRAGMENT}, true));
    CHECK(moves(named("matrix_khr")) == std::pair(uint32_t{MOVE_SHARED}, false));
    CHECK(moves(named("matrix", "move=1")) == std::pair(uint32_t{MOVE_CONVERT}, true));
    CHECK(planned(caps, p, named("matrix", "subgroups=2,tile_kv=32")).tiles.tile_kv == 32);
    VkattnProblem masked = p;
    set_mask(masked, VKATTN_MASK_BOOL, MaskShape::whole);
    const auto running = [&](const Options& o) { return is_running(planned(caps, masked, o)); };
    CHECK(!running({}));
    CHECK(running(named("matrix", "move=1,running=1")));
    CHECK(running(named("matrix_khr")));
    Options invariant;
    invariant.batch_invariant = true;
    for (const uint32_t rows : {1u, 17u, 300u}) {
        const Plan plan = planned(caps, half({64, 64}, {1, 8, 2, rows, 300}), invariant);
        CHECK(plan.kernel == "matrix");
        CHECK(is_running(plan));
        CHECK(plan.tiles.tile_kv == planned(caps, p).tiles.tile_kv);
    }
    const std::pair<const char*, const char*> bad[] = {
        {"tile_kv=24", "multiple of 16"},       {"move=9", "move is 0 .. 3"},    {"chunk=16", "running=1"},
        {"running=1,halves=2", "running is 0"}, {"rows=4", "is not one of"},     {"subgroups=0", "not 0"},
        {"subgroups=40", "invocations"},        {"tile_kv=512", "shared memory"}};
    for (const auto& [tuning, why] : bad) {
        CAPTURE(tuning);
        const std::string text = refusal(caps, p, named("matrix", tuning));
        CHECK(text.starts_with("options.tuning: "));
        CHECK(text.find(why) != std::string::npos);
    }
    CHECK(refusal(caps, masked, named("matrix_khr", "running=0")).find("need running=1") !=
          std::string::npos);
    Options stale = named("matrix", "running=0");
    stale.batch_invariant = true;
    CHECK(refusal(caps, p, stale).find("needs running=1") != std::string::npos);
    const auto slices = [&](const char* tuning) {
        return planned_constant(caps, p, named("matrix", tuning), "slices");
    };
    CHECK(slices("slice=4294967295") == 1);
    CHECK(slices("slice=4") == 4);  // of 16 head dims, the least that a slice has
    Options rejected;
    rejected.rejected_rows = {"nvidia-matrix-d64"};
    CHECK(planned(caps, p, rejected).tuning_row == "nvidia-wide-d80");
}

TEST_CASE("matrix: a row for which the device has no room is passed over, and named where it is the last") {
    DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const VkattnProblem p = half({128, 128}, {1, 2, 2, 300, 304});
    const Plan usual = planned(caps, p);
    caps.max_shared_bytes = usual.tiles.shared_bytes + 1023;  // the compiler may need 1,024 bytes of its own
    const Plan next = planned(caps, p, named("matrix"));
    CHECK(next.tuning_row != usual.tuning_row);
    CHECK(next.tiles.shared_bytes < usual.tiles.shared_bytes);
    caps.max_shared_bytes = 1024;
    CHECK(refusal(caps, p, named("matrix")).starts_with(": row matrix-d576: "));
    CHECK(refusal(caps, p, named("matrix")).ends_with(" bytes of shared memory, the device has 1024"));
    // What is asked for is not passed over: the failure is that of the first row.
    CHECK(refusal(caps, p, named("matrix", "level=0")).starts_with("options.tuning: "));
}

TEST_CASE(
    "matrix: tiles that leave no register are for 16-bit rows in whole vectors, and nothing beside them") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const Shape shape{1, 2, 2, 300, 304};
    const auto row = [&](const VkattnProblem& p, const Options& o = {}) {
        return planned(caps, p, o).tuning_row;
    };
    for (const auto& [head_dim, name] : {std::pair{64u, "nvidia-matrix-d64"},
                                         {72u, "nvidia-wide-d80"},
                                         {80u, "nvidia-wide-d80"},
                                         {88u, "nvidia-wide-d96"},
                                         {128u, "nvidia-wide-d128"},
                                         {136u, "nvidia-matrix-d256"}})
        CHECK(row(half({head_dim, head_dim}, shape)) == name);
    CHECK(row(half({128, 64}, shape)) == "nvidia-wide-d128");
    CHECK(row(half({111, 128}, shape)) == "nvidia-matrix-d128");
    CHECK(row(half({128, 111}, shape)) == "nvidia-matrix-d128");
    VkattnProblem p = half({128, 128}, shape);
    p.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK(row(p) == "nvidia-wide-bf16");
    p = half({128, 128}, shape);
    p.alignment_bytes = 8;
    CHECK(row(p) == "nvidia-matrix-d128");
    p = half({128, 128}, shape);
    p.softcap = 30;
    CHECK(row(p) == "nvidia-matrix-d128");
    p = half({128, 128}, shape);
    CHECK(row(p, named("matrix_khr")) ==
          "nvidia-matrix-d256");  // with P beside it, the one before is too large
    Options o;
    o.batch_invariant = true;
    CHECK(row(p, o) == "nvidia-matrix-d128");
    o = {};
    o.precision = VKATTN_PRECISION_FLOAT16;
    CHECK(row(make_problem({128, 128}, shape), o) == "nvidia-matrix-d128");
    p = half({256, 256}, shape);
    set_mask(p, VKATTN_MASK_FLOAT, MaskShape::whole);
    CHECK(row(p) == "nvidia-bias-d256");
    p = half({111, 111}, shape);
    set_mask(p, VKATTN_MASK_FLOAT, MaskShape::whole);
    CHECK(row(p) == "nvidia-bias-d128");
}

TEST_CASE("matrix: float masks of 16 bits have modules of their own, unless a score is wanted without them") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const auto forward = [&](VkattnProblem p, VkattnMaskType mask, const Options& o = {}) {
        set_mask(p, mask, MaskShape::whole);
        const Plan plan = planned(caps, p, o);
        return std::pair(forward_of(plan).module, constant(forward_of(plan), "mask_row_bytes"));
    };
    const auto keys = [](uint32_t count) { return half({64, 64}, {1, 2, 2, 300, count}); };
    using core::Module;
    for (const auto& [count, unit] : {std::pair{304u, 16u}, {300u, 8u}, {302u, 4u}, {301u, 2u}})
        CHECK(forward(keys(count), VKATTN_MASK_FLOAT) == std::pair(Module::forward_matrix_f16_bias, unit));
    CHECK(forward(keys(304), VKATTN_MASK_BOOL) == std::pair(Module::forward_matrix_f16, 16u));
    VkattnProblem p = keys(300);
    p.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK(forward(p, VKATTN_MASK_FLOAT).first == Module::forward_matrix_bf16_bias);
    p = keys(300);
    p.softcap = 30;
    CHECK(forward(p, VKATTN_MASK_FLOAT).first == Module::forward_matrix_f16);
    Options o;
    o.batch_invariant = true;
    CHECK(forward(keys(300), VKATTN_MASK_FLOAT, o).first == Module::forward_matrix_f16_running);
    CHECK(forward(keys(300), VKATTN_MASK_FLOAT, named("matrix_khr")).first ==
          Module::forward_matrix_f16_rounded_running);
    const auto row = [&](VkattnMaskType mask) {
        VkattnProblem wide = half({128, 128}, {1, 2, 2, 300, 300});
        if (mask != VKATTN_MASK_NONE) set_mask(wide, mask, MaskShape::whole);
        return planned(caps, wide).tuning_row;
    };
    CHECK(row(VKATTN_MASK_FLOAT) == "nvidia-wide-bias");
    CHECK(row(VKATTN_MASK_BOOL) == "nvidia-wide-d128");
    CHECK(row(VKATTN_MASK_NONE) == "nvidia-wide-d128");
    o = {};
    o.precision = VKATTN_PRECISION_FLOAT16;
    p = make_problem({64, 64}, {1, 2, 2, 300, 300});
    CHECK(forward(p, VKATTN_MASK_FLOAT, o).first == Module::forward_matrix_f16_of_f32);
}

namespace {

Options rounding(VkattnPrecision precision, const char* kernel = "", const char* tuning = "") {
    Options o = named(kernel, tuning);
    o.precision = precision;
    return o;
}

constexpr auto to_f16 = VKATTN_PRECISION_FLOAT16, to_bf16 = VKATTN_PRECISION_BFLOAT16;

}  // namespace

TEST_CASE("precision: float32 is rounded where it is asked for, by every device with units") {
    for (const char* name : with_units) {
        DeviceCaps caps = matrix_device(name);
        CAPTURE(name);
        for (const HeadDims dims : {HeadDims{1, 1}, {64, 64}, {111, 59}, {128, 128}, {576, 512}})
            for (const uint32_t alignment : {4u, 8u, 16u, 32u}) {
                const VkattnProblem p =
                    make_problem(dims, {2, 4, 2, 300, 500, true}, Layout::contiguous, alignment);
                CHECK(planned(caps, p).kernel == "tiles");
                CHECK(planned(caps, p).operands == VKATTN_DTYPE_FLOAT32);
                const Plan plan = planned(caps, p, rounding(to_f16));
                CHECK(plan.kernel == "matrix");
                CHECK(plan.operands == VKATTN_DTYPE_FLOAT16);
                CHECK(describe(plan).find("\"precision\":\"float16\"") != std::string::npos);
                const core::Pipeline& forward = forward_of(plan);
                // Rows for CPUs, and those for the largest head dims, have a running maximum.
                const bool running = caps.type == core::DeviceType::cpu || dims.qk > 128;
                CHECK(forward.module == (running ? core::Module::forward_matrix_f16_of_f32_running
                                                 : core::Module::forward_matrix_f16_of_f32));
                CHECK(constant(forward, "p_move") == MOVE_SHARED_FLOAT);
                CHECK(constant(forward, "load_bytes") == (alignment < 16 ? 4 : 16));
            }
        for (core::MatrixShape& shape : caps.matrices) shape.k = shape.n;
        caps = probed(caps);
        const VkattnProblem p = make_problem({64, 64}, {1, 2, 2, 300, 300});
        const auto move = [&](const char* kernel) {
            return planned_constant(caps, p, rounding(to_f16, kernel), "p_move");
        };
        CHECK(move("") == MOVE_FRAGMENT);
        CHECK(move("matrix_khr") == MOVE_SHARED_FLOAT);
    }
    const Plan bf16 =
        planned(matrix_device("nvidia_h200"), make_problem({64, 64}, {1, 2, 2, 300, 300}), rounding(to_bf16));
    CHECK(forward_of(bf16).module == core::Module::forward_matrix_bf16_of_f32);
    CHECK(bf16.operands == VKATTN_DTYPE_BFLOAT16);
}

TEST_CASE("precision: few rows and what is named keep float32, all else is refused") {
    const DeviceCaps h200 = matrix_device("nvidia_h200"), skl = profile("intel_skl");
    const VkattnProblem p = make_problem({64, 64}, {1, 2, 2, 300, 300}),
                        few = make_problem({64, 64}, {1, 2, 2, 1, 300});
    const auto is = [](const Plan& plan, const char* kernel) {
        return plan.kernel == kernel && plan.operands == VKATTN_DTYPE_FLOAT32;
    };
    for (const DeviceCaps* caps : {&h200, &skl}) {
        CHECK(is(planned(*caps, few, rounding(to_f16)), "rows"));
        CHECK(is(planned(*caps, p, rounding(to_f16, "tiles")), "tiles"));
        CHECK(is(planned(*caps, p, rounding(to_f16, "materialized")), "materialized"));
    }
    const Plan rounded = planned(h200, p, rounding(to_f16));
    const auto of_tiles = std::find_if(rounded.refused.begin(), rounded.refused.end(),
                                       [](const core::Refusal& r) { return r.kernel == "tiles"; });
    REQUIRE(of_tiles != rounded.refused.end());
    CHECK(of_tiles->reason == "only by name: it rounds no operands");
    const std::string field = "options.precision: ";
    CHECK(refusal(skl, p, rounding(to_f16)) == field + "the device has no matrix unit, or it is not enabled");
    CHECK(refusal(matrix_device("amd_navi31"), p, rounding(to_bf16)) ==
          field + "the matrix unit has no shape for bfloat16");
    Options invariant = rounding(to_f16);
    invariant.batch_invariant = true;
    CHECK(planned(h200, few, invariant).kernel == "matrix");
    CHECK(refusal(skl, few, invariant).starts_with(field));
    for (const char* tuning : {"move=1", "move=2"})
        CHECK(refusal(h200, p, rounding(to_f16, "matrix", tuning)) ==
              "options.tuning: move=1 and move=2 are not for float32 storage");

    VkattnProblem f16 = half({64, 64}, {1, 2, 2, 300, 300});
    CHECK(planned(h200, f16, rounding(to_f16)).kernel == "matrix");
    CHECK(planned(skl, f16, rounding(to_f16)).kernel == "tiles");  // it is the storage type
    CHECK(refusal(h200, f16, rounding(to_bf16)) ==
          field + "bfloat16 for a problem in float16: only float32 is rounded");
    const auto unknown = make_plan(h200, resolved(p), rounding(static_cast<VkattnPrecision>(3)));
    REQUIRE(!unknown);
    CHECK(unknown.failure().status == VKATTN_INVALID_ARGUMENT);
    CHECK(unknown.failure().message == "3 is not a VkattnPrecision");

    const auto gradients = [&](const VkattnProblem& problem, VkattnPrecision precision) {
        return make_plan(h200, resolved(problem), make_backward(resolved(problem)), rounding(precision));
    };
    CHECK(gradients(f16, to_f16));
    CHECK(gradients(p, VKATTN_PRECISION_STORAGE));
    const auto rounded_gradients = gradients(p, to_f16);
    REQUIRE(rounded_gradients);
    CHECK(rounded_gradients->kernel == "matrix");
    CHECK(rounded_gradients->operands == VKATTN_DTYPE_FLOAT16);
    // No kernel that rounds has so many head dims, and none stands in for it.
    const VkattnProblem large = make_problem({512, 512}, {1, 2, 2, 300, 300});
    REQUIRE(!gradients(large, to_f16));
    CHECK(gradients(large, to_f16).failure().status == VKATTN_UNSUPPORTED);
    CHECK(gradients(large, to_f16).failure().field == "options.precision");
}

namespace {

// What a probe of a 16x16x16 unit with 32 invocations would write, by a function from (matrix, invocation,
// element) to a place.
enum Matrix { accumulator, left_operand, right_operand };
template <class PlaceOf>
std::vector<std::byte> probe_results(size_t shapes, PlaceOf place_of, uint32_t operand_elements = 8) {
    std::vector<uint32_t> words(shapes * 3 * PROBE_WORDS);
    for (size_t matrix = 0; matrix < shapes * 3; matrix++) {
        uint32_t* at = words.data() + matrix * PROBE_WORDS;
        at[0] = matrix % 3 == accumulator ? 8 : operand_elements;
        for (uint32_t i = 0; i < 32; i++)
            for (uint32_t e = 0; e < at[0]; e++)
                at[1 + i * PROBE_ELEMENTS + e] = place_of(static_cast<Matrix>(matrix % 3), i, e);
    }
    std::vector<std::byte> bytes(words.size() * 4);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
}

uint32_t nvidia_place(uint32_t i, uint32_t e) {
    const uint32_t row = i / 4 + 8 * (e / 4), column = 2 * (i % 4) + e % 2 + 8 * (e / 2 % 2);
    return row * 256 + column;
}

DeviceCaps probed(DeviceCaps caps, const std::vector<std::byte>& results) {
    note_probe(caps, results.data());
    return caps;
}

}  // namespace

TEST_CASE("matrix: a shape without rows, columns or depth is not used") {
    for (uint32_t core::MatrixShape::*size :
         {&core::MatrixShape::m, &core::MatrixShape::n, &core::MatrixShape::k}) {
        core::MatrixShape shape{16, 16, 16, VKATTN_DTYPE_FLOAT16};
        CHECK(core::is_usable(shape, 32));
        shape.*size = 0;
        CHECK_FALSE(core::is_usable(shape, 32));
    }
}

TEST_CASE("probe: a pipeline for each shape that the kernel can work with, and results one after the other") {
    for (const char* name : with_units) {
        const DeviceCaps caps = matrix_device(name);
        CAPTURE(name);
        const Plan plan = probe_plan(caps);
        std::vector<core::MatrixShape> shapes;
        const uint32_t lanes = caps.min_subgroup_size;
        for (const core::MatrixShape& s : caps.matrices)
            if (s.m % 8 == 0 && s.n % 8 == 0 && s.k % 8 == 0 && std::max(s.m, s.k) <= 64 && 32 % s.n == 0 &&
                s.m * s.n % (2 * lanes) == 0)
                shapes.push_back(s);
        REQUIRE(plan.pipelines.size() == shapes.size());
        REQUIRE(plan.dispatches.size() == shapes.size());
        CHECK(probe_size(caps) == shapes.size() * 3 * PROBE_WORDS * 4);
        CHECK(pipelines_flaw(plan, true) == "");
        for (uint32_t i = 0; i < shapes.size(); i++) {
            const core::Pipeline& pipeline = plan.pipelines[i];
            const core::MatrixShape& s = shapes[i];
            CHECK(pipeline.module == (s.dtype == VKATTN_DTYPE_FLOAT16 ? core::Module::probe_matrix_f16
                                                                      : core::Module::probe_matrix_bf16));
            CHECK(constants_flaw(pipeline, {{"threads", lanes},
                                            {"subgroup_size", lanes},
                                            {"matrix_m", s.m},
                                            {"matrix_n", s.n},
                                            {"matrix_k", s.k}}) == "");
            CHECK(words_flaw(pipeline, {}) == "");
            const core::Patch* const results = find_patch(pipeline, "results");
            REQUIRE(results != nullptr);
            CHECK(pipeline.patches.size() == 1);
            CHECK(results->region == core::Region::out);
            CHECK(results->add == uint64_t{i} * 3 * PROBE_WORDS * 4);
            CHECK(pipeline.reads == 0);
            CHECK(pipeline.writes == bit(core::Region::out));
            CHECK(!pipeline.rolled);
            CHECK(plan.dispatches[i].pipeline == i);
            CHECK(plan.dispatches[i].groups == std::array<uint32_t, 3>{1, 1, 1});
        }
    }
}

TEST_CASE("probe: a layout of bits is found, any other is not trusted") {
    DeviceCaps caps = matrix_device("nvidia_h200");
    std::erase_if(caps.matrices, [](const auto& s) { return s.n != 16 || s.k != 16; });
    const size_t shapes = probe_plan(caps).dispatches.size();
    REQUIRE(shapes == 2);  // float16 and bfloat16
    const auto same = probed(
        caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) { return nvidia_place(i, e); }));
    // Rows: bits 2, 3, 4 of the invocation, bit 2 of the element; columns: element 0, invocation 0, 1, element 1.
    CHECK(same.matrices[0].layout == 0x9108a432);
    CHECK(same.matrices[0].left_alike);
    const auto other_left =
        probed(caps, probe_results(shapes, [](Matrix matrix, uint32_t i, uint32_t e) {
                   return matrix == left_operand ? i % 16 * 256 + i / 16 * 8 + e : nvidia_place(i, e);
               }));
    CHECK(other_left.matrices[0].layout == 0x9108a432);
    CHECK(!other_left.matrices[0].left_alike);
    const auto shuffled = probed(caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) {
                                     const uint32_t place = nvidia_place(i, e);
                                     return (place / 256 + place % 3) % 16 * 256 + place % 256;
                                 }));
    CHECK(shuffled.matrices[0].layout == 0);
    CHECK(!shuffled.matrices[0].left_alike);
    const auto nothing = probed(caps, std::vector<std::byte>(shapes * core::probe_bytes));
    CHECK(nothing.matrices[0].layout == 0);
    const auto twice = probed(
        caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) { return nvidia_place(i / 2, e); }));
    CHECK(twice.matrices[0].layout == 0);
}

TEST_CASE("probe: turned products are taken where accumulators become right operands") {
    DeviceCaps caps = matrix_device("amd_navi31");
    const size_t shapes = probe_plan(caps).dispatches.size();
    const auto row_of = [](bool alternates, uint32_t i, uint32_t e) {
        return alternates ? 2 * e + i / 16 : i / 16 * 8 + e;
    };
    const auto rdna4 = [&](Matrix matrix, uint32_t i, uint32_t e) {
        const uint32_t along = row_of(false, i, e);
        return matrix == left_operand ? i % 16 * 256 + along : along * 256 + i % 16;
    };
    const auto rdna3 = [&](Matrix matrix, uint32_t i, uint32_t e) {
        if (matrix == accumulator) return row_of(true, i, e) * 256 + i % 16;
        return matrix == left_operand ? i % 16 * 256 + e : e * 256 + i % 16;
    };
    const auto shape_of = [&](const DeviceCaps& device, const auto& place_of, uint32_t elements) {
        return probed(device, probe_results(shapes, place_of, elements)).matrices[0];
    };
    // Queries: invocation bits 0 .. 3; keys: element bits 0 .. 2, invocation bit 4.
    const auto alike = shape_of(caps, rdna4, 8);
    CHECK(alike.turned_layout == 0x4a983210);
    CHECK(!alike.exchanges);
    CHECK(!alike.left_alike);
    const auto exchanged = shape_of(caps, rdna3, 16);
    CHECK(exchanged.turned_layout == 0x4a983210);
    CHECK(exchanged.exchanges);
    DeviceCaps bf16 = caps;  // whose kernels exchange nothing
    for (auto& shape : bf16.matrices) shape.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK(shape_of(bf16, rdna4, 8).turned_layout == 0x4a983210);
    CHECK(shape_of(bf16, rdna3, 16).turned_layout == 0);
    CHECK(exchanged.layout == 0x3210a984);
    // Any other operand is not trusted.
    for (const Matrix other : {left_operand, right_operand})
        for (const bool alternates : {false, true}) {
            const auto transposed = [&](Matrix matrix, uint32_t i, uint32_t e) {
                const uint32_t place = alternates ? rdna3(matrix, i, e) : rdna4(matrix, i, e);
                return matrix == other ? place % 256 * 256 + place / 256 : place;
            };
            const auto shape = shape_of(caps, transposed, alternates ? 16 : 8);
            CAPTURE(int{other});
            CAPTURE(alternates);
            CHECK(shape.turned_layout == 0);
            CHECK(!shape.exchanges);
        }
    caps.int64 = false;
    CHECK(shape_of(caps, rdna4, 8).turned_layout == 0);
}

TEST_CASE("matrix: products are turned where P stays in registers only so") {
    const DeviceCaps caps = probed_turned(matrix_device("amd_navi31"), true);
    const VkattnProblem p = half({128, 128}, {1, 2, 2, 300, 300});
    CHECK(name_of(forward_of(planned(caps, p))) == "forward_matrix_f16_turned");
    CHECK(planned_constant(caps, p, {}, "p_exchanged") == 1);
    CHECK(name_of(forward_of(planned(caps, p, named("matrix_khr")))) == "forward_matrix_f16_rounded");
    // By the caller's numbers they are not; P then goes through shared memory.
    const Plan asked = planned(caps, p, named("matrix", "turned=0,halves=1,subgroups=4,q_held=112"));
    CHECK(name_of(forward_of(asked)) == "forward_matrix_f16_rounded");
    CHECK(asked.tuning.find("move=2,turned=0") != std::string::npos);
    const Plan moved = planned(caps, p, named("matrix", "move=3"));
    CHECK(moved.tuning.find("move=3,turned=0") != std::string::npos);
    CHECK(moved.tuning_row == "matrix-d128");  // not a row of turned products
    CHECK(refusal(probed(caps, false), p, named("matrix", "turned=2")) == "options.tuning: turned is 0 or 1");
    const auto refused_turned = [&](const DeviceCaps& device, const char* kernel) {
        return refusal(device, p, named(kernel, "turned=1")).find("turned=1 needs the kernel") !=
               std::string::npos;
    };
    CHECK(refused_turned(matrix_device("amd_navi31"), "matrix"));
    // Once it was turned where it takes no layout.
    CHECK(refused_turned(caps, "matrix_khr"));
}
