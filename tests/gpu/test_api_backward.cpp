// As test_api.cpp: what the backward's functions refuse, and what they record.
#include <algorithm>
#include <functional>

#include "api_calls.hpp"
#include "arrays.hpp"
#include "backward_run.hpp"
#include "fixture.hpp"

using namespace vkattn;
using namespace vkattn::test;
using Kind = Command::Kind;

namespace {

using A = VkattnBackwardArgs;
using B = VkattnBackward;

// All that a backward may read or write.
const std::string all_featured = featured<A>() + " dlse";

struct Made {
    explicit Made(VkattnContext* context, const std::string& text)
        : c(with_possible_backward_limit(context, parse_case(text, "here"))),
          plan(backward_plan_of(context, c)) {}
    Case c;
    Plan plan;
};

// Inputs lie on top of each other; outputs, and scratch, have so many bytes each.
constexpr uint64_t output_bytes = 1 << 18;

VkattnBackwardArgs backward_args_at(const Buffer& memory) {
    VkattnBackwardArgs args = backward_args();
    set_array_addresses(args, memory.address());
    VkDeviceAddress at = memory.address();
    for (const auto& [name, address, is_output] : backward_tensors)
        args.*address = is_output ? at += output_bytes : memory.address();
    args.scratch_buffer = memory.handle();
    args.scratch_offset = 6 * output_bytes;
    args.scratch_address = memory.address() + args.scratch_offset;
    return args;
}

}  // namespace

TEST_CASE_FIXTURE(Abi, "a backward names what is null, or wrong") {
    const VkattnProblem p = good_problem();
    const VkattnBackward good = backward();
    CHECK(create_backward(c, &p, &good).returned == VKATTN_OK);
    CHECK(create_backward(c, &p, nullptr).returned == VKATTN_OK);
    check_invalid(create_backward(nullptr, &p, &good), "context");
    check_invalid(create_backward(c, nullptr, &good), "problem");
    check_invalid(call(vkattn_backward_create, c, &p, &good, nullptr, nullptr), "plan");
    // Each rule is tested without a device (tests/problems.txt).
    const std::pair<const char*, void (*)(B&)> faults[] = {
        {"backward.struct_size", [](B& b) { b.struct_size = 0; }},
        {"backward.struct_size", [](B& b) { b.struct_size--; }},
        {"backward.struct_size", [](B& b) { b.struct_size += 8; }},
        {"backward.dbias", [](B& b) { b.dbias = 1; }},
        {"backward.dsinks", [](B& b) { b.dsinks = 1; }},
        {"backward.dvalue_strides", [](B& b) { b.dvalue_strides.head = 0; }},
    };
    for (const auto& [field, spoil] : faults) {
        VkattnBackward b = good;
        spoil(b);
        check_invalid(create_backward(c, &p, &b), field);
    }
    VkattnProblem spoilt = p;
    spoilt.num_heads_kv = 3;
    check_invalid(create_backward(c, &spoilt, &good), "problem.num_heads_kv");
}

TEST_CASE_FIXTURE(Abi, "a backward refuses options that it cannot follow") {
    const VkattnProblem p = good_problem();
    const auto refused = [&](const char* field, void (*spoil)(VkattnOptions&)) {
        VkattnOptions o = options();
        spoil(o);
        check_invalid(create_backward(c, &p, nullptr, &o), field);
    };
    using O = VkattnOptions;
    refused("options.struct_size", [](O& o) { o.struct_size = 1; });
    refused("options.kernel", [](O& o) { o.kernel = "rows"; });
    refused("options.tuning", [](O& o) { o.tuning = "rows=3"; });
    VkattnOptions o = options();
    o.kernel = "tiles";
    o.num_splits = 1;
    o.batch_invariant = 1;
    CHECK(create_backward(c, &p, nullptr, &o).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "recording a backward names the address that is null or misaligned") {
    const Made made(c, all_featured);
    const Buffer memory = runtime.allocate(1 << 16);
    between.take_commands();
    struct Tensor {
        std::string field;
        VkDeviceAddress A::*address;
        uint32_t off;  // by which it is misaligned
    };
    std::vector<Tensor> tensors = {{"args.scratch_address", &A::scratch_address, 16}};
    for (const auto& [name, address, is_output] : backward_tensors)
        tensors.push_back(
            {std::string("args.") + name, address, std::string(name).ends_with("lse") ? 2u : 1u});
    for (const OptionalArray& array : optional_arrays)
        if (array.backward != nullptr)
            tensors.push_back({std::string("args.") + array.name, array.backward, alignment_of(array) / 2});
    for (const Tensor& t : tensors)
        for (const bool null : {true, false}) {
            if (!null && t.off == 0) continue;
            VkattnBackwardArgs args = backward_args_at(memory);
            args.*t.address = null ? 0 : args.*t.address + t.off;
            CAPTURE(t.field);
            check_invalid(call(vkattn_cmd_backward, commands, made.plan.get(), &args), t.field);
            check_invalid(call(vkattn_cmd_backward_range, commands, made.plan.get(), &args, 1u, 1u), t.field);
        }
    const std::pair<const char*, void (*)(A&)> faults[] = {
        {"args.scratch_offset", [](A& a) { a.scratch_offset = 2; }},
        {"args.struct_size", [](A& a) { a.struct_size = 0; }},
        {"args.struct_size", [](A& a) { a.struct_size += 8; }}};
    for (const auto& [field, spoil] : faults) {
        VkattnBackwardArgs args = backward_args_at(memory);
        spoil(args);
        check_invalid(call(vkattn_cmd_backward, commands, made.plan.get(), &args), field);
    }
    const VkattnBackwardArgs args = backward_args_at(memory);
    check_invalid(call(vkattn_cmd_backward, nullptr, made.plan.get(), &args), "command_buffer");
    check_invalid(call(vkattn_cmd_backward, commands, nullptr, &args), "plan");
    check_invalid(call(vkattn_cmd_backward, commands, made.plan.get(), nullptr), "args");
    check_invalid(call(vkattn_cmd_backward_range, commands, nullptr, &args, 0u, 1u), "plan");
    CHECK(between.take_commands().empty());
    CHECK(call(vkattn_cmd_backward, commands, made.plan.get(), &args).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "what a backward was not asked for needs no address") {
    const Made made(c, "b=2 hq=4 hkv=2 sq=5 skv=9");
    const Buffer memory = runtime.allocate(1 << 16);
    VkattnBackwardArgs args = backward_args_at(memory);
    args.dlse = args.dbias = args.dsinks = args.mask = 1;
    set_array_addresses(args, 1);
    CHECK(call(vkattn_cmd_backward, commands, made.plan.get(), &args).returned == VKATTN_OK);
    args.dlse = args.dbias = args.mask = 0;
    set_array_addresses(args, 0);
    CHECK(call(vkattn_cmd_backward, commands, made.plan.get(), &args).returned == VKATTN_OK);

    between.take_commands();
    const VkattnBackwardArgs nothing = backward_args();
    for (const char* text : {"b=0 s=5", "s=0", "b=0 s=5 mask=bool mask_shape=5"}) {
        const Made empty(c, text);
        CAPTURE(std::string(text));
        CHECK(empty.plan.segments() == 0);
        CHECK(empty.plan.scratch().size_bytes == 0);
        CHECK(call(vkattn_cmd_backward, commands, empty.plan.get(), &nothing).returned == VKATTN_OK);
    }
    CHECK(between.take_commands().empty());
    // Without queries the gradients of keys are zeros, without keys those of queries.
    const Made no_queries(c, "sq=0 skv=5"), no_keys(c, "sq=5 skv=0");
    args = backward_args_at(memory);
    args.query = args.key = args.value = args.out = args.lse = args.dout = args.dquery = 0;
    CHECK(call(vkattn_cmd_backward, commands, no_queries.plan.get(), &args).returned == VKATTN_OK);
    args.dvalue = 0;
    check_invalid(call(vkattn_cmd_backward, commands, no_queries.plan.get(), &args), "args.dvalue");
    args = backward_args_at(memory);
    args.key = args.value = args.dkey = args.dvalue = 0;
    CHECK(call(vkattn_cmd_backward, commands, no_keys.plan.get(), &args).returned == VKATTN_OK);
    args.dquery = 0;
    check_invalid(call(vkattn_cmd_backward, commands, no_keys.plan.get(), &args), "args.dquery");
}

TEST_CASE_FIXTURE(Abi, "each plan is recorded by its own functions only") {
    const Made made(c, all_featured);
    const Plan forward(c, good_problem());
    VkattnCombine description = vkattn::combine();
    description.seqlen_q = 5;
    description.head_dim_v = 8;
    const Plan combine(c, description);
    const Buffer memory = runtime.allocate(1 << 16);
    const VkattnBackwardArgs backward_of_it = backward_args_at(memory);
    VkattnForwardArgs forward_of_it = forward_args();
    forward_of_it.query = forward_of_it.key = forward_of_it.value = forward_of_it.out = memory.address();
    VkattnCombineArgs combine_of_it = combine_args();
    combine_of_it.parts = combine_of_it.parts_lse = combine_of_it.out = memory.address();
    between.take_commands();
    for (const Plan* const other : {&forward, &combine}) {
        check_invalid(call(vkattn_cmd_backward, commands, other->get(), &backward_of_it), "plan");
        check_invalid(call(vkattn_cmd_backward_range, commands, other->get(), &backward_of_it, 0u, 0u),
                      "plan");
    }
    for (const Plan* const other : {&std::as_const(made.plan), &combine}) {
        check_invalid(call(vkattn_cmd_forward, commands, other->get(), &forward_of_it), "plan");
        check_invalid(call(vkattn_cmd_forward_range, commands, other->get(), &forward_of_it, 0u, 0u), "plan");
    }
    for (const Plan* const other : {&std::as_const(made.plan), &forward})
        check_invalid(call(vkattn_cmd_combine, commands, other->get(), &combine_of_it), "plan");
    CHECK(between.take_commands().empty());
}

TEST_CASE_FIXTURE(Abi, "ranges of segments that a plan does not have are refused") {
    const Buffer memory = runtime.allocate(1 << 16);
    const auto check_ranges = [&](uint32_t all, const std::function<Seen(uint32_t, uint32_t)>& record) {
        REQUIRE(all > 3);
        for (const auto& [first, count] : {std::pair{0u, all + 1},
                                           {all, 1u},
                                           {all + 1, 0u},
                                           {1u, all},
                                           {1u, UINT32_MAX},
                                           {UINT32_MAX, 1u},
                                           {UINT32_MAX, UINT32_MAX}}) {
            const Seen seen = record(first, count);
            CHECK(seen.returned == VKATTN_INVALID_ARGUMENT);
            CHECK((seen.field() == "first" || seen.field() == "count"));
        }
        // Nothing to record is no fault.
        for (const uint32_t first : {0u, all}) CHECK(record(first, 0).returned == VKATTN_OK);
    };
    between.take_commands();
    const Made made(c, "b=2 hq=4 hkv=2 sq=97 skv=203 max_flops=2000000");
    const VkattnBackwardArgs args = backward_args_at(memory);
    check_ranges(made.plan.segments(), [&](uint32_t first, uint32_t count) {
        return call(vkattn_cmd_backward_range, commands, made.plan.get(), &args, first, count);
    });
    const Plan plan = plan_of(c, with_possible_limit(c, made.c));
    VkattnForwardArgs forward = forward_args();
    forward.query = forward.key = forward.value = memory.address();
    forward.out = memory.address() + output_bytes;
    check_ranges(plan.segments(), [&](uint32_t first, uint32_t count) {
        return call(vkattn_cmd_forward_range, commands, plan.get(), &forward, first, count);
    });
    forward.query = 0;
    check_invalid(call(vkattn_cmd_forward_range, commands, plan.get(), &forward, plan.segments() - 1, 1u),
                  "args.query");
    CHECK(between.take_commands().empty());
}

namespace {

bool is(const Command& c, Kind kind) {
    return c.kind == kind;
}

// The argument block is written once, before all else, and waited for; then nothing but dispatches with their pipelines
// and push constants, and barriers between them.
void check_order(const std::vector<Command>& commands, const VkattnBackwardArgs& args) {
    uint64_t written = 0;  // bytes of the block
    size_t barriers = 0, dispatches = 0;
    for (const Command& command : commands) {
        CHECK_FALSE(is(command, Kind::update));
        if (is(command, Kind::barrier)) {
            barriers++;
            CHECK(guards_compute(command));
            CHECK(written >= sizeof(shared::BackwardArguments));
        }
        if (!is(command, Kind::dispatch)) continue;
        CHECK(command.pipeline != VK_NULL_HANDLE);
        if (has_field(command, "block")) {
            CHECK(barriers == 0);
            CHECK(pushed(command, "block") == args.scratch_address + written);
            written += ARGUMENT_PART_BYTES;
        } else {
            CHECK(barriers != 0);
            CHECK(pushed(command, "arguments") == args.scratch_address);
            dispatches++;
        }
    }
    CHECK(dispatches != 0);
    CHECK(is(commands.back(), Kind::dispatch));
}

// Dispatches of one pipeline are a pass; passes depend on each other, and so do spans of one loop that is cut.
// Returns how many such pairs there are.
int check_barriers(const std::vector<Command>& commands) {
    std::vector<size_t> at;
    for (size_t i = 0; i < commands.size(); i++)
        if (is(commands[i], Kind::dispatch)) at.push_back(i);
    int pairs = 0;
    for (size_t i = 0; i + 1 < at.size(); i++) {
        const Command &a = commands[at[i]], &b = commands[at[i + 1]];
        const bool continues =
            a.pipeline == b.pipeline && has_field(b, "first_step") && pushed(b, "first_step") != 0;
        if (a.pipeline == b.pipeline && !continues) continue;
        pairs++;
        CHECK(std::any_of(commands.begin() + static_cast<std::ptrdiff_t>(at[i]),
                          commands.begin() + static_cast<std::ptrdiff_t>(at[i + 1]), guards_compute));
    }
    return pairs;
}

}  // namespace

TEST_CASE_FIXTURE(
    Abi, "a backward records its argument block, then dispatches with a barrier between dependent ones") {
    const Buffer memory = runtime.allocate(1 << 16);
    VkattnBackwardArgs args = backward_args_at(memory);
    args.scratch_offset += 1024;
    args.scratch_address += 1024;
    const auto recorded = [&](const char* text) {
        const Made made(c, text);
        between.take_commands();
        made.plan.cmd_backward(commands, args);
        const std::vector<Command> all = between.take_commands();
        CAPTURE(std::string(text));
        check_order(all, args);
        const auto count =
            std::count_if(all.begin(), all.end(), [](const Command& x) { return is(x, Kind::dispatch); });
        CHECK(count == made.plan.segments());
        // The later of two segments records the barrier between them.
        for (uint32_t i = 0; i < made.plan.segments(); i++) made.plan.cmd_backward(commands, args, i, 1);
        const std::vector<Command> apart = between.take_commands();
        CHECK(std::ranges::count_if(apart, guards_compute) == std::ranges::count_if(all, guards_compute));
        return check_barriers(all);
    };
    CHECK(recorded("b=2 hq=4 hkv=2 sq=41 skv=57") == 3);  // the block, statistics, the two passes
    CHECK(recorded("sq=0 skv=57") == 1);
    CHECK(recorded("b=2 hq=4 hkv=2 sq=397 skv=403 max_flops=300000") > 10);
}

TEST_CASE_FIXTURE(Abi, "gradients for other lengths, batches or heads compile nothing") {
    const int before = between.pipelines_asked_for();
    const auto make = [&](const char* text) { const Made made(c, text); };
    make("s=33");
    const int after = between.pipelines_asked_for();
    CHECK(after == before + 4);
    for (const char* text : {"s=34", "b=30 sq=40 skv=9999", "hq=12 hkv=4 s=133", "s=33 causal",
                             "s=33 window=1,2", "s=33 scale=-1", "s=33 layout=bshd pad=1", "sq=0 skv=7"})
        make(text);
    CHECK(between.pipelines_asked_for() == after);
    make("s=33 d=9");
    CHECK(between.pipelines_asked_for() == after + 3);
}
