#include "problem_text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "call.hpp"

namespace vkattn::tools {
namespace {

template <class T = int32_t>
std::string least_to_most(const Inputs& in, ArrayName array) {
    const std::span<const T> numbers = numbers_of<T>(in.arrays, array);
    if (numbers.empty()) return "none";
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
}

// Says where query row 0 stands among the keys.
std::string first_position(const Inputs& in) {
    const VkattnProblem& p = in.problem;
    switch (p.align) {
        case VKATTN_ALIGN_TOP_LEFT:
            return "row 0 at key 0 (top-left)";
        case VKATTN_ALIGN_OFFSET:
            return fmt::format("row 0 at key {} (--align)", p.query_offset);
        case VKATTN_ALIGN_OFFSETS:
            return fmt::format("row 0 at key {} (--query-offsets)",
                               least_to_most(in, ArrayName::query_offsets));
        default:
            if (p.kv_lengths != 0) return "the last row at each batch's last key (bottom-right)";
            return fmt::format("row 0 at key {} (bottom-right)", int64_t{p.seqlen_kv} - p.seqlen_q);
    }
}

std::string side_text(int64_t side, const char* where) {
    return fmt::format("{} {}", side < 0 ? "all keys" : count_text(static_cast<uint64_t>(side), "key"),
                       where);
}

bool applies_to_distance(const VkattnProblem& p) {
    return p.slopes != VKATTN_SLOPES_NONE && p.slopes_apply == VKATTN_SLOPES_APPLY_DISTANCE;
}

std::string bounds_text(const Inputs& in) {
    const VkattnProblem& p = in.problem;
    const bool has_window = p.window_left >= 0 || p.window_right >= 0;
    if (!p.causal && !has_window) {
        if (applies_to_distance(p)) return "not causal, no window, " + first_position(in);
        const bool is_placed = p.align != VKATTN_ALIGN_BOTTOM_RIGHT;
        return fmt::format(
            "not causal, no window{}",
            is_placed ? ", so that it does not matter where row 0 stands (--align, --query-offsets)" : "");
    }
    std::string window = "no window";
    if (has_window) window = "window of " + side_text(p.window_left, "before");
    if (has_window && !p.causal) window += " and " + side_text(p.window_right, "after");
    return fmt::format("{}, {}, {}", p.causal ? "causal" : "not causal", window, first_position(in));
}

// Says where a mask has fewer keys or heads than there are, or may have been meant otherwise.
std::string mask_notes(const VkattnProblem& p) {
    std::string notes;
    const uint32_t keys = p.mask_extents[p.mask_rank - 1],
                   heads = p.mask_rank >= 3 ? p.mask_extents[p.mask_rank - 3] : 1;
    if (keys != 1 && keys < p.seqlen_kv)
        notes += fmt::format("; it hides keys {} to {}", keys, p.seqlen_kv - 1);
    if (heads != 1 && heads < p.num_heads_q)
        notes += fmt::format("; {} query heads share each of its heads", p.num_heads_q / heads);
    if (p.mask_rank == 3 && heads > 1 && p.batch == p.num_heads_q)
        notes += fmt::format("; a mask for each batch has the shape ({}, 1, {}, {})", p.batch,
                             p.mask_extents[1], keys);
    return notes;
}

// Names the axes of the mask, so that a mask that was meant otherwise is noticed.
std::string mask_text(const Inputs& in) {
    constexpr std::array names = {"batch", "heads", "seqlen_q", "seqlen_kv"};
    const VkattnProblem& p = in.problem;
    if (p.mask == VKATTN_MASK_NONE) return "none";
    std::vector<std::string> axes;
    for (uint32_t i = 0; i < p.mask_rank; i++)
        axes.push_back(fmt::format("{} {}", names[4 - p.mask_rank + i], p.mask_extents[i]));
    const char* rule =
        p.mask == VKATTN_MASK_FLOAT ? "added to the scores" : "true or 1 attends, false or 0 hides";
    return fmt::format("{}, {}, read as ({}){}", dtype_name(in.mask.file_dtype), rule, fmt::join(axes, ", "),
                       mask_notes(p));
}

}  // namespace

std::vector<std::string> problem_lines(const Inputs& in, bool bshd) {
    const VkattnProblem& p = in.problem;
    const float scale =
        std::isnan(p.softmax_scale) ? 1 / std::sqrt(static_cast<float>(p.head_dim_qk)) : p.softmax_scale;
    std::vector<std::string> lines = {
        fmt::format("problem   {}, batch {}, heads {}/{}, {} queries x {} keys, head_dim {}/{}{}, {}",
                    dtypes_text(p), p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv,
                    p.head_dim_qk, p.head_dim_v, p.value_in_key != 0 ? ", value in key" : "",
                    bshd ? "bshd" : "bhsd"),
        fmt::format("scores    scale {:g}, {}", scale,
                    p.softcap == 0 ? "no softcap" : fmt::format("softcap {:g}", p.softcap)),
        "bounds    " + bounds_text(in), "mask      " + mask_text(in)};
    if (p.kv_lengths != 0)
        lines.push_back(fmt::format("lengths   {} of {} keys (--kv-lengths)",
                                    least_to_most(in, ArrayName::kv_lengths), p.seqlen_kv));
    if (p.slopes != VKATTN_SLOPES_NONE)
        lines.push_back(fmt::format(
            "slopes    {}{} (--alibi): {}", least_to_most<float>(in, ArrayName::slopes),
            p.slopes == VKATTN_SLOPES_PER_BATCH ? ", for each batch" : "",
            applies_to_distance(p) ? "score - slope * distance of row and key" : "score + slope * mask"));
    if (p.sinks != 0)
        lines.push_back(fmt::format("sinks     {} (--sinks)", least_to_most<float>(in, ArrayName::sinks)));
    const auto add_scales = [&](ArrayName name, const char* of, VkattnScales scales) {
        if (scales == VKATTN_SCALES_NONE) return;
        const char* const each = scales == VKATTN_SCALES_ONE        ? "one of all"
                                 : scales == VKATTN_SCALES_PER_HEAD ? "one of each head"
                                                                    : "one of each key";
        lines.push_back(fmt::format("scales    {} of {}s, {} (--{}-scales)", least_to_most<float>(in, name),
                                    of, each, of));
    };
    add_scales(ArrayName::key_scales, "key", p.key_scales);
    add_scales(ArrayName::value_scales, "value", p.value_scales);
    if (p.block_map != 0) {
        const auto map = numbers_of<uint8_t>(in.arrays, ArrayName::block_map);
        lines.push_back(fmt::format(
            "blocks    of {} rows and {} keys: {} hidden, {} visible, {} as the mask says (--block-map)",
            p.block_rows, p.block_keys, std::ranges::count(map, 0), std::ranges::count(map, 1),
            static_cast<size_t>(std::ranges::count_if(map, [](uint8_t x) { return x > 1; }))));
    }
    return lines;
}

}  // namespace vkattn::tools
