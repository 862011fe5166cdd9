#include "common.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

namespace vkattn::tools {
namespace {

template <class T>
T parse_number(const std::string& argument, std::string_view text, const char* kind) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        throw UsageError(argument, fmt::format("'{}' is not {}", text, kind));
    return value;
}

void parse_align(const std::string& text, VkattnProblem& problem) {
    if (text.empty() || text == "bottom-right") {
        problem.align = VKATTN_ALIGN_BOTTOM_RIGHT;
    } else if (text == "top-left") {
        problem.align = VKATTN_ALIGN_TOP_LEFT;
    } else {
        problem.align = VKATTN_ALIGN_OFFSET;
        problem.query_offset =
            parse_number<int64_t>("--align", text, "top-left, bottom-right or a whole number");
    }
}

void parse_window(const std::string& text, VkattnProblem& problem) {
    if (text.empty()) return;
    const size_t comma = text.find(',');
    if (comma == std::string::npos) throw UsageError("--window", fmt::format("'{}' is not LEFT,RIGHT", text));
    const std::string_view view = text;
    problem.window_left = parse_number<int64_t>("--window", view.substr(0, comma), "a whole number");
    problem.window_right = parse_number<int64_t>("--window", view.substr(comma + 1), "a whole number");
}

}  // namespace

void AttentionOptions::add_to(CLI::App& app) {
    app.add_option("--scale", scale, "Softmax scale; default 1/sqrt(head_dim_qk)");
    app.add_flag("--causal", causal, "Query row i sees keys up to its own position");
    app.add_option(
        "--align", align,
        "Key position of query row 0: top-left (0), bottom-right (len_kv - len_q, the default) or a number");
    app.add_option("--window", window,
                   "LEFT,RIGHT: keys this far before and after a row's position; -1 = unbounded");
    app.add_option("--softcap", softcap, "Scores become softcap * tanh(score / softcap); 0 = none");
    app.add_option("--kernel", kernel, "auto, or the kernel to use: tiles, materialized");
    app.add_option("--tuning", tuning, "Numbers over the tuning row, as in rows=4,cols=8");
    app.add_option("--device", device,
                   "Index, part of the name, or UUID; default $VKATTN_DEVICE, else the best");
    app.add_option("--pipeline-cache", pipeline_cache,
                   "File of compiled pipelines, read and written: a faster start");
    app.add_flag("--json", json, "One JSON object on stdout");
}

void AttentionOptions::apply(VkattnProblem& problem) const {
    if (!scale.empty()) {
        problem.softmax_scale = parse_number<float>("--scale", scale, "a number");
        if (!std::isfinite(problem.softmax_scale))
            throw UsageError("--scale", fmt::format("'{}' is not finite", scale));
    }
    problem.causal = causal;
    problem.softcap = softcap;
    parse_align(align, problem);
    parse_window(window, problem);
}

VkattnOptions AttentionOptions::plan_options() const {
    VkattnOptions o = options();
    o.kernel = kernel.c_str();
    o.tuning = tuning.c_str();
    return o;
}

RuntimeOptions AttentionOptions::runtime_options() const {
    RuntimeOptions o;
    o.device = device;
    o.pipeline_cache = pipeline_cache;
    const std::filesystem::path cache(pipeline_cache), folder = cache.parent_path();
    if (std::filesystem::is_directory(cache))
        throw UsageError("--pipeline-cache", pipeline_cache + " is a folder");
    if (!folder.empty() && !std::filesystem::is_directory(folder))
        throw UsageError("--pipeline-cache", folder.string() + " is no folder");
    return o;
}

void ShapeOptions::add_to(CLI::App& app) {
    app.add_option("--batch", batch, "Default 1");
    app.add_option("--heads-q", heads_q, "Query heads; default 1");
    app.add_option("--heads-kv", heads_kv, "Key and value heads; default as --heads-q");
    app.add_option("--seqlen-q", seqlen_q, "Query rows")->required();
    app.add_option("--seqlen-kv", seqlen_kv, "Keys; default as --seqlen-q");
    app.add_option("--head-dim-qk", head_dim_qk, "Head dimension of query and key")->required();
    app.add_option("--head-dim-v", head_dim_v, "Head dimension of value; default as --head-dim-qk");
}

void ShapeOptions::apply(VkattnProblem& problem) const {
    problem.batch = batch;
    problem.num_heads_q = heads_q;
    problem.num_heads_kv = heads_kv.value_or(heads_q);
    problem.seqlen_q = seqlen_q;
    problem.seqlen_kv = seqlen_kv.value_or(seqlen_q);
    problem.head_dim_qk = head_dim_qk;
    problem.head_dim_v = head_dim_v.value_or(head_dim_qk);
}

void set_dense_alignment(VkattnProblem& problem) {
    const uint32_t element = problem.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    const uint32_t both = (problem.head_dim_qk | problem.head_dim_v) * element;
    problem.alignment_bytes =
        std::min(256u, both & (~both + 1));  // the largest power of two that divides both
}

uint64_t element_count(uint32_t batch, uint32_t heads, uint32_t seqlen, uint32_t dim) {
    return uint64_t{batch} * heads * seqlen * dim;
}

std::string bytes_text(double bytes) {
    const char* units[] = {"bytes", "KB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 1000 && unit + 1 < std::size(units)) {
        bytes /= 1000;
        unit++;
    }
    return unit == 0 ? fmt::format("{:.0f} {}", bytes, units[unit])
                     : fmt::format("{:.3g} {}", bytes, units[unit]);
}

void rethrow_as_usage(const Error& error) {
    static const std::map<std::string, std::string> arguments = {
        {"problem.batch", "--batch"},           {"problem.num_heads_q", "--heads-q"},
        {"problem.num_heads_kv", "--heads-kv"}, {"problem.seqlen_q", "--seqlen-q"},
        {"problem.seqlen_kv", "--seqlen-kv"},   {"problem.head_dim_qk", "--head-dim-qk"},
        {"problem.head_dim_v", "--head-dim-v"}, {"problem.softmax_scale", "--scale"},
        {"problem.softcap", "--softcap"},       {"problem.window_left", "--window"},
        {"problem.window_right", "--window"},   {"problem.align", "--align"},
        {"problem.query_offset", "--align"},    {"options.kernel", "--kernel"},
        {"options.tuning", "--tuning"},
    };
    if (error.status() != VKATTN_INVALID_ARGUMENT) throw error;
    const auto found = arguments.find(error.field());
    throw UsageError(found != arguments.end() ? found->second : error.field(), error.message());
}

}  // namespace vkattn::tools
