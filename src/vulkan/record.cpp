#include "record.hpp"

#include <fmt/format.h>

#include <cstring>

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
    };
    for (const auto& [field, address, elements, alignment] : tensors)
        if (auto ok = check_address(field, address, elements, alignment); !ok) return ok;
    if (plan.scratch_bytes == 0) return true;
    if (args.scratch_address == 0)
        return invalid("args.scratch_address",
                       fmt::format("is null, the plan needs {} bytes", plan.scratch_bytes));
    if (args.scratch_address % scratch_alignment != 0)
        return invalid("args.scratch_address",
                       fmt::format("is not a multiple of {} bytes", scratch_alignment));
    if (args.scratch_offset % 4 != 0) return invalid("args.scratch_offset", "is not a multiple of 4 bytes");
    if (!plan.arguments.empty() && args.scratch_buffer == VK_NULL_HANDLE)
        return invalid("args.scratch_buffer", "is null, the plan writes its argument block there");
    return true;
}

Addresses addresses_of(const Plan& plan, const VkattnForwardArgs& args) {
    Addresses at{};
    const auto put = [&](Region region, VkDeviceAddress address) {
        at[static_cast<size_t>(region)] = address;
    };
    put(Region::query, args.query);
    put(Region::key, args.key);
    put(Region::value, args.value);
    put(Region::out, args.out);
    put(Region::lse, args.lse);
    put(Region::mask, args.mask);
    put(Region::kv_lengths, args.kv_lengths);
    put(Region::query_offsets, args.query_offsets);
    for (const ScratchRegion& s : plan.scratch) put(s.region, args.scratch_address + s.offset_bytes);
    return at;
}

void barrier(const DeviceFunctions& vk, VkCommandBuffer commands, VkPipelineStageFlags from,
             VkAccessFlags written) {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, written,
                                 VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    vk.vkCmdPipelineBarrier(commands, from, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &memory, 0, nullptr,
                            0, nullptr);
}

void write_arguments(const DeviceFunctions& vk, VkCommandBuffer commands, const Plan& plan,
                     const VkattnForwardArgs& args) {
    for (const ScratchRegion& s : plan.scratch)
        if (s.region == Region::arguments)
            vk.vkCmdUpdateBuffer(commands, args.scratch_buffer, args.scratch_offset + s.offset_bytes,
                                 plan.arguments.size(), plan.arguments.data());
    barrier(vk, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
}

}  // namespace

Result<bool> record_forward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnForwardArgs& args) {
    if (auto ok = check(plan.plan, args); !ok) return ok;
    const DeviceFunctions& vk = plan.context->vk;
    const VkPipelineLayout layout = plan.context->pipelines.layout();
    const Addresses at = addresses_of(plan.plan, args);
    if (!plan.plan.arguments.empty()) write_arguments(vk, commands, plan.plan, args);
    for (size_t i = 0; i < plan.plan.dispatches.size(); i++) {
        const Dispatch& d = plan.plan.dispatches[i];
        auto push = d.push;
        for (const Patch& patch : d.patches)
            std::memcpy(push.data() + patch.at, &at[static_cast<size_t>(patch.region)],
                        sizeof(VkDeviceAddress));
        if (d.barrier_before)
            barrier(vk, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT);
        vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, plan.pipelines[i]);
        vk.vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                              static_cast<uint32_t>(push.size()), push.data());
        vk.vkCmdDispatch(commands, d.groups[0], d.groups[1], d.groups[2]);
    }
    return true;
}

}  // namespace vkattn::core
