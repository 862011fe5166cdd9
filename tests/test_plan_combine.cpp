// Plans of vkattn_combine_create.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Combine;

namespace {

Combine combine(const VkattnCombine& given) {
    const auto c = core::resolve(given);
    if (!c) throw std::runtime_error(c.failure().field + ": " + c.failure().message);
    return *c;
}

VkattnCombine simple(uint32_t parts, uint32_t batch, uint32_t heads, uint32_t seqlen, uint32_t dim) {
    VkattnCombine c = core::default_combine();
    c.num_parts = parts;
    c.batch = batch;
    c.num_heads = heads;
    c.seqlen_q = seqlen;
    c.head_dim_v = dim;
    return c;
}

std::string flaw(const DeviceCaps& caps, const VkattnCombine& given) {
    const Combine c = combine(given);
    const auto plan = make_plan(caps, c);
    if (!plan) return "refused: " + plan.failure().message;
    return flaw_of(caps, c, *plan);
}

}  // namespace

TEST_CASE("combine: every device, dtype and shape") {
    struct Types {
        VkattnDtype out, parts;
    };
    for (const Profile& device : usable_devices())
        for (const Types types : {Types{VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT32},
                                  {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_FLOAT32},
                                  {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_FLOAT16},
                                  {VKATTN_DTYPE_BFLOAT16, VKATTN_DTYPE_FLOAT32},
                                  {VKATTN_DTYPE_BFLOAT16, VKATTN_DTYPE_BFLOAT16}})
            for (const HeadDims dims : all_head_dims())
                for (VkattnCombine c :
                     {simple(1, 1, 1, 1, dims.v), simple(3, 2, 5, 97, dims.v), simple(70000, 1, 8, 1, dims.v),
                      simple(2, 70000, 2, 3, dims.v), simple(4, 1, 1, 1u << 24, dims.v),
                      simple(5, 0, 3, 7, dims.v), simple(5, 2, 3, 0, dims.v)}) {
                    c.dtype = types.out;
                    c.parts_dtype = types.parts;
                    const std::string found = flaw(device.caps, c);
                    CHECK_MESSAGE(found.empty(), device.name << ", head_dim_v " << dims.v << ": " << found);
                }
}

TEST_CASE("combine: strides, alignment, and rows far apart") {
    const DeviceCaps& caps = profile("nvidia_h200");
    for (const auto dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16})
        for (const uint32_t alignment : {0u, 4u, 8u, 16u, 32u})
            for (const uint64_t seq :
                 {uint64_t{64}, uint64_t{4096}, uint64_t{1} << 24, uint64_t{1} << 28, uint64_t{1} << 31}) {
                VkattnCombine c = simple(3, 2, 4, 50, 61);
                c.dtype = dtype;
                c.alignment_bytes = alignment;
                c.part_stride = 2 * 4 * 50 * seq;
                c.parts_strides = {seq, 2 * seq, 8 * seq};
                c.out_strides = {200 * seq, 50 * seq, seq};
                INFO("alignment " << alignment << ", seq " << seq);
                CHECK_EQ(flaw(caps, c), "");
            }
}

TEST_CASE("combine: strides that are never taken have no alignment") {
    VkattnCombine c = simple(1, 1, 1, 1, 64);
    c.alignment_bytes = 16;
    const auto plain = make_plan(profile("nvidia_h200"), combine(c));
    c.part_stride = 77;
    c.parts_strides = c.out_strides = {75, 71, 67};
    const auto odd = make_plan(profile("nvidia_h200"), combine(c));
    REQUIRE(plain);
    REQUIRE(odd);
    CHECK_EQ(difference(*plain, *odd), "");
    c.num_parts = 2;
    const auto taken = core::resolve(c);
    REQUIRE_FALSE(taken);
    CHECK_EQ(taken.failure().field, "combine.part_stride");
}

TEST_CASE("combine: a grid of few workgroups") {
    DeviceCaps caps = smallest_device();
    caps.max_workgroup_count = {7, 3, 1};
    for (const uint32_t batch : {1u, 2u, 5u})
        for (const uint32_t heads : {1u, 7u, 8u})
            for (uint32_t seqlen = 1; seqlen < 100; seqlen += 3)
                CHECK_EQ(flaw(caps, simple(2, batch, heads, seqlen, 64)), "");
}

TEST_CASE("combine: one dispatch of one pipeline, whatever the lengths") {
    const auto few = make_plan(profile("lavapipe"), combine(simple(3, 2, 2, 5, 64))),
               many = make_plan(profile("lavapipe"), combine(simple(9, 1, 4, 50, 64)));
    REQUIRE((few && many));
    CHECK_EQ(many->dispatches.size(), 1);
    CHECK(few->pipelines[0].constants == many->pipelines[0].constants);
}

TEST_CASE("combine: describe, and refusals") {
    const auto plan = make_plan(profile("lavapipe"), combine(simple(3, 2, 5, 97, 64)));
    REQUIRE(plan);
    const std::string text = core::describe(*plan);  // test_plan.cpp parses one
    CHECK_NE(text.find(R"("kernel":"combine")"), std::string::npos);
    CHECK_NE(text.find(R"("dispatches":[{"variant":"combine_f32")"), std::string::npos);
    DeviceCaps caps = smallest_device();
    caps.buffer_device_address = false;
    const auto refused = make_plan(caps, combine(simple(3, 2, 5, 97, 64)));
    REQUIRE_FALSE(refused);
    CHECK_EQ(refused.failure().status, VKATTN_UNSUPPORTED);
    CHECK_EQ(refused.failure().field, "device");
}
