// vkattn explain: the plan of a problem, and why each other kernel was refused. No data needed.
#include <fmt/format.h>
#include <algorithm>

#include <memory>

#include "call.hpp"
#include "common.hpp"
#include "field_names.hpp"
#include "modules.hpp"
#include "progress.hpp"
#include "workload.hpp"

namespace vkattn::tools {
namespace {

struct Explain {
    AttentionOptions attention;
    ShapeOptions shape;
    bool backward = false, dbias = false;
};

Plan make_plan(const Explain& e, const Runtime& runtime, const VkattnProblem& p) {
    const Phase phase(compiling_pipelines);
    const VkattnOptions o = e.attention.plan_options();
    if (!e.backward) return runtime.plan(p, o);
    VkattnBackward b = dense_backward(p);
    b.dbias = e.dbias;
    return runtime.backward_plan(p, b, o);
}

// Query, key, value, out and lse, the mask, and the gradients of a backward.
uint64_t all_tensor_bytes(const VkattnProblem& p, bool backward, bool dbias) {
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1);
    uint64_t mask = p.mask == VKATTN_MASK_NONE   ? 0
                    : p.mask == VKATTN_MASK_BOOL ? 1
                                                 : element_bytes(dtype_of(p, p.mask_dtype));
    for (uint32_t i = 0; i < p.mask_rank; i++) mask *= p.mask_extents[i];
    return tensor_bytes(p) * (backward ? 2 : 1) + rows * sizeof(float) + mask * (dbias ? 2 : 1);
}

// Neighbours that are alike share a line.
void print_dispatches(const Json& dispatches) {
    for (size_t i = 0, same = 1; i < dispatches.size(); i += same) {
        const Json& d = dispatches[i];
        const Json& g = d["groups"];
        for (same = 1; i + same < dispatches.size() && dispatches[i + same] == d;) same++;
        fmt::print("dispatch {} {} x {} x {}, {:.3g} GFLOP{}{}\n", d["variant"].get<std::string>(),
                   g[0].get<uint32_t>(), g[1].get<uint32_t>(), g[2].get<uint32_t>(),
                   d["flops"].get<double>() * 1e-9,
                   d["barrier_before"].get<bool>() ? ", after a barrier" : "",
                   same > 1 ? fmt::format(", {} times", same) : "");
    }
}

// How many keys the bounds leave to a row: row i sees keys from i + lo on and before i + hi, of those that there are.
struct SeenKeys {
    uint64_t least, most;
    double average;
};

SeenKeys seen_keys(const VkattnProblem& p) {
    const int64_t rows = p.seqlen_q, keys = p.seqlen_kv, far = int64_t{1} << 40;
    const int64_t offset = p.align == VKATTN_ALIGN_BOTTOM_RIGHT ? keys - rows
                           : p.align == VKATTN_ALIGN_OFFSET     ? p.query_offset
                                                                : 0;
    const int64_t after = p.causal != 0 ? 0 : p.window_right < 0 ? far : p.window_right;
    const int64_t hi = offset + 1 + after, lo = p.window_left < 0 ? -far : offset - p.window_left;
    const auto below = [&](int64_t row, int64_t bound) { return std::clamp<int64_t>(row + bound, 0, keys); };
    const auto seen = [&](int64_t row) { return below(row, hi) - below(row, lo); };
    // This sums below() over all rows: first it is 0, then a ramp, then all keys.
    const auto sum = [&](int64_t bound) {
        const double first = static_cast<double>(std::clamp<int64_t>(-bound, 0, rows)),
                     full = static_cast<double>(std::clamp<int64_t>(keys - bound, 0, rows)),
                     b = static_cast<double>(bound), all = static_cast<double>(rows);
        return (full - first) * ((first + full - 1) / 2 + b) + (all - full) * static_cast<double>(keys);
    };
    SeenKeys result{UINT64_MAX, 0, rows == 0 ? 0 : (sum(hi) - sum(lo)) / static_cast<double>(rows)};
    // The extremes are at rows where one of the bounds begins or ceases to grow.
    for (const int64_t at : {int64_t{0}, rows - 1, -hi, keys - hi, -lo, keys - lo}) {
        const auto keys_there =
            static_cast<uint64_t>(seen(std::clamp<int64_t>(at, 0, std::max<int64_t>(rows, 1) - 1)));
        result.least = std::min(result.least, keys_there);
        result.most = std::max(result.most, keys_there);
    }
    return result;
}

// Returns "" if lengths or offsets on the device decide it.
std::string seen_text(const VkattnProblem& p) {
    if (p.kv_lengths != 0 || p.align == VKATTN_ALIGN_OFFSETS || p.seqlen_q == 0) return "";
    const SeenKeys seen = seen_keys(p);
    return fmt::format("{} to {} keys, {:.1f} on average{}", seen.least, seen.most, seen.average,
                       p.mask != VKATTN_MASK_NONE ? ", less what the mask hides" : "");
}

void print(const Runtime& runtime, const Json& plan) {
    fmt::print("device   {} ({})\n", runtime.device().name, runtime.device().driver);
    fmt::print("kernel   {}, tuning row {}, products of {}\n", plan["kernel"].get<std::string>(),
               plan["tuning_row"].get<std::string>(), plan["precision"].get<std::string>());
    fmt::print("         {}\n", plan["tuning"].get<std::string>());
    const Json& t = plan["tiles"];
    fmt::print("tiles    {} query rows x {} keys, {} invocations, {} bytes of shared memory\n",
               t["tile_q"].get<int>(), t["tile_kv"].get<int>(), t["threads"].get<int>(),
               t["shared_bytes"].get<int>());
    if (const auto seen = plan["row_sees"].get<std::string>(); !seen.empty())
        fmt::print("a row    sees {}\n", seen);
    fmt::print("tensors  {}\n", bytes_text(plan["tensor_bytes"].get<double>()));
    fmt::print("scratch  {} bytes\n", plan["scratch_bytes"].get<uint64_t>());
    fmt::print("matrices {} that a materialised attention would need, and this plan does not\n",
               bytes_text(plan["matrix_bytes"].get<double>()));
    fmt::print("segments {}\n", plan["segments"].get<uint32_t>());
    print_dispatches(plan["dispatches"]);
    for (const auto& [kernel, reason] : plan["refused"].items())
        fmt::print("refused  {}: {}\n", kernel, reason.get<std::string>());
}

void explain(const Explain& e) {
    VkattnProblem p = problem();
    e.attention.apply(p);
    e.shape.apply(p);
    set_dense_layout(p, e.attention.bshd());
    Runtime runtime = open_runtime(e.attention);
    add_modules(runtime, e.attention.modules);
    try {
        const Plan plan = make_plan(e, runtime, p);
        Json description = Json::parse(plan.describe());
        description["segments"] = plan.segments();
        description["row_sees"] = seen_text(p);
        description["tensor_bytes"] = all_tensor_bytes(p, e.backward, e.dbias);
        description["matrix_bytes"] = matrix_bytes(p, e.backward);
        for (auto& [kernel, reason] : description["refused"].items())
            reason = with_option_names(reason.get<std::string>(), Shapes::of_options);
        if (!e.attention.json) return print(runtime, description);
        Json out = call_json(runtime);
        out["pass"] = e.backward ? "backward" : "forward";
        out["problem"] = problem_json(p, e.attention.bshd());
        out["options"] = options_json(e.attention);
        out.update(description);
        fmt::print("{}\n", out.dump());
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
}

}  // namespace

void add_explain(CLI::App& app) {
    CLI::App* sub =
        app.add_subcommand("explain", "The plan of a problem, and why each other kernel was refused");
    auto e = std::make_shared<Explain>();
    e->shape.add_to(*sub);
    e->attention.add_to(*sub);
    CLI::Option* backward = sub->add_flag("--backward", e->backward, "The plan of the gradients instead");
    sub->add_flag("--dbias", e->dbias, "The float mask's gradient, too")->needs(backward);
    sub->callback([e] { explain(*e); });
}

}  // namespace vkattn::tools
