// Where tensors may lie: interleaved in packed buffers, in buffers of no other usage than an address, beside scratch
// that plans share; and where they may not.
#include <fmt/format.h>

#include <list>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "case_suite.hpp"
#include "own_work.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// The tensors of a packed buffer as one image, and the bytes that a run may write. Offsets are in elements.
struct Image {
    std::vector<std::byte> all;
    std::vector<bool> written;

    void add(const Tensor& tensor, uint64_t offset, bool is_output) {
        const std::vector<bool> covered = tensor.covered();
        const uint64_t first = offset * element_bytes(tensor.dtype);
        all.resize(std::max<size_t>(all.size(), first + covered.size()));
        written.resize(all.size());
        for (size_t i = 0; i < covered.size(); i++)
            if (covered[i]) {
                all[first + i] = tensor.image[i];
                written[first + i] = is_output;
            }
    }
};

// The elements of a tensor in what a packed buffer holds.
std::vector<float> gathered(const Tensor& like, uint64_t offset, const std::vector<std::byte>& all) {
    return like.gather(std::span(all).subspan(offset * element_bytes(like.dtype), like.image.size()));
}

// A case whose tensors are (batch, seq, which, heads, head_dim) or, with heads outside, (batch, heads, seq, which,
// head_dim). Offsets of query, key, value and out are in elements.
struct Packed {
    std::string text;
    uint64_t offsets[4];
};

Packed packed_rows(uint32_t hq, uint32_t hkv, uint32_t d, uint32_t seqlen, const std::string& words) {
    const uint32_t row = (2 * hq + 2 * hkv) * d;
    const std::string strides = fmt::format("{},{},{}", row * seqlen, d, row);
    return {fmt::format("b=2 hq={} hkv={} s={} d={} qs={} ks={} vs={} os={} {}", hq, hkv, seqlen, d, strides,
                        strides, strides, strides, words),
            {0, uint64_t{hq} * d, uint64_t{hq + hkv} * d, uint64_t{hq + 2 * hkv} * d}};
}

Packed packed_heads(uint32_t h, uint32_t d, uint32_t seqlen, const std::string& words) {
    const uint32_t row = 4 * d;
    const std::string strides = fmt::format("{},{},{}", row * seqlen * h, row * seqlen, row);
    return {fmt::format("b=2 h={} s={} d={} qs={} ks={} vs={} os={} {}", h, seqlen, d, strides, strides,
                        strides, strides, words),
            {0, d, 2 * uint64_t{d}, 3 * uint64_t{d}}};
}

std::vector<Packed> packed_cases() {
    return {packed_rows(4, 2, 16, 41, "causal"), packed_rows(3, 3, 24, 33, "dtype=f16 align_bytes=16"),
            packed_rows(4, 1, 7, 19, "dtype=bf16"), packed_heads(3, 8, 29, ""),
            packed_heads(2, 5, 37, "dtype=f16 causal")};
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "query, key, value and out may be interleaved in one packed buffer") {
    for (const Packed& packed : packed_cases()) {
        const Job job(context.get(), packed.text);
        CAPTURE(job.c.text);
        const Tensor out = tensor_of(job.c, 3);
        const Tensor* const tensors[] = {&job.inputs.query, &job.inputs.key, &job.inputs.value, &out};
        Image image;
        for (size_t t = 0; t < 4; t++) image.add(*tensors[t], packed.offsets[t], t == 3);
        RunMemory memory(device);
        const VkDeviceAddress packed_at = memory.add("packed", image.all, image.written, 16);
        VkattnForwardArgs args = forward_args();
        VkDeviceAddress* const addresses[] = {&args.query, &args.key, &args.value, &args.out};
        for (size_t t = 0; t < 4; t++)
            *addresses[t] = packed_at + packed.offsets[t] * element_bytes(job.c.problem.dtype);
        args.lse = memory.output("lse", job.expected.exact.lse.size() * sizeof(float));
        memory.add_scratch(job.plan, args);
        runtime.submit([&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, args); });
        const Outcome outcome{gathered(out, packed.offsets[3], memory.content("packed")),
                              memory.floats("lse")};
        CHECK(compare(outcome, job.expected) == "");
        CHECK(memory.damage() == "");
    }
}

TEST_CASE_FIXTURE(Recorded, "gradients may be interleaved in one packed buffer, as their tensors are") {
    for (const Packed& packed : packed_cases()) {
        const Case c = with_possible_backward_limit(context.get(), parse_case(packed.text, "here"));
        CAPTURE(c.text);
        const Plan plan = backward_plan_of(context.get(), c);
        const BackwardInputs inputs(c);
        const Inputs& f = inputs.forward;
        const Tensor* const tensors[] = {&f.query, &f.key, &f.value, &inputs.out};
        Image given, gradients;  // dout lies where out does, between the gradients
        for (size_t t = 0; t < 4; t++) {
            given.add(*tensors[t], packed.offsets[t], false);
            gradients.add(t == 3 ? inputs.dout : *tensors[t], packed.offsets[t], t != 3);
        }
        RunMemory memory(device);
        const VkDeviceAddress given_at = memory.input("packed", given.all, 16),
                              gradients_at = memory.add("gradients", gradients.all, gradients.written, 16);
        VkattnBackwardArgs args = backward_args();
        VkDeviceAddress* const inputs_at[] = {&args.query, &args.key, &args.value, &args.out};
        VkDeviceAddress* const outputs_at[] = {&args.dquery, &args.dkey, &args.dvalue, &args.dout};
        for (size_t t = 0; t < 4; t++) {
            const uint64_t offset = packed.offsets[t] * element_bytes(c.problem.dtype);
            *inputs_at[t] = given_at + offset;
            *outputs_at[t] = gradients_at + offset;
        }
        args.lse = memory.input("lse", std::as_bytes(std::span(inputs.lse)));
        memory.add_scratch(plan, args);
        runtime.submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, args); });
        const std::vector<std::byte> after = memory.content("gradients");
        const auto of = [&](size_t t) { return gathered(*tensors[t], packed.offsets[t], after); };
        CHECK(compare(Gradients{of(0), of(1), of(2), {}}, expect_gradients(c, inputs)) == "");
        CHECK(memory.damage() == "");
    }
}

TEST_CASE_FIXTURE(Recorded, "tensors may lie in buffers with no other usage than their address") {
    if (!device.has_guard_pages()) return skip("buffers of this usage alone: they go with guard pages");
    for (const char* text : {"b=2 hq=4 hkv=2 sq=19 skv=41 causal", "h=2 sq=3 skv=57 dtype=f16 d=59"}) {
        const Job job(context.get(), text);
        CAPTURE(job.c.text);
        RunMemory scratch(device),
            tensors(device, Place::end, poison_word, VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT);
        const Tensor out = tensor_of(job.c, 3);
        VkattnForwardArgs args = forward_args();
        tensors.add_inputs(job.c, job.inputs, args);
        args.out = tensors.output("out", out, alignment_of(job.c, out));
        args.lse = tensors.output("lse", job.expected.exact.lse.size() * sizeof(float));
        scratch.add_scratch(job.plan, args);
        runtime.submit([&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, args); });
        CHECK(compare({out.gather(tensors.content("out")), tensors.floats("lse")}, job.expected) == "");
        CHECK(tensors.damage() == "");
    }
}

TEST_CASE_FIXTURE(Recorded, "consecutive plans may share scratch, with a barrier between them") {
    // Parts of keys, an argument block, both, and a matrix of scores: each in the scratch of the one before.
    std::list<Job> jobs;
    for (const char* text :
         {"h=2 sq=7 skv=203 splits=3 dtype=f16", "b=2 h=2 sq=33 skv=57 lengths=20,57 causal",
          "b=2 h=2 sq=7 skv=203 splits=4 lengths=203,60", "h=2 s=33 kernel=materialized"})
        jobs.emplace_back(context.get(), text);
    uint64_t most = 0;
    for (const Job& job : jobs) {
        REQUIRE(job.plan.scratch().size_bytes != 0);
        most = std::max(most, job.plan.scratch().size_bytes);
    }
    const Buffer scratch = runtime.allocate(most + 256);
    runtime.fill(scratch, poison_word);
    std::list<Forward> forwards;
    for (int round = 0; round < 2; round++)
        for (const Job& job : jobs) forwards.push_back(job.forward(device));
    runtime.submit([&](VkCommandBuffer commands) {
        auto forward = forwards.begin();
        for (int round = 0; round < 2; round++)
            for (const Job& job : jobs) {
                if (forward != forwards.begin())
                    barrier_between(device, commands, attention_last, attention_first);
                VkattnForwardArgs args = (forward++)->args();
                args.scratch_buffer = scratch.handle();
                args.scratch_offset = 256;
                args.scratch_address = scratch.address() + 256;
                args.scratch_bytes = most;
                job.plan.cmd_forward(commands, args);
            }
    });
    auto forward = forwards.begin();
    for (int round = 0; round < 2; round++)
        for (const Job& job : jobs) check_right(job, *forward++);
}

TEST_CASE_FIXTURE(Abi, "a forward whose outputs overlap something is refused") {
    VkattnProblem p =
        parse_case(
            "b=2 hq=4 hkv=2 sq=5 skv=9 dtype=f16 mask=float mask_shape=5,9 lengths=9,3 offsets=4,0 causal",
            "here")
            .problem;
    const Plan plan(c, p);
    const Buffer scratch = runtime.allocate(1 << 16);
    using A = VkattnForwardArgs;
    A good = forward_args();
    good.query = 1 << 20, good.key = 2 << 20, good.value = 3 << 20, good.out = 4 << 20, good.lse = 5 << 20;
    good.mask = 6 << 20, good.kv_lengths = 7 << 20, good.query_offsets = 8 << 20;
    good.scratch_buffer = scratch.handle(), good.scratch_address = scratch.address();
    const auto record = [&](const A& args) { return call(vkattn_cmd_forward, commands, plan.get(), &args); };
    CHECK(record(good).returned == VKATTN_OK);
    between.take_commands();
    constexpr uint64_t out_bytes = 2 * 4 * 5 * 8 * 2, lse_bytes = 2 * 4 * 5 * 4;
    // Inputs that the last byte of out or lse lies in, and the last byte of which lies there.
    const std::pair<VkDeviceAddress A::*, uint64_t> inputs[] = {
        {&A::query, out_bytes},         {&A::key, 2 * 2 * 9 * 8 * 2}, {&A::value, 2 * 2 * 9 * 8 * 2},
        {&A::mask, 5 * 9 * 2},          {&A::kv_lengths, 2 * 4},      {&A::query_offsets, 2 * 4},
        {&A::scratch_address, 1 << 10}, {&A::lse, lse_bytes}};
    for (const auto& [input, bytes] : inputs) {
        const bool of_scratch = input == &A::scratch_address, of_lse = input == &A::lse;
        for (const auto& [address, legal] : {std::pair{good.*input, false},
                                             {good.*input - out_bytes + 4, false},
                                             {good.*input - out_bytes, true}}) {
            A args = good;
            args.out = address;
            const Seen seen = record(args);
            CAPTURE(seen.error.message);
            if (legal)
                CHECK(seen.returned == VKATTN_OK);
            else
                check_invalid(seen, of_scratch ? "args.scratch_address" : of_lse ? "args.lse" : "args.out");
        }
        A args = good;
        if (!of_scratch) args.out = good.*input + bytes;
        CHECK(record(args).returned == VKATTN_OK);
        args = good;
        args.lse = good.*input + (bytes - 1) / 4 * 4;
        if (of_scratch || of_lse) continue;
        const Seen seen = record(args);
        check_invalid(seen, "args.lse");
        CHECK(std::string(seen.error.message).find("shares memory with args.") == 0);
        args.lse = 0;  // not written
        CHECK(record(args).returned == VKATTN_OK);
    }
}

TEST_CASE_FIXTURE(Abi, "a backward whose outputs overlap something is refused") {
    const Case c_ = parse_case("b=2 hq=4 hkv=2 s=9 mask=float mask_shape=9,9 dlse", "here");
    const Plan plan = backward_plan_of(c, c_);
    const Buffer scratch = runtime.allocate(1 << 16);
    using A = VkattnBackwardArgs;
    A good = backward_args();
    VkDeviceAddress at = 0;
    for (const BackwardTensor& tensor : backward_tensors) good.*tensor.address = at += 1 << 20;
    good.scratch_buffer = scratch.handle(), good.scratch_address = scratch.address();
    const auto record = [&](const A& args) { return call(vkattn_cmd_backward, commands, plan.get(), &args); };
    CHECK(record(good).returned == VKATTN_OK);
    for (const BackwardTensor& output : backward_tensors) {
        for (const BackwardTensor& other : backward_tensors) {
            if (output.address == other.address) continue;
            A args = good;
            args.*output.address = args.*other.address;
            CAPTURE(fmt::format("{} at {}", output.name, other.name));
            const Seen seen = record(args);
            CHECK((seen.returned == VKATTN_OK) == (!output.is_output && !other.is_output));
            if (output.is_output && !other.is_output)
                check_invalid(seen, fmt::format("args.{}", output.name));
        }
        if (!output.is_output) continue;
        A args = good;
        args.*output.address = scratch.address() + 256;
        check_invalid(record(args), "args.scratch_address");
    }
}
