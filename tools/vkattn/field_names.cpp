#include "field_names.hpp"

#include <algorithm>
#include <map>
#include <optional>

namespace vkattn::tools {
namespace {

// The option, and the file that says the same.
struct Names {
    const char *option, *file;
};

const std::map<std::string, Names>& all_names() {
    static const std::map<std::string, Names> names = {
        {"problem.dtype", {"--dtype", "--dtype"}},
        {"problem.key_dtype", {"--kv-dtype", "--key"}},
        {"problem.value_dtype", {"--kv-dtype", "--value"}},
        {"problem.out_dtype", {"--out-dtype", "--out-dtype"}},
        {"problem.mask_dtype", {"--mask-dtype", "--mask"}},
        {"problem.batch", {"--batch", "--query"}},
        {"problem.num_heads_q", {"--heads-q", "--query"}},
        {"problem.num_heads_kv", {"--heads-kv", "--key"}},
        {"problem.seqlen_q", {"--seqlen-q", "--query"}},
        {"problem.seqlen_kv", {"--seqlen-kv", "--key"}},
        {"problem.head_dim_qk", {"--head-dim-qk", "--query"}},
        {"problem.head_dim_v", {"--head-dim-v", "--value"}},
        {"problem.query_strides", {"--seqlen-q", "--query"}},
        {"problem.key_strides", {"--seqlen-kv", "--key"}},
        {"problem.value_in_key", {"--value-in-key", "--value-in-key"}},
        {"problem.value_strides", {"--seqlen-kv", "--value"}},
        {"problem.out_strides", {"--seqlen-q", "--query"}},
        {"problem.mask", {"--mask-type", "--mask"}},
        {"problem.mask_rank", {"--mask-shape", "--mask"}},
        {"problem.mask_extents", {"--mask-shape", "--mask"}},
        {"problem.softmax_scale", {"--scale", "--scale"}},
        {"problem.softcap", {"--softcap", "--softcap"}},
        {"problem.slopes", {"--alibi", "--alibi"}},
        {"problem.slopes_apply", {"--alibi-of", "--alibi-of"}},
        {"problem.sinks", {"--sinks", "--sinks"}},
        {"problem.key_scales", {"--kv-scales", "--key-scales"}},
        {"problem.value_scales", {"--kv-scales", "--value-scales"}},
        {"problem.block_map", {"--block-map", "--block-map"}},
        {"problem.block_map_batches", {"--block-map", "--block-map"}},
        {"problem.block_map_heads", {"--block-map", "--block-map"}},
        {"problem.block_rows", {"--block-size", "--block-size"}},
        {"problem.block_keys", {"--block-size", "--block-size"}},
        {"problem.window_left", {"--window", "--window"}},
        {"problem.window_right", {"--window", "--window"}},
        {"problem.align", {"--align", "--align"}},
        {"problem.query_offset", {"--align", "--align"}},
#define BACKWARD_ARRAY(name, role, bytes, count, asked) {"backward." #name, {"--" #name, "--" #name}},
#include "interface/arrays.def"
        {"backward.dout_strides", {"--seqlen-q", "--dout"}},
        {"backward.dquery_strides", {"--seqlen-q", "--dq"}},
        {"backward.dkey_strides", {"--seqlen-kv", "--dk"}},
        {"backward.dvalue_strides", {"--seqlen-kv", "--dv"}},
        {"options.kernel", {"--kernel", "--kernel"}},
        {"options.tuning", {"--tuning", "--tuning"}},
        {"options.variant", {"--module", "--module"}},
        {"options.pipeline_cache", {"--pipeline-cache", "--pipeline-cache"}},
        {"options.precision", {"--precision", "--precision"}},
        {"options.num_splits", {"--num-splits", "--num-splits"}},
        {"options.batch_invariant", {"--batch-invariant", "--batch-invariant"}},
        {"options.max_dispatch_flops", {"--max-dispatch-gflop", "--max-dispatch-gflop"}},
    };
    return names;
}

// Without its struct a field is only known by an underscore: "batch" and "mask" are words, too. A field that stands
// for an extent of a file stays: "3 is not a multiple of --key" says less than num_heads_kv.
std::optional<std::string> bare_name(const std::string& word, Shapes shapes) {
    if (word.find('_') == std::string::npos || word.find('.') != std::string::npos) return std::nullopt;
    for (const char* owner : {"problem.", "options."}) {
        const auto found = all_names().find(owner + word);
        if (found == all_names().end()) continue;
        const auto& [option, file] = found->second;
        if (shapes == Shapes::of_options || std::string_view(option) == file) return option;
    }
    return std::nullopt;
}

std::string option_of(const std::string& word, Shapes shapes) {
    const auto found = all_names().find(word);
    if (found == all_names().end()) return bare_name(word, shapes).value_or(word);
    return shapes == Shapes::of_files ? found->second.file : found->second.option;
}

bool is_part_of_field(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

}  // namespace

std::string with_option_names(std::string_view text, Shapes shapes) {
    std::string named;
    while (!text.empty()) {
        const auto begin = std::find_if(text.begin(), text.end(), is_part_of_field);
        auto end = std::find_if_not(begin, text.end(), is_part_of_field);
        while (end != begin && *(end - 1) == '.') end--;  // the end of a sentence
        named.append(text.begin(), begin);
        named += option_of(std::string(begin, end), shapes);
        const auto rest = std::find_if(end, text.end(), [](char c) { return c != '.'; });
        named.append(end, rest);
        text.remove_prefix(static_cast<size_t>(rest - text.begin()));
    }
    return named;
}

}  // namespace vkattn::tools
