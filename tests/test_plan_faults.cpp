// Faults planted into sound plans of every kernel: the checks notice each of them.
#include <doctest/doctest.h>

#include "plan_faults.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;

VkattnProblem given(HeadDims dims, const Shape& shape, Layout layout = Layout::contiguous,
                    VkattnDtype dtype = f32) {
    return make_problem(dims, shape, layout, 16, dtype);
}

VkattnProblem given(HeadDims dims, const Shape& shape, VkattnDtype dtype) {
    return given(dims, shape, Layout::contiguous, dtype);
}

VkattnProblem with_softcap(VkattnProblem p) {
    p.softcap = 30;
    return p;
}

VkattnProblem with_lengths(VkattnProblem p) {
    p.kv_lengths = 1;
    p.align = VKATTN_ALIGN_OFFSETS;
    return p;
}

Sound forward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, const Options& o = {}) {
    return {name, caps, resolved(p), o, {}};
}

Sound backward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, bool dlse = false,
               const Options& o = {}) {
    return {name, caps, resolved(p), o, make_backward(resolved(p), dlse)};
}

Options in_parts(Options o) {
    o.num_splits = 3;
    return o;
}

Options invariant(Options o) {
    o.batch_invariant = true;
    return o;
}

Options rounded(Options o) {
    o.precision = VKATTN_PRECISION_FLOAT16;
    return o;
}

// `but`: numbers of the tuning that a plan may have more than one value of. A combine has none, and no more than work.
void check_faults(const Sound& s, bool on_units = false, const std::set<std::string>& but = {}) {
    INFO(std::string(s.name));
    Faults f(s);
    REQUIRE_EQ(f.flaw(), "");
    REQUIRE_EQ(on_matrices(f.plan()), on_units);
    plant_in_work(f);
    if (!s.combine) plant_in_plan(f);
    if (!s.combine && !(on_units && s.backward)) plant_in_tuning(f, but);
    CHECK_EQ(f.unnoticed(), "");
    CHECK_GT(f.planted(), 200);
}

DeviceCaps without_16bit_storage(DeviceCaps caps) {
    caps.storage_16bit = false;
    return caps;
}

}  // namespace

TEST_CASE("faults: forward of the portable kernels") {
    const DeviceCaps &h200 = profile("nvidia_h200"), &navi = profile("amd_navi31"),
                     &cpu = profile("lavapipe");
    const VkattnProblem plain = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd);
    const Shape decode{2, 8, 2, 1, 4096};
    for (const Sound& s :
         {forward("softcap", h200, with_softcap(plain)),
          forward("lengths, offsets", cpu, with_lengths(plain)),
          forward("packed words", without_16bit_storage(navi),
                  given(d64, square(2, 2, 300), Layout::padded, f16)),
          forward("wide", navi, given(d64, square(2, 2, 300), Layout::wide, bf16)),
          forward("classes", h200,
                  masked(given(d64, {2, 8, 2, 700, 900}), VKATTN_MASK_FLOAT, MaskShape::all_batches)),
          forward("parts", cpu, given(d128, {2, 8, 2, 300, 3000, true, 900}), in_parts(kernel("tiles"))),
          forward("cut", h200, given(d64, square(2, 4, 2048)), limited(1'000'000'000)),
          forward("invariant", cpu, given(d64, {2, 8, 2, 40, 3000}, f16), invariant({})),
          forward("rows", h200, given(d128, decode, f16)),
          forward("rows in parts", cpu, given(d64, decode), in_parts({}))})
        check_faults(s);
}

TEST_CASE("faults: the baseline") {
    Options o = kernel("materialized");
    o.max_scratch_bytes = 1'000'000;
    const VkattnProblem p = given({72, 40}, {2, 6, 2, 97, 203, true});
    check_faults(forward("forward", profile("lavapipe"), p, o));
    check_faults(
        forward("forward, wide", profile("nvidia_h200"), given(d64, square(2, 2, 97), Layout::wide), o));
    check_faults(backward("backward", profile("nvidia_h200"), p, false, o));
}

TEST_CASE("faults: backward of the portable kernels") {
    const DeviceCaps &h200 = profile("nvidia_h200"), &navi = profile("amd_navi31"),
                     &cpu = profile("lavapipe");
    const VkattnProblem plain = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd);
    for (const Sound& s :
         {backward("plain", h200, given(d64, {2, 4, 2, 300, 500, true})),
          backward("lengths, offsets, softcap, dlse", cpu, with_softcap(with_lengths(plain)), true),
          backward("gradient of the mask, classes", h200,
                   masked(given(d64, {2, 4, 2, 700, 900}, f16), VKATTN_MASK_FLOAT, MaskShape::all_heads),
                   true),
          backward("packed words", without_16bit_storage(navi),
                   given(d128, square(1, 2, 300), Layout::padded, bf16)),
          backward("slices", navi, given({576, 512}, square(1, 2, 300))),
          backward("cut", cpu, given(d64, {1, 4, 1, 700, 900}), false, limited(40'000'000))})
        check_faults(s);
}

// Each kind of module, loop, move of P and feature is in some of these plans.
TEST_CASE("faults: forward on matrix units") {
    const DeviceCaps h200 = matrix_device("nvidia_h200"), known = probed(h200),
                     navi = matrix_device("amd_navi31");
    const Options matrix = kernel("matrix");
    const Shape shape{2, 8, 2, 300, 3000, true};
    const VkattnProblem plain = given(d128, {2, 4, 2, 700, 900}, f16);
    for (const Sound& s :
         {forward("registers", known, given(d64, shape, f16), matrix),
          forward("converted", h200, with_softcap(given(d128, shape, bf16)), matrix),
          forward("rounded", navi, given(d128, shape, f16), kernel("matrix_khr")),
          forward("of float32", known, given({111, 59}, shape, f32), rounded(matrix)),
          forward("chunks, slices", navi, given({576, 512}, shape, f16), matrix),
          forward("bias", known, masked(plain, VKATTN_MASK_FLOAT, MaskShape::all_batches), matrix),
          forward("lengths, offsets, mask", h200,
                  with_lengths(masked(plain, VKATTN_MASK_BOOL, MaskShape::whole)), matrix),
          forward("parts", known, given(d64, shape, f16), in_parts(matrix)),
          forward("cut", known, given(d64, {2, 16, 16, 2048, 2048}, bf16),
                  limited(2'000'000'000, 0, "matrix")),
          forward("invariant", h200, given({72, 72}, shape, f16), invariant(matrix)),
          forward("packed", known, given(d64, {2, 16, 2, 9, 2048}, f16), matrix)})
        // Head dims that these limit are the same for more than one number.
        check_faults(s, true, {"q_held", "chunk", "slice"});
}

TEST_CASE("faults: backward on matrix units") {
    const DeviceCaps h200 = probed(matrix_device("nvidia_h200"));
    const Options matrix = kernel("matrix");
    const Shape shape{2, 8, 2, 300, 700, true};
    for (const Sound& s :
         {backward("registers", h200, given(d64, shape, f16), true, matrix),
          backward("gradient of the mask", h200,
                   masked(given(d64, {2, 4, 2, 300, 512}, f16), VKATTN_MASK_FLOAT, MaskShape::all_batches),
                   true, matrix),
          backward("pairs", h200, given({256, 256}, shape, f16), true, matrix),
          backward("turned", probed_turned(matrix_device("amd_navi31"), true), given(d128, shape, f16), true,
                   matrix),
          backward("rounded", matrix_device("nvk_ampere"), given(d64, shape, f32), true, rounded(matrix)),
          backward("cut", h200, given(d64, {1, 4, 1, 700, 900}, f16), true,
                   limited(60'000'000, 0, "matrix"))})
        check_faults(s, true);
}

TEST_CASE("faults: a combine") {
    VkattnCombine c = core::default_combine();
    c.num_parts = 5;
    c.batch = 2;
    c.num_heads = 3;
    c.seqlen_q = 300;
    c.head_dim_v = 64;
    c.dtype = c.parts_dtype = f16;
    const auto resolved_combine = core::resolve(c);
    REQUIRE(resolved_combine);
    check_faults({"combine", profile("nvidia_h200"), {}, {}, {}, *resolved_combine});
}
