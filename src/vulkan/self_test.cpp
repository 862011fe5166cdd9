#include "self_test.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "create.hpp"
#include "record.hpp"

namespace vkattn::core {
namespace {

using Shape = SelfTestShape;

constexpr VkattnDtype dtypes[] = {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16};
constexpr uint64_t largest_update = 65536;    // of vkCmdUpdateBuffer
constexpr uint32_t poison_word = 0xffffffff;  // NaN in every type

// Parts of the memory, in bytes from its beginning.
struct Part {
    uint64_t at = 0, size_bytes = 0;
};

bool is_subnormal(const SelfTest& test) {
    return test.numbers == SelfTestNumbers::subnormal;
}

// The memory of a self-test: inputs of each storage type, then what each test writes, then scratch that tests share.
struct Layout {
    struct Inputs {
        Part query, key, value, out, dout;
    };
    struct Outputs {
        Part out, lse, dquery, dkey, dvalue;
    };
    Inputs inputs[std::size(dtypes)];
    Inputs subnormal;               // float16; of a forward only
    Part key_blocks, value_blocks;  // q8_0
    Part lse, scratch;
    std::vector<Outputs> outputs;  // of each test
    uint64_t size_bytes = 0;

    explicit Layout(const std::vector<PlannedTest>& tests) {
        if (tests.empty()) return;
        for (size_t i = 0; i < std::size(dtypes); i++) {
            const uint64_t query = Shape::query_elements * bytes_of(dtypes[i]),
                           key = Shape::key_elements * bytes_of(dtypes[i]);
            inputs[i] = {take(query), take(key), take(key), take(query), take(query)};
        }
        lse = take(Shape::lse_elements * sizeof(float));
        key_blocks = take(Shape::key_elements / 32 * 34);
        value_blocks = take(Shape::key_elements / 32 * 34);
        if (std::ranges::any_of(tests, [](const PlannedTest& t) { return is_subnormal(t.test); })) {
            const Inputs& alike = inputs_of(VKATTN_DTYPE_FLOAT16);
            subnormal = {take(alike.query.size_bytes),
                         take(alike.key.size_bytes),
                         take(alike.value.size_bytes),
                         {},
                         {}};
        }
        for (const auto& [test, verdict, scratch_bytes] : tests) {
            const uint64_t row = uint64_t{Shape::heads_q} * Shape::head_dim * bytes_of(test.dtype);
            const uint64_t keys = Shape::key_elements * bytes_of(test.key_dtype());
            Outputs o;
            if (test.backward)
                o = {{}, {}, take(row * test.rows), take(keys), take(keys)};
            else
                o = {take(row * test.rows),
                     take(uint64_t{Shape::heads_q} * test.rows * sizeof(float)),
                     {},
                     {},
                     {}};
            outputs.push_back(o);
        }
        scratch = take(self_test_scratch_bytes);
    }
    const Inputs& inputs_of(const SelfTest& test) const {
        return is_subnormal(test) ? subnormal : inputs_of(test.dtype);
    }
    const Inputs& inputs_of(VkattnDtype dtype) const {
        size_t i = 0;
        while (i + 1 < std::size(dtypes) && dtypes[i] != dtype) i++;
        return inputs[i];
    }

  private:
    Part take(uint64_t bytes) {
        const Part part{size_bytes, bytes};
        size_bytes += (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
        return part;
    }
};

class Recording {
  public:
    Recording(VkCommandBuffer commands, const VkattnContext& context, const DeviceMemory& memory)
        : commands_(commands), vk_(context.vk), memory_(memory) {}

    VkDeviceAddress address(const Part& part) const { return memory_.address + part.at; }

    void write(const Part& part, std::span<const std::byte> bytes) const {
        for (uint64_t at = 0; at < bytes.size(); at += largest_update)
            vk_.vkCmdUpdateBuffer(commands_, memory_.buffer, memory_.offset + part.at + at,
                                  std::min(largest_update, bytes.size() - at), bytes.data() + at);
    }
    void poison(const Part& part) const {
        if (part.size_bytes != 0)
            vk_.vkCmdFillBuffer(commands_, memory_.buffer, memory_.offset + part.at, part.size_bytes,
                                poison_word);
    }
    // Between the writing of inputs and each test: they share scratch, whose head some plans write by transfer.
    void barrier() const {
        const VkMemoryBarrier all{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr,
                                  VK_ACCESS_TRANSFER_WRITE_BIT | VKATTN_LAST_ACCESS, VKATTN_FIRST_ACCESS};
        vk_.vkCmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_TRANSFER_BIT | VKATTN_LAST_STAGES,
                                 VKATTN_FIRST_STAGES, 0, 1, &all, 0, nullptr, 0, nullptr);
    }

    void write_inputs(const Layout& layout) const {
        const SelfTestInputs in = self_test_inputs();
        const SelfTestReference reference = self_test_reference(in);
        for (const VkattnDtype dtype : dtypes) {
            const Layout::Inputs& to = layout.inputs_of(dtype);
            write(to.query, stored(in.query, dtype));
            write(to.key, stored(in.key, dtype));
            write(to.value, stored(in.value, dtype));
            write(to.out, stored(reference.out, dtype));
            write(to.dout, stored(in.dout, dtype));
        }
        write(layout.key_blocks, stored(in.key, VKATTN_DTYPE_Q8_0));
        write(layout.value_blocks, stored(in.value, VKATTN_DTYPE_Q8_0));
        write(layout.lse, stored(reference.lse, VKATTN_DTYPE_FLOAT32));
        if (layout.subnormal.query.size_bytes != 0) {
            const SelfTestInputs small = self_test_inputs(SelfTestNumbers::subnormal);
            write(layout.subnormal.query, stored(small.query, VKATTN_DTYPE_FLOAT16));
            write(layout.subnormal.key, stored(small.key, VKATTN_DTYPE_FLOAT16));
            write(layout.subnormal.value, stored(small.value, VKATTN_DTYPE_FLOAT16));
        }
        for (const Layout::Outputs& o : layout.outputs)
            for (const Part& part : {o.out, o.lse, o.dquery, o.dkey, o.dvalue}) poison(part);
    }

    template <class Args>
    Args args_of(const Layout& layout, const SelfTest& test) const {
        Args args{};
        args.struct_size = sizeof args;
        const Layout::Inputs& from = layout.inputs_of(test);
        args.query = address(from.query) + uint64_t{Shape::rows - test.rows} * Shape::head_dim *
                                               bytes_of(test.dtype);  // the last rows
        const bool blocks = test.keys == VKATTN_DTYPE_Q8_0;
        const Layout::Inputs& keys = test.mixed() && !blocks ? layout.inputs_of(test.keys) : from;
        args.key = address(blocks ? layout.key_blocks : keys.key);
        args.value = address(blocks ? layout.value_blocks : keys.value);
        args.scratch_buffer = memory_.buffer;
        args.scratch_offset = memory_.offset + layout.scratch.at;
        args.scratch_address = address(layout.scratch);
        args.scratch_bytes = layout.scratch.size_bytes;
        return args;
    }

    Result<bool> record(const Layout& layout, const SelfTest& test, const Layout::Outputs& to,
                        const VkattnPlan& plan) const {
        const auto dispatches = static_cast<uint32_t>(plan.plan.dispatches.size());
        if (!test.backward) {
            auto args = args_of<VkattnForwardArgs>(layout, test);
            args.out = address(to.out);
            args.lse = address(to.lse);
            return record_forward(commands_, plan, args, 0, dispatches);
        }
        auto args = args_of<VkattnBackwardArgs>(layout, test);
        args.out = address(layout.inputs_of(test.dtype).out);
        args.dout = address(layout.inputs_of(test.dtype).dout);
        args.lse = address(layout.lse);
        args.dquery = address(to.dquery);
        args.dkey = address(to.dkey);
        args.dvalue = address(to.dvalue);
        return record_backward(commands_, plan, args, 0, dispatches);
    }

  private:
    VkCommandBuffer commands_;
    const DeviceFunctions& vk_;
    DeviceMemory memory_;
};

// The plan of a test, on the kernel that its verdict is about. A driver that cannot build it has failed the test.
Result<std::unique_ptr<VkattnPlan>> plan_of(VkattnContext& context, PlannedTest& planned) {
    Request request{planned.test.problem(), std::nullopt, {}};
    request.options.precision = planned.test.precision;
    request.options.kernel = planned.verdict.kernel;
    if (planned.test.backward) {
        const auto backward = resolve(request.problem, default_backward());
        if (!backward) return backward.failure();
        request.backward = *backward;
    }
    auto made = create_plan(context, std::move(request));
    if (made) return made;
    const Failure& failure = made.failure();
    for (const VkResult r :
         {VK_ERROR_DEVICE_LOST, VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY})
        if (failure.vk_result == r) return failure;
    planned.verdict.failure = failure.message;
    return std::unique_ptr<VkattnPlan>();
}

SelfTestOutputs outputs_of(const SelfTest& test, const Layout::Outputs& at,
                           std::span<const std::byte> results) {
    const auto load = [&](const Part& part, VkattnDtype dtype) {
        return loaded(results.subspan(part.at, part.size_bytes), dtype);
    };
    return {load(at.out, test.dtype), load(at.lse, VKATTN_DTYPE_FLOAT32), load(at.dquery, test.dtype),
            load(at.dkey, test.key_dtype()), load(at.dvalue, test.key_dtype())};
}

}  // namespace

uint64_t self_test_size(const DeviceCaps& caps) {
    return Layout(pending_tests(caps)).size_bytes;
}

Result<bool> build_self_test(VkattnContext& context, uint32_t index) {
    std::vector<PlannedTest> tests = pending_tests(context.caps);
    if (index >= tests.size()) return invalid("index", fmt::format("there are {} tests", tests.size()));
    const auto plan = plan_of(context, tests[index]);
    if (!plan) return plan.failure();
    return true;
}

Result<bool> record_self_test(VkCommandBuffer commands, VkattnContext& context, const DeviceMemory& memory) {
    std::vector<PlannedTest> tests = pending_tests(context.caps);
    std::vector<std::unique_ptr<VkattnPlan>> plans;
    for (PlannedTest& test : tests) {
        auto plan = plan_of(context, test);
        if (!plan) return plan.failure();
        plans.push_back(std::move(*plan));
    }
    const Layout layout(tests);
    const Recording recording(commands, context, memory);
    const Label label(context.vk, commands, "vkattn self-test");
    recording.write_inputs(layout);
    for (size_t i = 0; i < tests.size(); i++) {
        if (!plans[i]) continue;
        recording.barrier();
        if (auto ok = recording.record(layout, tests[i].test, layout.outputs[i], *plans[i]); !ok) return ok;
    }
    const std::lock_guard lock(context.mutex);
    context.recorded_tests = std::move(tests);
    return true;
}

Result<bool> note_self_test(VkattnContext& context, std::span<const std::byte> results) {
    std::vector<PlannedTest>& tests = context.recorded_tests;
    const Layout layout(tests);
    if (tests.empty() || results.size() != layout.size_bytes)
        return invalid("size_bytes", fmt::format("{}: {} bytes of results were recorded", results.size(),
                                                 layout.size_bytes));
    const SelfTestReference normal = self_test_reference(self_test_inputs()),
                            subnormal = self_test_reference(self_test_inputs(SelfTestNumbers::subnormal));
    std::vector<KernelVerdict> verdicts = context.caps.verdicts;
    for (size_t i = 0; i < tests.size(); i++) {
        KernelVerdict& verdict = tests[i].verdict;
        if (verdict.failure.empty())
            verdict.failure = judge(tests[i], outputs_of(tests[i].test, layout.outputs[i], results),
                                    is_subnormal(tests[i].test) ? subnormal : normal);
        // A kernel may have had several tests; one that failed counts.
        const auto known =
            std::ranges::find_if(verdicts, [&](const KernelVerdict& v) { return is_of(v, verdict); });
        if (known == verdicts.end())
            verdicts.push_back(verdict);
        else if (known->failure.empty())
            known->failure = verdict.failure;
    }
    std::swap(context.caps.verdicts, verdicts);
    tests.clear();
    tell_failures(context, verdicts);
    return true;
}

void tell_failures(const VkattnContext& context, const std::vector<KernelVerdict>& known) {
    for (const KernelVerdict& verdict : context.caps.verdicts) {
        if (verdict.failure.empty() || std::ranges::any_of(known, [&](const KernelVerdict& v) {
                return is_of(v, verdict) && !v.failure.empty();
            }))
            continue;
        context.messages.tell(VKATTN_MESSAGE_WARNING, [&] {
            return "the self-test found a wrong kernel, which is not planned: " + text_of(verdict);
        });
    }
}

}  // namespace vkattn::core
