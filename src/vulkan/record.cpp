#include "record.hpp"

#include "aliasing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace vkattn::core {
namespace {

using Addresses = std::array<VkDeviceAddress, static_cast<size_t>(Region::count)>;

Result<bool> check_address(const char* field, VkDeviceAddress address, uint64_t elements,
                           uint32_t alignment_bytes) {
    if (elements == 0) return true;
    if (address == 0) return invalid(field, "is null, but the tensor is not empty");
    if (address % alignment_bytes != 0)
        return invalid(field, fmt::format("{:#x} is not a multiple of {} bytes", address, alignment_bytes));
    return true;
}

// Not 0 if any key's mask is ever read; the number itself does not matter.
uint64_t mask_elements(const Problem& p) {
    return p.mask != VKATTN_MASK_NONE && !p.empty_output() ? p.key_limit : 0;
}

template <class Args>
Result<bool> check_scratch(const VkattnContext& context, const Plan& plan, const Args& args) {
    if (plan.scratch_bytes == 0) return true;
    if (args.scratch_address == 0)
        return invalid("args.scratch_address",
                       fmt::format("is null, the plan needs {} bytes", plan.scratch_bytes));
    if (args.scratch_address % scratch_alignment != 0)
        return invalid("args.scratch_address",
                       fmt::format("is not a multiple of {} bytes", scratch_alignment));
    if (args.scratch_bytes != 0 && args.scratch_bytes < plan.scratch_bytes)
        return invalid("args.scratch_bytes",
                       fmt::format("{}: the plan needs {}", args.scratch_bytes, plan.scratch_bytes));
    if (args.scratch_buffer == VK_NULL_HANDLE) {
        if (plan.arguments.empty()) return true;
        return invalid("args.scratch_buffer", "is null, the plan writes its argument block there");
    }
    VkBufferDeviceAddressInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
    info.buffer = args.scratch_buffer;
    const VkDeviceAddress base = context.vk.vkGetBufferDeviceAddress(context.handle, &info);
    if (base + args.scratch_offset != args.scratch_address)
        return invalid("args.scratch_offset",
                       fmt::format("{}: there the address of args.scratch_buffer is {:#x}, and "
                                   "args.scratch_address is {:#x}",
                                   args.scratch_offset, base + args.scratch_offset, args.scratch_address));
    return true;
}

Result<bool> check(const Plan& plan, const VkattnForwardArgs& args) {
    const Problem& p = plan.problem;
    const uint64_t queries = uint64_t{p.batch} * p.seqlen_q;
    const uint64_t keys = p.empty_output() ? 0 : uint64_t{p.batch} * p.seqlen_kv;
    const std::tuple<const char*, VkDeviceAddress, uint64_t, uint32_t> tensors[] = {
        {"args.query", args.query, queries, p.alignment_bytes},
        {"args.key", args.key, keys, p.alignment_bytes},
        {"args.value", args.value, keys, p.alignment_bytes},
        {"args.out", args.out, queries, p.alignment_bytes},
        {"args.lse", args.lse, args.lse != 0, 4},
        {"args.mask", args.mask, mask_elements(p), p.mask == VKATTN_MASK_FLOAT ? p.element_bytes : 1},
        {"args.kv_lengths", args.kv_lengths, p.kv_lengths != 0 && queries != 0, 4},
        {"args.query_offsets", args.query_offsets, p.align == VKATTN_ALIGN_OFFSETS && queries != 0, 4},
    };
    for (const auto& [field, address, elements, alignment] : tensors)
        if (auto ok = check_address(field, address, elements, alignment); !ok) return ok;
    return true;
}

void put(Addresses& at, Region region, VkDeviceAddress address) {
    at[static_cast<size_t>(region)] = address;
}

// The addresses that forward and backward both have.
template <class Args>
Addresses common_addresses(const Plan& plan, const Args& args) {
    Addresses at{};
    put(at, Region::query, args.query);
    put(at, Region::key, args.key);
    put(at, Region::value, args.value);
    put(at, Region::out, args.out);
    put(at, Region::lse, args.lse);
    put(at, Region::mask, args.mask);
    put(at, Region::kv_lengths, args.kv_lengths);
    put(at, Region::query_offsets, args.query_offsets);
    for (const ScratchRegion& s : plan.scratch) put(at, s.region, args.scratch_address + s.offset_bytes);
    return at;
}

Result<bool> check(const Plan& plan, const VkattnBackwardArgs& args) {
    const Problem& p = plan.problem;
    const Backward& b = *plan.backward;
    const uint64_t queries = uint64_t{p.batch} * p.seqlen_q, keys = uint64_t{p.batch} * p.seqlen_kv;
    const std::tuple<const char*, VkDeviceAddress, uint64_t, uint32_t> tensors[] = {
        {"args.query", args.query, queries, p.alignment_bytes},
        {"args.key", args.key, p.seqlen_q != 0 ? keys : 0, p.alignment_bytes},
        {"args.value", args.value, p.seqlen_q != 0 ? keys : 0, p.alignment_bytes},
        {"args.out", args.out, queries, p.alignment_bytes},
        {"args.lse", args.lse, queries, 4},
        {"args.dout", args.dout, queries, p.alignment_bytes},
        {"args.dlse", args.dlse, b.dlse != 0 ? queries : 0, 4},
        {"args.dquery", args.dquery, queries, p.alignment_bytes},
        {"args.dkey", args.dkey, keys, p.alignment_bytes},
        {"args.dvalue", args.dvalue, keys, p.alignment_bytes},
        {"args.dbias", args.dbias, b.has_bias(), p.element_bytes},
        {"args.mask", args.mask, mask_elements(p), p.mask == VKATTN_MASK_FLOAT ? p.element_bytes : 1},
        {"args.kv_lengths", args.kv_lengths, p.kv_lengths != 0 ? p.batch : 0, 4},
        {"args.query_offsets", args.query_offsets, p.align == VKATTN_ALIGN_OFFSETS ? p.batch : 0, 4},
    };
    for (const auto& [field, address, elements, alignment] : tensors)
        if (auto ok = check_address(field, address, elements, alignment); !ok) return ok;
    return true;
}

Addresses addresses_of(const Plan& plan, const VkattnBackwardArgs& args) {
    Addresses at = common_addresses(plan, args);
    put(at, Region::dout, args.dout);
    put(at, Region::dlse, args.dlse);
    put(at, Region::dquery, args.dquery);
    put(at, Region::dkey, args.dkey);
    put(at, Region::dvalue, args.dvalue);
    put(at, Region::dbias, args.dbias);
    return at;
}

void barrier(const DeviceFunctions& vk, VkCommandBuffer commands, VkPipelineStageFlags from,
             VkAccessFlags written) {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, written,
                                 VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    vk.vkCmdPipelineBarrier(commands, from, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &memory, 0, nullptr,
                            0, nullptr);
}

void apply(const std::vector<Patch>& patches, const Addresses& at, std::span<std::byte> to) {
    for (const Patch& patch : patches) {
        const VkDeviceAddress address = at[static_cast<size_t>(patch.region)];
        // Null stays null: it says that a tensor is not wanted.
        const VkDeviceAddress moved = address != 0 ? address + patch.add : 0;
        std::memcpy(to.data() + patch.at, &moved, sizeof moved);
    }
}

template <class Args>
void write_arguments(const DeviceFunctions& vk, VkCommandBuffer commands, const Plan& plan, const Args& args,
                     const Addresses& at) {
    auto arguments = plan.arguments;
    apply(plan.argument_patches, at, arguments);
    for (const ScratchRegion& s : plan.scratch)
        if (s.region == Region::arguments)
            vk.vkCmdUpdateBuffer(commands, args.scratch_buffer, args.scratch_offset + s.offset_bytes,
                                 arguments.size(), arguments.data());
    barrier(vk, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
}

void record(VkCommandBuffer commands, const VkattnPlan& plan, const Addresses& at, uint32_t first,
            uint32_t count) {
    const DeviceFunctions& vk = plan.context->vk;
    const VkPipelineLayout layout = plan.context->pipelines.layout();
    const Plan& planned = plan.plan;
    PushBytes push{};
    size_t of_pipeline = planned.pipelines.size();
    for (size_t i = first; i < first + count; i++) {
        const Dispatch& d = planned.dispatches[i];
        const Pipeline& p = planned.pipelines[d.pipeline];
        const Kernel kernel = info_of(p.module).kernel;
        if (d.barrier_before)
            barrier(vk, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT);
        if (of_pipeline != d.pipeline) {
            of_pipeline = d.pipeline;
            push = p.push;
            apply(p.patches, at, push);
            vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, plan.pipelines[d.pipeline]);
        }
        const CutPlace cut = cut_place(kernel);
        std::memcpy(push.data() + cut.offset_bytes, &d.cut, cut.size_bytes);
        vk.vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, info_of(kernel).push_bytes,
                              push.data());
        vk.vkCmdDispatch(commands, d.groups[0], d.groups[1], d.groups[2]);
    }
}

template <class Args>
Result<bool> record_checked(VkCommandBuffer commands, const VkattnPlan& plan, const Args& args,
                            const Addresses& at, uint32_t first, uint32_t count) {
    if (auto ok = check(plan.plan, args); !ok) return ok;
    if (auto ok = check_scratch(*plan.context, plan.plan, args); !ok) return ok;
    if (auto ok = check_aliasing(plan.plan, args); !ok) return ok;
    if (!plan.plan.arguments.empty() && first == 0 && count != 0)
        write_arguments(plan.context->vk, commands, plan.plan, args, at);
    record(commands, plan, at, first, count);
    return true;
}

}  // namespace

Result<bool> record_forward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnForwardArgs& args,
                            uint32_t first, uint32_t count) {
    if (plan.plan.combine)
        return invalid("plan", "is of vkattn_combine_create: vkattn_cmd_combine records it");
    if (plan.plan.backward)
        return invalid("plan", "is of vkattn_backward_create: vkattn_cmd_backward records it");
    return record_checked(commands, plan, args, common_addresses(plan.plan, args), first, count);
}

Result<bool> record_backward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnBackwardArgs& args,
                             uint32_t first, uint32_t count) {
    if (!plan.plan.backward)
        return invalid("plan", "is not of vkattn_backward_create: vkattn_cmd_backward cannot record it");
    return record_checked(commands, plan, args, addresses_of(plan.plan, args), first, count);
}

Result<bool> record_combine(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnCombineArgs& args) {
    if (!plan.plan.combine)
        return invalid("plan", "is not of vkattn_combine_create: vkattn_cmd_combine cannot record it");
    const Combine& c = *plan.plan.combine;
    const uint64_t rows = uint64_t{c.batch} * c.num_heads * c.seqlen_q;
    const std::tuple<const char*, VkDeviceAddress, uint64_t, uint32_t> tensors[] = {
        {"args.parts", args.parts, rows, std::max(c.alignment_bytes, c.parts_element_bytes)},
        {"args.parts_lse", args.parts_lse, rows, 4},
        {"args.out", args.out, rows, c.alignment_bytes},
        {"args.lse", args.lse, args.lse != 0, 4},
    };
    for (const auto& [field, address, elements, alignment] : tensors)
        if (auto ok = check_address(field, address, elements, alignment); !ok) return ok;
    if (auto ok = check_aliasing(plan.plan, args); !ok) return ok;
    Addresses at{};
    at[static_cast<size_t>(Region::parts)] = args.parts;
    at[static_cast<size_t>(Region::parts_lse)] = args.parts_lse;
    at[static_cast<size_t>(Region::out)] = args.out;
    at[static_cast<size_t>(Region::lse)] = args.lse;
    record(commands, plan, at, 0, static_cast<uint32_t>(plan.plan.dispatches.size()));
    return true;
}

Result<bool> record_probe(VkCommandBuffer commands, const VkattnPlan& plan, VkDeviceAddress results) {
    Addresses at{};
    put(at, Region::out, results);
    record(commands, plan, at, 0, static_cast<uint32_t>(plan.plan.dispatches.size()));
    return true;
}

}  // namespace vkattn::core
