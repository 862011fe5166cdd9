#include "problem_text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "call.hpp"

namespace vkattn::tools {
namespace {

std::string least_to_most(const std::vector<int32_t>& numbers) {
    if (numbers.empty()) return "none";
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
}

// Where query row 0 stands among the keys.
std::string first_position(const Inputs& in) {
    const VkattnProblem& p = in.problem;
    switch (p.align) {
        case VKATTN_ALIGN_TOP_LEFT:
            return "row 0 at key 0 (top-left)";
        case VKATTN_ALIGN_OFFSET:
            return fmt::format("row 0 at key {} (--align)", p.query_offset);
        case VKATTN_ALIGN_OFFSETS:
            return fmt::format("row 0 at key {} (--query-offsets)", least_to_most(in.query_offsets));
        default:
            if (p.kv_lengths != 0) return "the last row at each batch's last key (bottom-right)";
            return fmt::format("row 0 at key {} (bottom-right)", int64_t{p.seqlen_kv} - p.seqlen_q);
    }
}

std::string side_text(int64_t side, const char* where) {
    return fmt::format("{} {}", side < 0 ? "all keys" : count_text(static_cast<uint64_t>(side), "key"),
                       where);
}

std::string bounds_text(const Inputs& in) {
    const VkattnProblem& p = in.problem;
    const bool has_window = p.window_left >= 0 || p.window_right >= 0;
    if (!p.causal && !has_window) return "not causal, no window";
    std::string text = p.causal ? "causal" : "not causal";
    if (has_window)
        text += fmt::format(", window of {} and {}", side_text(p.window_left, "before"),
                            side_text(p.window_right, "after"));
    else
        text += ", no window";
    return fmt::format("{}, {}", text, first_position(in));
}

// The axes of the mask by name, so that a mask that was meant otherwise is noticed.
std::string mask_text(const Inputs& in) {
    constexpr std::array names = {"batch", "heads", "seqlen_q", "seqlen_kv"};
    const VkattnProblem& p = in.problem;
    if (p.mask == VKATTN_MASK_NONE) return "none";
    std::vector<std::string> axes;
    for (uint32_t i = 0; i < p.mask_rank; i++)
        axes.push_back(fmt::format("{} {}", names[4 - p.mask_rank + i], p.mask_extents[i]));
    const char* rule =
        p.mask == VKATTN_MASK_FLOAT ? "added to the scores" : "true or 1 attends, false or 0 hides";
    return fmt::format("{}, {}, read as ({})", dtype_name(in.mask.file_dtype), rule, fmt::join(axes, ", "));
}

}  // namespace

std::vector<std::string> problem_lines(const Inputs& in, bool bshd) {
    const VkattnProblem& p = in.problem;
    const float scale =
        std::isnan(p.softmax_scale) ? 1 / std::sqrt(static_cast<float>(p.head_dim_qk)) : p.softmax_scale;
    std::vector<std::string> lines = {
        fmt::format("problem   {}, batch {}, heads {}/{}, {} queries x {} keys, head_dim {}/{}, {}",
                    dtype_text(p.dtype), p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv,
                    p.head_dim_qk, p.head_dim_v, bshd ? "bshd" : "bhsd"),
        fmt::format("scores    scale {:g}, {}", scale,
                    p.softcap == 0 ? "no softcap" : fmt::format("softcap {:g}", p.softcap)),
        "bounds    " + bounds_text(in), "mask      " + mask_text(in)};
    if (p.kv_lengths != 0)
        lines.push_back(
            fmt::format("lengths   {} of {} keys (--kv-lengths)", least_to_most(in.kv_lengths), p.seqlen_kv));
    return lines;
}

}  // namespace vkattn::tools
