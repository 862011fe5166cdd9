// vkattn bench: how fast a forward problem runs, beside the device's own ceilings measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "ceilings.hpp"
#include "common.hpp"

namespace vkattn::tools {
namespace {

struct Bench {
    AttentionOptions attention;
    ShapeOptions shape;
    uint32_t repeats = 20;
};

constexpr uint64_t rotate_bytes = uint64_t{256} << 20;  // several times any last-level cache
constexpr double warm_ms = 200;                         // until clocks have settled
constexpr int max_warm_runs = 50;

struct Tensors {
    Buffer query, key, value, out, lse;
};

// Never zeros: they can run faster than real data.
std::vector<float> random_values(size_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<float> values(count);
    for (float& x : values) x = static_cast<float>(engine()) * 0x1p-31f - 1.0f;
    return values;
}

Buffer random_buffer(Runtime& runtime, uint64_t elements, uint32_t seed) {
    Buffer b = runtime.allocate(elements * sizeof(float));
    const auto block = random_values(std::min<uint64_t>(elements, 1 << 22), seed);
    for (uint64_t done = 0; done < elements; done += block.size()) {
        const size_t count = std::min<uint64_t>(block.size(), elements - done);
        runtime.upload(b, std::as_bytes(std::span(block).first(count)), done * sizeof(float));
    }
    return b;
}

Tensors make_tensors(Runtime& runtime, const VkattnProblem& p, uint32_t seed) {
    return {random_buffer(runtime, element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk), seed),
            random_buffer(runtime, element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk), seed + 1),
            random_buffer(runtime, element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v), seed + 2),
            runtime.allocate(element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v) * sizeof(float)),
            runtime.allocate(element_count(p.batch, p.num_heads_q, p.seqlen_q, 1) * sizeof(float))};
}

// Query-key pairs that are visible in one head: what must be computed.
double visible_pairs(const VkattnProblem& p) {
    const int64_t q = p.seqlen_q, kv = p.seqlen_kv;
    const int64_t offset = p.align == VKATTN_ALIGN_TOP_LEFT ? 0 : p.align == VKATTN_ALIGN_OFFSET ? p.query_offset : kv - q;
    double pairs = 0;
    for (int64_t i = 0; i < q; i++) {
        const int64_t at = i + offset;
        int64_t begin = 0, end = kv;
        if (p.window_left >= 0) begin = std::max(begin, at - p.window_left);
        if (p.window_right >= 0) end = std::min(end, at + p.window_right + 1);
        if (p.causal != 0) end = std::min(end, at + 1);
        pairs += static_cast<double>(std::max<int64_t>(0, end - begin));
    }
    return pairs;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Device milliseconds of single runs over rotating tensors, after a warm-up.
std::vector<double> time_runs(Runtime& runtime, const Plan& plan, const VkattnProblem& p, uint32_t repeats) {
    const uint64_t set_bytes = sizeof(float) * (element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk + p.head_dim_v) +
                                                element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk + p.head_dim_v));
    const uint64_t sets = std::clamp<uint64_t>(rotate_bytes / std::max<uint64_t>(set_bytes, 1), 1, 16);
    std::vector<Tensors> tensors;
    for (uint32_t i = 0; i < sets; i++) tensors.push_back(make_tensors(runtime, p, 3 * i + 1));
    const Buffer scratch = runtime.allocate(plan.scratch().size_bytes);
    size_t next = 0;
    const auto run = [&] {
        const Tensors& t = tensors[next++ % tensors.size()];
        VkattnForwardArgs args = forward_args();
        args.query = t.query.address();
        args.key = t.key.address();
        args.value = t.value.address();
        args.out = t.out.address();
        args.lse = t.lse.address();
        args.scratch_buffer = scratch.handle();
        args.scratch_address = scratch.address();
        return runtime.submit([&](VkCommandBuffer c) { plan.cmd_forward(c, args); });
    };
    double warm = 0;
    for (int i = 0; i < max_warm_runs && warm < warm_ms; i++) warm += run();
    std::vector<double> ms;
    for (uint32_t i = 0; i < repeats; i++) ms.push_back(run());
    return ms;
}

void bench(const Bench& b) {
    if (b.repeats == 0) throw UsageError("--repeats", "is 0, at least 1 run is needed");
    VkattnProblem p = problem();
    b.attention.apply(p);
    b.shape.apply(p);
    set_dense_alignment(p);
    Runtime runtime(b.attention.runtime_options());
    Plan plan;
    try {
        plan = runtime.plan(p, b.attention.plan_options());
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
    const Ceilings ceilings = measure_ceilings(runtime);
    const std::vector<double> ms = time_runs(runtime, plan, p, b.repeats);
    const double typical = median(ms);
    const double flops = 2.0 * p.batch * p.num_heads_q * visible_pairs(p) * (p.head_dim_qk + p.head_dim_v);
    const double tflops = flops / (typical * 1e-3) * 1e-12;
    const Json description = Json::parse(plan.describe());
    if (b.attention.json) {
        const Json out{{"device", runtime.device().name},
                       {"driver", runtime.device().driver},
                       {"kernel", description["kernel"]},
                       {"tuning_row", description["tuning_row"]},
                       {"tuning", description["tuning"]},
                       {"scratch_bytes", description["scratch_bytes"]},
                       {"time_ms", {{"median", typical},
                                    {"min", *std::min_element(ms.begin(), ms.end())},
                                    {"max", *std::max_element(ms.begin(), ms.end())},
                                    {"runs", ms.size()}}},
                       {"tflops", tflops},
                       {"fma_tflops", ceilings.fma_tflops},
                       {"copy_gbps", ceilings.copy_gbps},
                       {"fma_ratio", tflops / ceilings.fma_tflops}};
        fmt::print("{}\n", out.dump());
        return;
    }
    fmt::print("device   {} ({})\n", runtime.device().name, runtime.device().driver);
    fmt::print("kernel   {} ({}: {})\n", description["kernel"].get<std::string>(),
               description["tuning_row"].get<std::string>(), description["tuning"].get<std::string>());
    fmt::print("time     {:.4f} ms, the median of {} runs ({:.4f} .. {:.4f})\n", typical, ms.size(),
               *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()));
    fmt::print("rate     {:.3f} TFLOP/s, {:.1f} % of the float32 FMA rate\n", tflops, 100 * tflops / ceilings.fma_tflops);
    fmt::print("ceilings {:.3f} TFLOP/s float32 FMA, {:.1f} GB/s copy, both measured in this run\n", ceilings.fma_tflops,
               ceilings.copy_gbps);
}

}  // namespace

void add_bench(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("bench", "How fast a problem runs, beside the device's measured ceilings");
    auto b = std::make_shared<Bench>();
    b->shape.add_to(*sub);
    b->attention.add_to(*sub);
    sub->add_option("--repeats", b->repeats, "Timed runs; default 20");
    sub->callback([b] { bench(*b); });
}

}  // namespace vkattn::tools
