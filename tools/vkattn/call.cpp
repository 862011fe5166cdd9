#include "call.hpp"

#include <fmt/format.h>

#include <cmath>

namespace vkattn::tools {
namespace {

Json& kept_arguments() {
    static Json arguments = Json::array();
    return arguments;
}

Json align_json(const VkattnProblem& p) {
    switch (p.align) {
        case VKATTN_ALIGN_TOP_LEFT:
            return "top-left";
        case VKATTN_ALIGN_OFFSET:
            return p.query_offset;
        case VKATTN_ALIGN_OFFSETS:
            return "query-offsets";
        default:
            return "bottom-right";
    }
}

Json mask_json(const VkattnProblem& p) {
    if (p.mask == VKATTN_MASK_NONE) return nullptr;
    Json shape = Json::array();
    for (uint32_t i = 0; i < p.mask_rank; i++) shape.push_back(p.mask_extents[i]);
    return {{"type", p.mask == VKATTN_MASK_BOOL ? "bool" : "float"}, {"shape", shape}};
}

Json alibi_json(const VkattnProblem& p) {
    if (p.slopes == VKATTN_SLOPES_NONE) return nullptr;
    return {{"of", p.slopes_apply == VKATTN_SLOPES_APPLY_MASK ? "mask" : "distance"},
            {"per_batch", p.slopes == VKATTN_SLOPES_PER_BATCH}};
}

}  // namespace

void keep_arguments(int argc, char** argv) {
    for (int i = 1; i < argc; i++) kept_arguments().push_back(argv[i]);
}

std::string count_text(uint64_t count, const std::string& word, const std::string& plural) {
    return fmt::format("{} {}", count, count == 1 ? word : plural.empty() ? word + "s" : plural);
}

uint64_t matrix_bytes(const VkattnProblem& p, bool backward) {
    const uint64_t matrices = backward ? 2 : 1;
    return matrices * element_count(p.batch, p.num_heads_q, p.seqlen_q, 1) * p.seqlen_kv * sizeof(float);
}

std::string version_text(uint32_t version) {
    return fmt::format("{}.{}.{}", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
                       VK_API_VERSION_PATCH(version));
}

Json call_json(const Runtime& runtime) {
    const DeviceInfo& d = runtime.device();
    return {{"tool", "vkattn"},
            {"version", vkattn_version()},
            {"arguments", kept_arguments()},
            {"device", d.name},
            {"device_uuid", d.uuid},
            {"device_type", d.type},
            {"driver", d.driver},
            {"vulkan", version_text(d.api_version)}};
}

Json problem_json(const VkattnProblem& p, bool bshd) {
    const float scale =
        std::isnan(p.softmax_scale) ? 1 / std::sqrt(static_cast<float>(p.head_dim_qk)) : p.softmax_scale;
    Json json = {{"dtype", dtype_text(p.dtype)},
                 {"layout", bshd ? "bshd" : "bhsd"},
                 {"batch", p.batch},
                 {"heads_q", p.num_heads_q},
                 {"heads_kv", p.num_heads_kv},
                 {"seqlen_q", p.seqlen_q},
                 {"seqlen_kv", p.seqlen_kv},
                 {"head_dim_qk", p.head_dim_qk},
                 {"head_dim_v", p.head_dim_v},
                 {"causal", p.causal != 0},
                 {"align", align_json(p)},
                 {"window", {p.window_left, p.window_right}},
                 {"scale", scale},
                 {"softcap", p.softcap},
                 {"mask", mask_json(p)},
                 {"kv_lengths", p.kv_lengths != 0},
                 {"alibi", alibi_json(p)},
                 {"sinks", p.sinks != 0},
                 {"block_map", p.block_map != 0 ? Json{p.block_rows, p.block_keys} : Json(false)}};
    if (p.value_in_key != 0) json["value_in_key"] = true;
    // An operand is named only if it has a type of its own, so that older files of `bench` can still be compared.
    for (const auto& [operand, dtype] : own_dtypes(p)) json[operand + "_dtype"] = dtype_text(dtype);
    for (const auto& [operand, scales] :
         {std::pair{"key_scales", p.key_scales}, {"value_scales", p.value_scales}})
        if (scales != VKATTN_SCALES_NONE) json[operand] = scales_text(scales);
    return json;
}

Json options_json(const AttentionOptions& o) {
    return {{"kernel", o.kernel},
            {"tuning", o.tuning},
            {"precision", o.precision},
            {"num_splits", o.num_splits},
            {"batch_invariant", o.batch_invariant},
            {"max_dispatch_gflop", o.max_dispatch_gflop},
            {"pipeline_cache", o.pipeline_cache}};
}

}  // namespace vkattn::tools
