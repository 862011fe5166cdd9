#include "record.hpp"

#include "aliasing.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>

namespace vkattn::core {
namespace {

Result<bool> check_address(const CallerArray& array, VkDeviceAddress address) {
    const auto field = [&] { return fmt::format("args.{}", name_of(array.region)); };
    if (address == 0 && array.may_be_null) return true;
    if (address == 0) return invalid(field(), "is null, but the tensor is not empty");
    if (address % array.alignment_bytes != 0)
        return invalid(field(),
                       fmt::format("{:#x} is not a multiple of {} bytes", address, array.alignment_bytes));
    return true;
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
    if (args.scratch_buffer == VK_NULL_HANDLE) return true;
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

Result<bool> check(const Plan& plan, const Addresses& at) {
    for (const CallerArray& array : plan.caller_arrays) {
        if (!array.is_used) continue;
        if (auto ok = check_address(array, at[static_cast<size_t>(array.region)]); !ok) return ok;
    }
    return true;
}

// The addresses by their regions. Those that a caller gives are the members of args that have a region's name.
template <class Args>
Addresses addresses_of(const Plan& plan, const Args& args) {
    Addresses at{};
#define REGION(name, role) \
    if constexpr (requires { args.name; }) at[static_cast<size_t>(Region::name)] = args.name;
#include "plan/regions.def"
    if constexpr (requires { args.scratch_address; })
        for (const ScratchRegion& s : plan.scratch)
            at[static_cast<size_t>(s.region)] = args.scratch_address + s.offset_bytes;
    return at;
}

void barrier(const DeviceFunctions& vk, VkCommandBuffer commands) {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT,
                                 VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    vk.vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

void apply(const std::vector<Patch>& patches, const Addresses& at, std::span<std::byte> to) {
    for (const Patch& patch : patches) {
        const VkDeviceAddress address = at[static_cast<size_t>(patch.region)];
        // Null stays null: it says that a tensor is not wanted.
        const VkDeviceAddress moved = address != 0 ? address + patch.add : 0;
        std::memcpy(to.data() + patch.at, &moved, sizeof moved);
    }
}

void record(VkCommandBuffer commands, const VkattnPlan& plan, const Addresses& at, uint32_t first,
            uint32_t count) {
    if (count == 0) return;
    const DeviceFunctions& vk = plan.context->vk;
    const Plan& planned = plan.plan;
    const Label of_plan(vk, commands, plan.label.c_str());
    std::array<char, 48> range{};
    if (vk.has_labels() && count != planned.dispatches.size())
        fmt::format_to_n(range.data(), range.size() - 1, "segments {} to {} of {}", first, first + count - 1,
                         planned.dispatches.size());
    const Label of_range(vk, commands, range[0] != 0 ? range.data() : nullptr);
    const VkPipelineLayout layout = plan.context->pipelines.layout();
    PushBytes push{};
    size_t of_pipeline = planned.pipelines.size();
    for (size_t i = first; i < first + count; i++) {
        const Dispatch& d = planned.dispatches[i];
        const Pipeline& p = planned.pipelines[d.pipeline];
        const Kernel kernel = p.module.kernel;
        if (d.barrier_before) barrier(vk, commands);
        const Label of_dispatch(vk, commands, name_of(in_gpu_form(p.module)));
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
                            uint32_t first, uint32_t count) {
    const Addresses at = addresses_of(plan.plan, args);
    if (auto ok = check(plan.plan, at); !ok) return ok;
    if (auto ok = check_scratch(*plan.context, plan.plan, args); !ok) return ok;
    if (auto ok = check_aliasing(plan.plan, at, args.scratch_address); !ok) return ok;
    record(commands, plan, at, first, count);
    return true;
}

// Records a plan that has neither scratch nor ranges, after the checks.
Result<bool> record_whole(VkCommandBuffer commands, const VkattnPlan& plan, const Addresses& at) {
    if (auto ok = check(plan.plan, at); !ok) return ok;
    if (auto ok = check_aliasing(plan.plan, at, 0); !ok) return ok;
    record(commands, plan, at, 0, static_cast<uint32_t>(plan.plan.dispatches.size()));
    return true;
}

}  // namespace

Result<bool> record_forward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnForwardArgs& args,
                            uint32_t first, uint32_t count) {
    if (plan.plan.combine)
        return invalid("plan", "is of vkattn_combine_create: vkattn_cmd_combine records it");
    if (plan.plan.backward)
        return invalid("plan", "is of vkattn_backward_create: vkattn_cmd_backward records it");
    if (plan.plan.makes_block_map)
        return invalid("plan", "is of vkattn_block_map_create: vkattn_cmd_block_map records it");
    return record_checked(commands, plan, args, first, count);
}

Result<bool> record_backward(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnBackwardArgs& args,
                             uint32_t first, uint32_t count) {
    if (!plan.plan.backward)
        return invalid("plan", "is not of vkattn_backward_create: vkattn_cmd_backward cannot record it");
    return record_checked(commands, plan, args, first, count);
}

Result<bool> record_combine(VkCommandBuffer commands, const VkattnPlan& plan, const VkattnCombineArgs& args) {
    if (!plan.plan.combine)
        return invalid("plan", "is not of vkattn_combine_create: vkattn_cmd_combine cannot record it");
    return record_whole(commands, plan, addresses_of(plan.plan, args));
}

Result<bool> record_block_map(VkCommandBuffer commands, const VkattnPlan& plan,
                              const VkattnForwardArgs& args) {
    if (!plan.plan.makes_block_map)
        return invalid("plan", "is not of vkattn_block_map_create: vkattn_cmd_block_map cannot record it");
    return record_whole(commands, plan, addresses_of(plan.plan, args));
}

Result<bool> record_probe(VkCommandBuffer commands, const VkattnPlan& plan, VkDeviceAddress results) {
    Addresses at{};
    at[static_cast<size_t>(Region::out)] = results;
    record(commands, plan, at, 0, static_cast<uint32_t>(plan.plan.dispatches.size()));
    return true;
}

}  // namespace vkattn::core
