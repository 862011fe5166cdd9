#include "aliasing.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vkattn::core {
namespace {

struct Tensor {
    const char* name;  // of its address in the args
    Placement at;
};

Result<bool> check_apart(const Tensor& output, const Tensor& other) {
    if (!overlap(output.at, other.at)) return true;
    return invalid(fmt::format("args.{}", output.name),
                   fmt::format("shares memory with args.{}", other.name));
}

// Compares each output with every input and every other output.
Result<bool> check_apart(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) {
    for (size_t i = 0; i < outputs.size(); i++) {
        for (const Tensor& input : inputs)
            if (auto ok = check_apart(outputs[i], input); !ok) return ok;
        for (size_t j = 0; j < i; j++)
            if (auto ok = check_apart(outputs[i], outputs[j]); !ok) return ok;
    }
    return true;
}

// Returns the number of the part that begins at an address, of `count` parts `stride` bytes apart; `count` if none
// does.
uint64_t part_at(VkDeviceAddress parts, uint64_t stride, uint64_t count, VkDeviceAddress address) {
    if (address == parts) return 0;
    if (address < parts || stride == 0 || (address - parts) % stride != 0) return count;
    return std::min(count, (address - parts) / stride);
}

// Compares an output of a combine with the parts. It may be the part number `in_place` itself. Dimension 0 of `parts`
// counts the parts.
Result<bool> check_parts(const Tensor& output, const Tensor& parts, uint64_t in_place) {
    Tensor before = parts, behind = parts;
    const auto [count, stride] = parts.at.dims[0];
    before.at.dims[0].count = in_place;
    if (auto ok = check_apart(output, before); !ok || in_place == count) return ok;
    behind.at.address += (in_place + 1) * stride;
    behind.at.dims[0].count = count - in_place - 1;
    return check_apart(output, behind);
}

bool same(const VkattnStrides& a, const VkattnStrides& b) {
    return a.batch == b.batch && a.head == b.head && a.seq == b.seq;
}

// An array of the caller; no bytes of it if its address is null.
Tensor tensor_of(const CallerArray& array, const Addresses& addresses) {
    Tensor tensor{name_of(array.region), array.extents};
    tensor.at.address = addresses[static_cast<size_t>(array.region)];
    if (tensor.at.address == 0) tensor.at.run_bytes = 0;
    return tensor;
}

// The caller's arrays of a combine with rows, and no other gets here, are its parts, their lse, out and lse.
Result<bool> check_combine(const Plan& plan, const Addresses& addresses) {
    const Combine& c = *plan.combine;
    std::vector<Tensor> tensors;
    for (const CallerArray& array : plan.caller_arrays) tensors.push_back(tensor_of(array, addresses));
    const Tensor &parts = tensors[0], &parts_lse = tensors[1], &out = tensors[2], &lse = tensors[3];
    const auto in_place = [](const Tensor& of, const Tensor& output) {
        const auto [count, stride] = of.at.dims[0];
        return part_at(of.at.address, stride, count, output.at.address);
    };
    const bool alike = c.dtype == c.parts_dtype && same(c.out_strides, c.parts_strides);
    if (auto ok = check_parts(out, parts, alike ? in_place(parts, out) : c.num_parts); !ok) return ok;
    if (auto ok = check_parts(lse, parts_lse, in_place(parts_lse, lse)); !ok) return ok;
    if (auto ok = check_apart(out, parts_lse); !ok) return ok;
    if (auto ok = check_apart(lse, parts); !ok) return ok;
    return check_apart(lse, out);
}

}  // namespace

Result<bool> check_aliasing(const Plan& plan, const Addresses& addresses, VkDeviceAddress scratch) {
    if (plan.dispatches.empty()) return true;
    if (plan.combine) return check_combine(plan, addresses);
    std::vector<Tensor> outputs, inputs;
    inputs.reserve(plan.caller_arrays.size());
    outputs.reserve(plan.caller_arrays.size() + 1);
    for (const CallerArray& array : plan.caller_arrays)
        (array.is_output ? outputs : inputs).push_back(tensor_of(array, addresses));
    outputs.push_back({"scratch_address", {scratch, scratch != 0 ? plan.scratch_bytes : 0, {}}});
    return check_apart(outputs, inputs);
}

}  // namespace vkattn::core
