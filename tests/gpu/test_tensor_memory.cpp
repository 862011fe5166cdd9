// Where tensors may lie: interleaved in packed buffers, in buffers of no other usage than an address, beside scratch
// that plans share; and where they may not.
#include <fmt/format.h>

#include <cstring>
#include <list>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "case_suite.hpp"
#include "own_work.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Copies the elements of a tensor into an image of all tensors of a packed buffer, whose first element is `offset`.
void pack(const Tensor& tensor, uint64_t offset, std::vector<std::byte>& all) {
    const std::vector<bool> covered = tensor.covered();
    const uint64_t first = offset * element_bytes(tensor.dtype);
    all.resize(std::max<size_t>(all.size(), first + covered.size()));
    for (size_t i = 0; i < covered.size(); i++)
        if (covered[i]) all[first + i] = tensor.image[i];
}

// The part of a packed image where a tensor lies.
std::vector<std::byte> unpack(const Tensor& like, uint64_t offset, const std::vector<std::byte>& all) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(offset * element_bytes(like.dtype));
    return {first, first + static_cast<std::ptrdiff_t>(like.image.size())};
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

// What a plan needs of scratch, in memory of its own.
template <class Args>
Guarded give_scratch(Device& device, const Plan& plan, Args& args) {
    const VkattnScratch needed = plan.scratch();
    Guarded scratch(device, needed.size_bytes, Place::end, static_cast<uint32_t>(needed.alignment_bytes));
    args.scratch_buffer = scratch.buffer();
    args.scratch_offset = scratch.offset_bytes();
    args.scratch_address = scratch.address();
    args.scratch_bytes = needed.size_bytes;
    return scratch;
}

Guarded filled(Device& device, std::span<const std::byte> content, uint32_t alignment_bytes = 4) {
    Guarded memory(device, content.size(), Place::end, alignment_bytes);
    memory.write(content);
    return memory;
}

// A buffer whose only usage is SHADER_DEVICE_ADDRESS, on memory that the host has mapped.
class AddressOnly {
  public:
    AddressOnly(Device& device, std::span<const std::byte> content) : device_(device) {
        const Vk& vk = device.vk();
        VkBufferCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
        info.size = content.size();
        info.usage = VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
        REQUIRE(vk.vkCreateBuffer(device.handle(), &info, nullptr, &buffer_) == VK_SUCCESS);
        VkMemoryRequirements needs;
        vk.vkGetBufferMemoryRequirements(device.handle(), buffer_, &needs);
        const VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, nullptr,
                                              VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};
        const VkMemoryAllocateInfo memory{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags, needs.size,
                                          host_type(needs.memoryTypeBits)};
        REQUIRE(vk.vkAllocateMemory(device.handle(), &memory, nullptr, &memory_) == VK_SUCCESS);
        REQUIRE(vk.vkBindBufferMemory(device.handle(), buffer_, memory_, 0) == VK_SUCCESS);
        const auto map = load<PFN_vkMapMemory>("vkMapMemory");
        void* data = nullptr;
        REQUIRE(map(device.handle(), memory_, 0, VK_WHOLE_SIZE, 0, &data) == VK_SUCCESS);
        content_ = {static_cast<std::byte*>(data), content.size()};
        std::copy(content.begin(), content.end(), content_.begin());
    }
    AddressOnly(const AddressOnly&) = delete;
    ~AddressOnly() {
        device_.vk().vkDestroyBuffer(device_.handle(), buffer_, nullptr);
        device_.vk().vkFreeMemory(device_.handle(), memory_, nullptr);
    }

    VkDeviceAddress address() const {
        const VkBufferDeviceAddressInfo at{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, nullptr, buffer_};
        return device_.vk().vkGetBufferDeviceAddress(device_.handle(), &at);
    }
    std::vector<std::byte> read() const { return {content_.begin(), content_.end()}; }

  private:
    template <class Function>
    Function load(const char* name) const {
        const RuntimeHandles h = device_.runtime().handles();
        return reinterpret_cast<Function>(h.get_instance_proc_addr(h.instance, name));
    }
    uint32_t host_type(uint32_t possible) const {
        constexpr VkMemoryPropertyFlags wanted =
            VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
        VkPhysicalDeviceMemoryProperties types;
        load<PFN_vkGetPhysicalDeviceMemoryProperties>("vkGetPhysicalDeviceMemoryProperties")(
            device_.runtime().handles().physical_device, &types);
        uint32_t type = 0;
        while ((possible >> type & 1) == 0 || (types.memoryTypes[type].propertyFlags & wanted) != wanted)
            REQUIRE(++type < types.memoryTypeCount);
        return type;
    }

    Device& device_;
    VkBuffer buffer_ = VK_NULL_HANDLE;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
    std::span<std::byte> content_;
};

}  // namespace

TEST_CASE_FIXTURE(Recorded, "query, key, value and out may be interleaved in one packed buffer") {
    for (const Packed& packed : packed_cases()) {
        const Job job(context.get(), packed.text);
        CAPTURE(job.c.text);
        const Tensor out = tensor_of(job.c, 3);
        const Tensor* const tensors[] = {&job.inputs.query, &job.inputs.key, &job.inputs.value, &out};
        std::vector<std::byte> image;
        for (size_t t = 0; t < 4; t++) pack(*tensors[t], packed.offsets[t], image);
        const Guarded memory = filled(device, image, 16);
        const std::vector<float> lse(job.expected.exact.lse.size());
        const Guarded lse_memory = filled(device, std::as_bytes(std::span(lse)));
        VkattnForwardArgs args = forward_args();
        VkDeviceAddress* const addresses[] = {&args.query, &args.key, &args.value, &args.out};
        for (size_t t = 0; t < 4; t++)
            *addresses[t] = memory.address() + packed.offsets[t] * element_bytes(job.c.problem.dtype);
        args.lse = lse_memory.address();
        const Guarded scratch = give_scratch(device, job.plan, args);
        runtime.submit([&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, args); });

        const std::vector<std::byte> after = memory.read();
        Outcome outcome{out.gather(unpack(out, packed.offsets[3], after)), lse};
        std::memcpy(outcome.lse.data(), lse_memory.read().data(), lse.size() * sizeof(float));
        CHECK(compare(outcome, job.expected) == "");
        for (size_t t = 0; t < 3; t++)
            CHECK(tensors[t]->gather(unpack(*tensors[t], packed.offsets[t], after)) ==
                  tensors[t]->gather(tensors[t]->image));
        CHECK(memory.intact());
    }
}

TEST_CASE_FIXTURE(Recorded, "gradients may be interleaved in one packed buffer, as their tensors are") {
    for (const Packed& packed : packed_cases()) {
        const Case c = with_possible_backward_limit(context.get(), parse_case(packed.text, "here"));
        CAPTURE(c.text);
        const Plan plan = backward_plan_of(context.get(), c);
        const BackwardInputs inputs(c);
        const Inputs& f = inputs.forward;
        std::vector<std::byte> image, poison;
        const std::pair<const Tensor*, uint64_t> tensors[] = {{&f.query, packed.offsets[0]},
                                                              {&f.key, packed.offsets[1]},
                                                              {&f.value, packed.offsets[2]},
                                                              {&inputs.out, packed.offsets[3]}};
        for (const auto& [tensor, offset] : tensors) pack(*tensor, offset, image);
        pack(inputs.dout, packed.offsets[3], poison);  // dout lies where out does, between the gradients
        poison.resize(image.size());
        const Guarded memory = filled(device, image, 16), gradients = filled(device, poison, 16),
                      lse = filled(device, std::as_bytes(std::span(inputs.lse)));
        const auto at = [&](const Guarded& all, size_t t) {
            return all.address() + packed.offsets[t] * element_bytes(c.problem.dtype);
        };
        VkattnBackwardArgs args = backward_args();
        args.query = at(memory, 0), args.key = at(memory, 1), args.value = at(memory, 2);
        args.out = at(memory, 3), args.dout = at(gradients, 3), args.lse = lse.address();
        args.dquery = at(gradients, 0), args.dkey = at(gradients, 1), args.dvalue = at(gradients, 2);
        const Guarded scratch = give_scratch(device, plan, args);
        runtime.submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, args); });

        const std::vector<std::byte> after = gradients.read();
        const auto gathered = [&](size_t t) {
            const Tensor& tensor = *tensors[t].first;
            return tensor.gather(unpack(tensor, packed.offsets[t], after));
        };
        CHECK(compare(Gradients{gathered(0), gathered(1), gathered(2), {}}, expect_gradients(c, inputs)) ==
              "");
        CHECK(gathered(3) == inputs.dout.gather(inputs.dout.image));
        CHECK(memory.read() == image);
        CHECK(gradients.intact());
    }
}

TEST_CASE_FIXTURE(Recorded, "tensors may lie in buffers with no other usage than their address") {
    for (const char* text : {"b=2 hq=4 hkv=2 sq=19 skv=41 causal", "h=2 sq=3 skv=57 dtype=f16 d=59"}) {
        const Job job(context.get(), text);
        CAPTURE(job.c.text);
        const Tensor out = tensor_of(job.c, 3);
        const AddressOnly query(device, job.inputs.query.image), key(device, job.inputs.key.image),
            value(device, job.inputs.value.image), result(device, out.image);
        const std::vector<float> zeros(job.expected.exact.lse.size());
        const AddressOnly lse(device, std::as_bytes(std::span(zeros)));
        VkattnForwardArgs args = forward_args();
        args.query = query.address(), args.key = key.address(), args.value = value.address();
        args.out = result.address(), args.lse = lse.address();
        const Guarded scratch = give_scratch(device, job.plan, args);
        runtime.submit([&](VkCommandBuffer commands) {
            job.plan.cmd_forward(commands, args);
            full_barrier(device, commands);
        });
        Outcome outcome{out.gather(result.read()), zeros};
        std::memcpy(outcome.lse.data(), lse.read().data(), zeros.size() * sizeof(float));
        CHECK(compare(outcome, job.expected) == "");
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
    Recorder recorder(device);
    const VkCommandBuffer commands = recorder.begin();
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
    recorder.end();
}

TEST_CASE_FIXTURE(Abi, "a backward whose outputs overlap something is refused") {
    const Case c_ = parse_case("b=2 hq=4 hkv=2 s=9 mask=float mask_shape=9,9 dlse", "here");
    const Plan plan = backward_plan_of(c, c_);
    const Buffer scratch = runtime.allocate(1 << 16);
    using A = VkattnBackwardArgs;
    A good = backward_args();
    const std::pair<VkDeviceAddress A::*, const char*> tensors[] = {
        {&A::query, "query"}, {&A::key, "key"},       {&A::value, "value"}, {&A::out, "out"},
        {&A::lse, "lse"},     {&A::dout, "dout"},     {&A::dlse, "dlse"},   {&A::mask, "mask"},
        {&A::dbias, "dbias"}, {&A::dquery, "dquery"}, {&A::dkey, "dkey"},   {&A::dvalue, "dvalue"}};
    VkDeviceAddress at = 0;
    for (const auto& [tensor, name] : tensors) good.*tensor = at += 1 << 20;
    good.scratch_buffer = scratch.handle(), good.scratch_address = scratch.address();
    Recorder recorder(device);
    const VkCommandBuffer commands = recorder.begin();
    const auto record = [&](const A& args) { return call(vkattn_cmd_backward, commands, plan.get(), &args); };
    CHECK(record(good).returned == VKATTN_OK);
    for (const auto& [output, output_name] : tensors) {
        const bool is_output = std::string(output_name).front() == 'd' &&
                               std::string(output_name) != "dout" && std::string(output_name) != "dlse";
        for (const auto& [other, other_name] : tensors) {
            if (output == other) continue;
            A args = good;
            args.*output = args.*other;
            CAPTURE(std::string(output_name) + " at " + other_name);
            const bool other_is_output =
                other == &A::dbias || other == &A::dquery || other == &A::dkey || other == &A::dvalue;
            const Seen seen = record(args);
            CHECK((seen.returned == VKATTN_OK) == (!is_output && !other_is_output));
            if (is_output && !other_is_output) check_invalid(seen, fmt::format("args.{}", output_name));
        }
        if (!is_output) continue;
        A args = good;
        args.*output = scratch.address() + 256;
        check_invalid(record(args), "args.scratch_address");
    }
    recorder.end();
}
