#include "aliasing.hpp"

#include <fmt/format.h>

#include <span>

#include "overlap.hpp"

namespace vkattn::core {
namespace {

struct Tensor {
    const char* field;
    Placement at;
};

Placement run_of(VkDeviceAddress address, uint64_t bytes) {
    return {address, address != 0 ? bytes : 0, {}};
}

// A tensor of a problem. `like` says whose extents it has: 0 .. 3 are query, key, value and out.
Placement tensor_of(const Problem& p, int like, const VkattnStrides& s, VkDeviceAddress address) {
    const bool of_query = like == 0 || like == 3;
    const uint64_t bytes = p.element_bytes, dim = like < 2 ? p.head_dim_qk : p.head_dim_v;
    return {address,
            address != 0 ? dim * bytes : 0,
            {{{p.batch, s.batch * bytes},
              {of_query ? p.num_heads_q : p.num_heads_kv, s.head * bytes},
              {of_query ? p.seqlen_q : p.seqlen_kv, s.seq * bytes}}}};
}

Placement mask_of(const Problem& p, VkDeviceAddress address) {
    if (p.mask == VKATTN_MASK_NONE) return {};
    const uint64_t bytes = p.mask_element_bytes();
    Placement at = run_of(address, p.mask_shape[3] * bytes);
    const uint64_t strides[] = {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
    for (size_t i = 0; i < 3; i++) at.dims[i] = {p.mask_shape[i], strides[i] * bytes};
    return at;
}

uint64_t rows_of(const Problem& p) {
    return uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
}

Result<bool> check_apart(const Tensor& output, const Tensor& other) {
    if (!overlap(output.at, other.at)) return true;
    return invalid(output.field, fmt::format("shares memory with {}", other.field));
}

// Compares each output with every input and every other output.
Result<bool> check_apart(std::span<const Tensor> outputs, std::span<const Tensor> inputs) {
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

}  // namespace

Result<bool> check_aliasing(const Plan& plan, const VkattnForwardArgs& args) {
    if (plan.dispatches.empty()) return true;
    const Problem& p = plan.problem;
    const Tensor inputs[] = {
        {"args.query", tensor_of(p, 0, p.query_strides, args.query)},
        {"args.key", tensor_of(p, 1, p.key_strides, args.key)},
        {"args.value", tensor_of(p, 2, p.value_strides, args.value)},
        {"args.mask", mask_of(p, args.mask)},
        {"args.kv_lengths", run_of(args.kv_lengths, p.kv_lengths != 0 ? uint64_t{4} * p.batch : 0)},
        {"args.query_offsets",
         run_of(args.query_offsets, p.align == VKATTN_ALIGN_OFFSETS ? uint64_t{4} * p.batch : 0)},
    };
    const Tensor outputs[] = {
        {"args.out", tensor_of(p, 3, p.out_strides, args.out)},
        {"args.lse", run_of(args.lse, 4 * rows_of(p))},
        {"args.scratch_address", run_of(args.scratch_address, plan.scratch_bytes)},
    };
    return check_apart(outputs, inputs);
}

Result<bool> check_aliasing(const Plan& plan, const VkattnBackwardArgs& args) {
    if (plan.dispatches.empty()) return true;
    const Problem& p = plan.problem;
    const Backward& b = *plan.backward;
    const uint64_t* const bias = b.dbias_extents;
    const Tensor inputs[] = {
        {"args.query", tensor_of(p, 0, p.query_strides, args.query)},
        {"args.key", tensor_of(p, 1, p.key_strides, args.key)},
        {"args.value", tensor_of(p, 2, p.value_strides, args.value)},
        {"args.out", tensor_of(p, 3, p.out_strides, args.out)},
        {"args.lse", run_of(args.lse, 4 * rows_of(p))},
        {"args.dout", tensor_of(p, 3, b.dout_strides, args.dout)},
        {"args.dlse", run_of(args.dlse, b.dlse != 0 ? 4 * rows_of(p) : 0)},
        {"args.mask", mask_of(p, args.mask)},
        {"args.kv_lengths", run_of(args.kv_lengths, p.kv_lengths != 0 ? uint64_t{4} * p.batch : 0)},
        {"args.query_offsets",
         run_of(args.query_offsets, p.align == VKATTN_ALIGN_OFFSETS ? uint64_t{4} * p.batch : 0)},
    };
    const Tensor outputs[] = {
        {"args.dquery", tensor_of(p, 0, b.dquery_strides, args.dquery)},
        {"args.dkey", tensor_of(p, 1, b.dkey_strides, args.dkey)},
        {"args.dvalue", tensor_of(p, 2, b.dvalue_strides, args.dvalue)},
        {"args.dbias", run_of(args.dbias, bias[0] * bias[1] * bias[2] * bias[3] * p.element_bytes)},
        {"args.scratch_address", run_of(args.scratch_address, plan.scratch_bytes)},
    };
    return check_apart(outputs, inputs);
}

Result<bool> check_aliasing(const Plan& plan, const VkattnCombineArgs& args) {
    if (plan.dispatches.empty()) return true;
    const Combine& c = *plan.combine;
    const uint64_t bytes = c.parts_element_bytes, rows = uint64_t{c.batch} * c.num_heads * c.seqlen_q;
    const auto dims = [&](const VkattnStrides& s, uint64_t element_bytes) {
        return std::array<Placement::Dim, 4>{{{1, 0},
                                              {c.batch, s.batch * element_bytes},
                                              {c.num_heads, s.head * element_bytes},
                                              {c.seqlen_q, s.seq * element_bytes}}};
    };
    Tensor parts{"args.parts", {args.parts, c.head_dim_v * bytes, dims(c.parts_strides, bytes)}};
    parts.at.dims[0] = {c.num_parts, c.part_stride * bytes};
    Tensor parts_lse{"args.parts_lse", run_of(args.parts_lse, 4 * rows)};
    parts_lse.at.dims[0] = {c.num_parts, 4 * rows};
    const Tensor out{
        "args.out",
        {args.out, c.head_dim_v * uint64_t{c.element_bytes}, dims(c.out_strides, c.element_bytes)}};
    const Tensor lse{"args.lse", run_of(args.lse, 4 * rows)};

    const bool alike = c.dtype == c.parts_dtype && same(c.out_strides, c.parts_strides);
    const uint64_t of_out =
        alike ? part_at(args.parts, c.part_stride * bytes, c.num_parts, args.out) : c.num_parts;
    const uint64_t of_lse = part_at(args.parts_lse, 4 * rows, c.num_parts, args.lse);
    if (auto ok = check_parts(out, parts, of_out); !ok) return ok;
    if (auto ok = check_parts(lse, parts_lse, of_lse); !ok) return ok;
    if (auto ok = check_apart(out, parts_lse); !ok) return ok;
    if (auto ok = check_apart(lse, parts); !ok) return ok;
    return check_apart(lse, out);
}

}  // namespace vkattn::core
