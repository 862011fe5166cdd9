// Faults planted into plans of the portable kernels: the checks notice each of them.
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

VkattnProblem with_mask(VkattnProblem p, VkattnMaskType mask, MaskShape shape) {
    set_mask(p, mask, shape);
    return p;
}

Sound forward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, const Options& o = {}) {
    return {name, caps, resolved(p), o, {}};
}

Sound backward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, bool dlse = false,
               const Options& o = {}) {
    return {name, caps, resolved(p), o, make_backward(resolved(p), dlse)};
}

Options limited(uint64_t flops, const char* kernel_name = "") {
    Options o = kernel(kernel_name);
    o.max_dispatch_flops = flops;
    return o;
}

void check_faults(const Sound& s) {
    INFO(std::string(s.name));
    Faults f(s);
    REQUIRE_EQ(f.flaw(), "");
    plant_in_work(f);
    plant_in_plan(f);
    plant_in_tuning(f);
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
    VkattnProblem capped = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd), lengths = capped;
    capped.softcap = 30;
    lengths.kv_lengths = 1;
    lengths.align = VKATTN_ALIGN_OFFSETS;
    Options parts = kernel("tiles"), few_parts, invariant;
    parts.num_splits = few_parts.num_splits = 3;
    invariant.batch_invariant = true;
    const Shape decode{2, 8, 2, 1, 4096};
    for (const Sound& s :
         {forward("softcap", h200, capped), forward("lengths, offsets", cpu, lengths),
          forward("packed words", without_16bit_storage(navi),
                  given(d64, square(2, 2, 300), Layout::padded, f16)),
          forward("wide", navi, given(d64, square(2, 2, 300), Layout::wide, bf16)),
          forward("classes", h200,
                  with_mask(given(d64, {2, 8, 2, 700, 900}), VKATTN_MASK_FLOAT, MaskShape::all_batches)),
          forward("parts", cpu, given(d128, {2, 8, 2, 300, 3000, true, 900}), parts),
          forward("cut", h200, given(d64, square(2, 4, 2048)), limited(1'000'000'000)),
          forward("invariant", cpu, given(d64, {2, 8, 2, 40, 3000}, Layout::contiguous, f16), invariant),
          forward("rows", h200, given(d128, decode, Layout::contiguous, f16)),
          forward("rows in parts", cpu, given(d64, decode), few_parts)})
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

TEST_CASE("faults: backward") {
    const DeviceCaps &h200 = profile("nvidia_h200"), &navi = profile("amd_navi31"),
                     &cpu = profile("lavapipe");
    VkattnProblem lengths = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd);
    lengths.softcap = 30;
    lengths.kv_lengths = 1;
    lengths.align = VKATTN_ALIGN_OFFSETS;
    const VkattnProblem bias = with_mask(given(d64, {2, 4, 2, 700, 900}, Layout::contiguous, f16),
                                         VKATTN_MASK_FLOAT, MaskShape::all_heads);
    for (const Sound& s : {backward("plain", h200, given(d64, {2, 4, 2, 300, 500, true})),
                           backward("lengths, offsets, softcap, dlse", cpu, lengths, true),
                           backward("gradient of the mask, classes", h200, bias, true),
                           backward("packed words", without_16bit_storage(navi),
                                    given(d128, square(1, 2, 300), Layout::padded, bf16)),
                           backward("slices", navi, given({576, 512}, square(1, 2, 300))),
                           backward("cut", cpu, given(d64, {1, 4, 1, 700, 900}), false, limited(40'000'000))})
        check_faults(s);
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
    const Sound s{"combine", profile("nvidia_h200"), {}, {}, {}, *resolved_combine};
    Faults f(s);
    REQUIRE_EQ(f.flaw(), "");
    plant_in_work(f);
    CHECK_EQ(f.unnoticed(), "");
    CHECK_GT(f.planted(), 200);
}
