// Runs cases with far=lse, whose last rows have their lse more than 4 GiB behind that of the first row, and combines
// with far=part, whose two parts lie more than 4 GiB apart.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "case_plan.hpp"
#include "combine_run.hpp"
#include "far_places.hpp"
#include "forward_run.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {
namespace {

// A room is the memory that lies before the end of lse, or of out, and takes what the last segments write.
constexpr uint64_t room_bytes = uint64_t{1} << 26;

// FarLse runs the last segments of a plan whose batches share Q, K and V. Only the rows that these segments write need
// memory, so lse and out begin wherever they must for their last rows to lie at the end of a room.
struct FarLse {
    FarLse(Device& on, const FarPlaces& in, const Case& c)
        : device(on),
          places(in),
          rows(uint64_t{c.problem.batch} * c.problem.num_heads_q * c.problem.seqlen_q) {
        out_bytes = rows * c.problem.head_dim_v * element_bytes(c.problem.dtype);
        args.lse = places.at(0).address() + room_bytes - rows * sizeof(float);
        args.out = places.at(1).address() + room_bytes - out_bytes;
    }

    void upload(const Inputs& inputs) {
        uint64_t at = room_bytes + unit_bytes;
        VkDeviceAddress* const addresses[] = {&args.query, &args.key, &args.value};
        const Tensor* const tensors[] = {&inputs.query, &inputs.key, &inputs.value};
        for (size_t t = 0; t < 3; t++) {
            device.runtime().upload(places.at(1), tensors[t]->image, at);
            *addresses[t] = places.at(1).address() + at;
            at += (tensors[t]->image.size() + unit_bytes - 1) / unit_bytes * unit_bytes;
        }
        for (const uint64_t place : {0u, 1u})
            device.runtime().upload(places.at(place), filled(room_bytes + unit_bytes, poison_word));
    }

    // Returns why this device cannot run it, or "" if it can.
    std::string obstacle(const core::Plan& plan, uint64_t rows_looked_at) const {
        const uint64_t written = rows - plan.dispatches[first_segment(plan)].cut.first[0];
        const uint64_t bytes_of_row = std::max<uint64_t>(sizeof(float), out_bytes / rows);
        if (written < rows_looked_at) return "two segments do not write the last batches";
        if (written * bytes_of_row > room_bytes)
            return "the limit of this device lets a segment write too much";
        if (places.at(0).address() + room_bytes <= rows * sizeof(float)) return "addresses are too small";
        return out_bytes > places.distance() ? "out would reach to the lse" : "";
    }
    static uint32_t first_segment(const core::Plan& plan) {
        const auto all = static_cast<uint32_t>(plan.dispatches.size());
        return all - std::min(all, 2u);
    }
    void run(const Plan& plan, uint32_t first) const {
        device.runtime().submit([&](VkCommandBuffer commands) {
            plan.cmd_forward(commands, args, first, plan.segments() - first);
        });
    }
    // Returns the last bytes of a room, and clears `intact` if what lies behind the room has changed.
    std::vector<std::byte> end_of(uint64_t place, uint64_t bytes, bool& intact) const {
        std::vector<std::byte> all(bytes + unit_bytes);
        device.runtime().download(places.at(place), all, room_bytes - bytes);
        const std::vector<std::byte> behind(all.begin() + static_cast<std::ptrdiff_t>(bytes), all.end());
        intact = intact && behind == filled(unit_bytes, poison_word);
        all.resize(bytes);
        return all;
    }

    Device& device;
    const FarPlaces& places;
    uint64_t rows, out_bytes = 0;
    VkattnForwardArgs args = forward_args();
};

}  // namespace

Report run_far_lse_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    const FarPlaces found(device);
    report.skipped = found.obstacle();
    if (!report.skipped.empty()) return report;
    Case c = given;
    Plan plan;
    if (!is_planned(report, context, c, plan, is_quirk)) return report;
    Case looked_at = c;
    looked_at.problem.batch = far_lse_batches;
    const Inputs inputs = make_inputs(looked_at);
    FarLse far(device, found, c);
    const auto core_plan = core_plan_of(context->caps, c, false);
    if (!core_plan) throw RuntimeError(core_plan.failure().message);
    const Tensor out = tensor_of(looked_at, 3);
    report.skipped = far.obstacle(*core_plan, out.batch * out.heads * out.seqlen);
    if (!report.skipped.empty()) return report;
    far.upload(inputs);
    far.run(plan, FarLse::first_segment(*core_plan));
    bool intact = true;
    std::vector<float> lse(out.batch * out.heads * out.seqlen);
    const std::vector<std::byte> lse_bytes = far.end_of(0, lse.size() * sizeof(float), intact);
    std::memcpy(lse.data(), lse_bytes.data(), lse_bytes.size());
    const Outcome outcome{out.gather(far.end_of(1, out.image.size(), intact)),
                          lse,
                          {out.batch, out.heads, out.seqlen, out.dim}};
    report.add("the last batches: ", intact ? "" : "memory behind lse or out was written to",
               judge(outcome, expect(looked_at, inputs)));
    return report;
}

Report run_far_combine_case(Device& device, VkattnContext* context, const Case& c) {
    Report report;
    report.kernel = VKATTN_KERNEL_COMBINE;
    const FarPlaces found(device);
    report.skipped = found.obstacle();
    if (!report.skipped.empty()) return report;
    Parts parts(c);
    const uint64_t bytes = element_bytes(c.parts_dtype), of_part = parts.layout.span() * bytes;
    for (const uint64_t part : {0u, 1u})
        device.runtime().upload(found.at(part),
                                std::span(parts.image).subspan(part * parts.part_stride * bytes, of_part));
    parts.part_stride = found.distance() / bytes;
    VkattnCombine combine = combine_of(c, parts);
    combine.part_stride = parts.part_stride;
    combine.parts_strides = combine.out_strides = parts.layout.strides;
    const Plan plan(context, combine);
    report.segments = plan.segments();
    RunMemory memory(device);
    const auto [outcome, damage] = run_combine(memory, plan, c, parts, found.at(0).address());
    report.add("", damage, judge(outcome, expect(c, parts)));
    return report;
}

}  // namespace vkattn::test
