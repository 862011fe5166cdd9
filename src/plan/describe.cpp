// A plan as JSON. Written out, because nlohmann-json allocates where it destroys an object, which ends the process when
// host memory is out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan.hpp"

namespace vkattn::core {
namespace {

std::string quoted(std::string_view text) {
    std::string all = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') all += '\\';
        if (static_cast<unsigned char>(c) < 0x20)
            all += fmt::format("\\u{:04x}", c);
        else
            all += c;
    }
    return all + "\"";
}

std::string describe(const Plan& plan, const Dispatch& d) {
    const Module& module = plan.pipelines[d.pipeline].module;
    return fmt::format(R"({{"variant":{},{}"groups":[{}],"barrier_before":{},"flops":{}}})",
                       quoted(name_of(in_gpu_form(module))),
                       module.variant == 0 ? "" : R"("from_application":true,)", fmt::join(d.groups, ","),
                       d.barrier_before, d.flops);
}

const char* short_name_of(VkattnDtype dtype) {
    if (storage_of(dtype).has_blocks()) return name_of(dtype);
    return dtype == VKATTN_DTYPE_FLOAT32 ? "f32" : dtype == VKATTN_DTYPE_FLOAT16 ? "f16" : "bf16";
}

// Returns the problem's type and those of the operands that have another one: "f32 key q8_0 value f16".
std::string types_of(const Problem& p) {
    std::string types = short_name_of(p.dtype);
    const auto add = [&](const char* operand, VkattnDtype dtype) {
        if (dtype != p.dtype) types += fmt::format(" {} {}", operand, short_name_of(dtype));
    };
    add("key", p.key_dtype);
    if (p.value_in_key == 0) add("value", p.value_dtype);
    add("out", p.out_dtype);
    if (p.mask == VKATTN_MASK_FLOAT) add("mask", p.mask_dtype);
    return types;
}

// Tells how much scratch a backward has for dS at a time, and how much all of dS would take. With more scratch there
// are fewer and larger dispatches.
std::string spill_of(const Plan& plan) {
    for (const ScratchRegion& r : plan.scratch)
        if (r.region == Region::spill)
            return fmt::format(R"("spill":{{"bytes":{},"bytes_of_all":{}}},)", r.size_bytes,
                               plan.spill_bytes_of_all);
    return "";
}

// Both are one number where they are alike.
std::string pair_of(uint32_t a, uint32_t b) {
    return a == b ? fmt::format("{}", a) : fmt::format("{}/{}", a, b);
}

}  // namespace

std::string label_of(const Plan& plan) {
    if (plan.combine) {
        const Combine& c = *plan.combine;
        return fmt::format("vkattn combine {} {} parts b{} h{} {} rows d{}", short_name_of(c.dtype),
                           c.num_parts, c.batch, c.num_heads, c.seqlen_q, c.head_dim_v);
    }
    const Problem& p = plan.problem;
    std::string features;
    const auto add = [&](bool has, const char* feature) {
        if (has) features += feature;
    };
    add(p.value_in_key != 0, " value-in-key");
    add(p.causal != 0, " causal");
    add(p.window_left >= 0 || p.window_right >= 0, " window");
    add(p.softcap > 0, " softcap");
    add(p.mask == VKATTN_MASK_BOOL, " bool-mask");
    add(p.mask == VKATTN_MASK_FLOAT, " float-mask");
    add(p.slopes != VKATTN_SLOPES_NONE, " slopes");
    add(p.sinks != 0, " sinks");
    add(p.block_map != 0, " block-map");
    add(p.kv_lengths != 0, " kv-lengths");
    add(p.align == VKATTN_ALIGN_OFFSETS, " query-offsets");
    const char* const pass = plan.makes_block_map ? "block map" : plan.backward ? "backward" : "forward";
    return fmt::format("vkattn {} {} b{} h{} {}x{} d{}{}", pass, types_of(p), p.batch,
                       pair_of(p.num_heads_q, p.num_heads_kv), p.seqlen_q, p.seqlen_kv,
                       pair_of(p.head_dim_qk, p.head_dim_v), features);
}

std::string describe(const Plan& plan) {
    std::vector<std::string> dispatches, refused;
    for (const Dispatch& d : plan.dispatches) dispatches.push_back(describe(plan, d));
    for (const Refusal& r : plan.refused)
        refused.push_back(fmt::format("{}:{}", quoted(r.kernel), quoted(r.reason)));
    return fmt::format(
        R"({{"kernel":{},"tuning_row":{},"tuning":{},)"
        R"("tiles":{{"tile_q":{},"tile_kv":{},"threads":{},"shared_bytes":{}}},)"
        R"("precision":{},"num_splits":{},"scratch_bytes":{},{}"dispatches":[{}],"refused":{{{}}}}})",
        quoted(plan.kernel), quoted(plan.tuning_row), quoted(plan.tuning), plan.tiles.tile_q,
        plan.tiles.tile_kv, plan.tiles.threads, plan.tiles.shared_bytes, quoted(name_of(plan.operands)),
        plan.num_splits, plan.scratch_bytes, spill_of(plan), fmt::join(dispatches, ","),
        fmt::join(refused, ","));
}

}  // namespace vkattn::core
