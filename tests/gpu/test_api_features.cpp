// These tests are like those of test_api.cpp, of what masks, lengths, offsets and combines refuse.
#include "api_calls.hpp"
#include "arrays.hpp"
#include "cases.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

using C = VkattnCombine;

VkattnCombine good_combine() {
    VkattnCombine c = combine();
    c.num_parts = 3;
    c.batch = 2;
    c.num_heads = 4;
    c.seqlen_q = 5;
    c.head_dim_v = 8;
    return c;
}

Seen create_combine(VkattnContext* context, const VkattnCombine* combine) {
    return make(vkattn_plan_destroy, vkattn_combine_create, context, combine);
}

// Addresses that suit the case `featured`.
VkattnForwardArgs args_at(const Buffer& memory) {
    VkattnForwardArgs args = forward_args();
    args.query = args.key = args.value = args.mask = memory.address();
    set_array_addresses(args, memory.address() + 4);
    args.out = memory.address() + 1024;
    args.lse = memory.address() + 2048;
    args.scratch_buffer = memory.handle();
    args.scratch_offset = 4096;
    args.scratch_address = memory.address() + args.scratch_offset;
    return args;
}

}  // namespace

TEST_CASE_FIXTURE(Abi, "recording refuses null and misaligned masks, lengths and offsets") {
    const Plan plan(c, parse_case(featured<VkattnForwardArgs>(), "here").problem);
    const Buffer memory = runtime.allocate(1 << 16);
    using A = VkattnForwardArgs;
    std::vector<std::pair<std::string, std::function<void(A&)>>> faults = {
        {"args.mask", [](A& a) { a.mask = 0; }},
        {"args.mask", [](A& a) { a.mask += 1; }},
    };
    for (const OptionalArray& array : optional_arrays) {
        if (array.example == nullptr) continue;
        const std::string field = std::string("args.") + array.name;
        faults.emplace_back(field, [&](A& a) { a.*array.forward = 0; });
        for (const uint32_t off : {1u, 2u})
            if (off % alignment_of(array) != 0)
                faults.emplace_back(field, [&, off](A& a) { a.*array.forward += off; });
    }
    between.take_commands();
    for (const auto& [field, spoil] : faults) {
        VkattnForwardArgs args = args_at(memory);
        spoil(args);
        CAPTURE(field);
        check_invalid(call(vkattn_cmd_forward, commands, plan.get(), &args), field);
        check_invalid(call(vkattn_cmd_forward_range, commands, plan.get(), &args, 0u, 1u), field);
    }
    CHECK(between.take_commands().empty());
    // Two bytes are an element here, and one is one of a bool mask.
    VkattnForwardArgs args = args_at(memory);
    args.query += 2, args.key += 2, args.value += 2, args.out += 2, args.mask += 2;
    CHECK(call(vkattn_cmd_forward, commands, plan.get(), &args).returned == VKATTN_OK);
    const Plan bytes(c, parse_case("s=5 mask=bool mask_shape=5,5", "here").problem);
    args = args_at(memory);
    args.mask += 3;
    set_array_addresses(args, 1);  // not looked at
    CHECK(call(vkattn_cmd_forward, commands, bytes.get(), &args).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "a combine names the field that is wrong") {
    const VkattnCombine good = good_combine();
    CHECK(create_combine(c, &good).returned == VKATTN_OK);
    check_invalid(create_combine(nullptr, &good), "context");
    check_invalid(create_combine(c, nullptr), "combine");
    check_invalid(call(vkattn_combine_create, c, &good, nullptr), "plan");
    // Each rule is tested without a device (tests/problems.txt).
    const std::pair<const char*, void (*)(C&)> faults[] = {
        {"combine.struct_size", [](C& x) { x.struct_size = 0; }},
        {"combine.struct_size", [](C& x) { x.struct_size += 8; }},
        {"combine.dtype", [](C& x) { x.dtype = static_cast<VkattnDtype>(3); }},
        {"combine.num_parts", [](C& x) { x.num_parts = 0; }},
        {"combine.out_strides", [](C& x) { x.out_strides.seq = 7; }},
    };
    for (const auto& [name, spoil] : faults) {
        const std::string field = name;
        VkattnCombine x = good;
        spoil(x);
        CAPTURE(field);
        check_invalid(create_combine(c, &x), field);
    }
}

TEST_CASE_FIXTURE(Abi, "recording a combine refuses null and misaligned addresses") {
    const Plan plan(c, good_combine());
    const Buffer memory = runtime.allocate(1 << 16);
    VkattnCombineArgs good = combine_args();
    good.parts = memory.address();
    good.parts_lse = memory.address() + (1 << 13);
    good.out = memory.address() + (1 << 14);
    good.lse = memory.address() + (1 << 15);
    between.take_commands();
    check_invalid(call(vkattn_cmd_combine, nullptr, plan.get(), &good), "command_buffer");
    check_invalid(call(vkattn_cmd_combine, commands, nullptr, &good), "plan");
    check_invalid(call(vkattn_cmd_combine, commands, plan.get(), nullptr), "args");
    using A = VkattnCombineArgs;
    const std::pair<const char*, void (*)(A&)> faults[] = {
        {"args.struct_size", [](A& a) { a.struct_size = 1; }},
        {"args.parts", [](A& a) { a.parts = 0; }},
        {"args.parts", [](A& a) { a.parts += 2; }},
        {"args.parts_lse", [](A& a) { a.parts_lse = 0; }},
        {"args.parts_lse", [](A& a) { a.parts_lse += 1; }},
        {"args.out", [](A& a) { a.out = 0; }},
        {"args.out", [](A& a) { a.out += 3; }},
        {"args.lse", [](A& a) { a.lse += 2; }}};
    for (const auto& [name, spoil] : faults) {
        const std::string field = name;
        VkattnCombineArgs args = good;
        spoil(args);
        CAPTURE(field);
        check_invalid(call(vkattn_cmd_combine, commands, plan.get(), &args), field);
    }
    CHECK(between.take_commands().empty());
    good.lse = 0;  // not wanted
    CHECK(call(vkattn_cmd_combine, commands, plan.get(), &good).returned == VKATTN_OK);
    VkattnCombine of_nothing = good_combine();
    of_nothing.batch = 0;
    const Plan empty(c, of_nothing);
    between.take_commands();
    CHECK(call(vkattn_cmd_combine, commands, empty.get(), &(good = combine_args())).returned == VKATTN_OK);
    CHECK(between.take_commands().empty());
}
