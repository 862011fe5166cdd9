// vkattn bench: how fast a forward problem runs, beside the device's own ceilings measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
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
    std::string sweep;
};

constexpr uint64_t rotate_bytes = uint64_t{256} << 20;  // several times any last-level cache
constexpr double warm_ms = 200;                         // until clocks have settled
constexpr double sweep_warm_ms = 60;
constexpr int max_warm_runs = 1000;

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
    return {
        random_buffer(runtime, element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk), seed),
        random_buffer(runtime, element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk), seed + 1),
        random_buffer(runtime, element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v), seed + 2),
        runtime.allocate(element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v) * sizeof(float)),
        runtime.allocate(element_count(p.batch, p.num_heads_q, p.seqlen_q, 1) * sizeof(float))};
}

// Query-key pairs that are visible in one head: what must be computed.
double visible_pairs(const VkattnProblem& p) {
    const int64_t q = p.seqlen_q, kv = p.seqlen_kv;
    const int64_t offset = p.align == VKATTN_ALIGN_TOP_LEFT ? 0
                           : p.align == VKATTN_ALIGN_OFFSET ? p.query_offset
                                                            : kv - q;
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
class Workload {
  public:
    Workload(Runtime& runtime, const VkattnProblem& p) : runtime_(runtime) {
        const uint64_t dims = p.head_dim_qk + p.head_dim_v;
        const uint64_t set_bytes = sizeof(float) * dims *
                                   (element_count(p.batch, p.num_heads_q, p.seqlen_q, 1) +
                                    element_count(p.batch, p.num_heads_kv, p.seqlen_kv, 1));
        const uint64_t sets = std::clamp<uint64_t>(rotate_bytes / std::max<uint64_t>(set_bytes, 1), 1, 16);
        for (uint32_t i = 0; i < sets; i++) tensors_.push_back(make_tensors(runtime, p, 3 * i + 1));
    }

    std::vector<double> time(const Plan& plan, double warm_for_ms, uint32_t repeats) {
        const Buffer scratch = runtime_.allocate(plan.scratch().size_bytes);
        double warm = 0;
        for (int i = 0; i < max_warm_runs && warm < warm_for_ms; i++) warm += run(plan, scratch);
        std::vector<double> ms;
        for (uint32_t i = 0; i < repeats; i++) ms.push_back(run(plan, scratch));
        return ms;
    }

  private:
    double run(const Plan& plan, const Buffer& scratch) {
        const Tensors& t = tensors_[next_++ % tensors_.size()];
        VkattnForwardArgs args = forward_args();
        args.query = t.query.address();
        args.key = t.key.address();
        args.value = t.value.address();
        args.out = t.out.address();
        args.lse = t.lse.address();
        args.scratch_buffer = scratch.handle();
        args.scratch_address = scratch.address();
        return runtime_.submit([&](VkCommandBuffer c) { plan.cmd_forward(c, args); });
    }

    Runtime& runtime_;
    std::vector<Tensors> tensors_;
    size_t next_ = 0;
};

double tflops(const VkattnProblem& p, double ms) {
    return 2.0 * p.batch * p.num_heads_q * visible_pairs(p) * (p.head_dim_qk + p.head_dim_v) / (ms * 1e-3) *
           1e-12;
}

void print_result(const Bench& b, const Runtime& runtime, const Json& plan, const std::vector<double>& ms,
                  double rate, const Ceilings& ceilings) {
    const auto [least, most] = std::minmax_element(ms.begin(), ms.end());
    const DeviceInfo& d = runtime.device();
    if (b.attention.json) {
        const Json out{
            {"device", d.name},
            {"driver", d.driver},
            {"kernel", plan["kernel"]},
            {"tuning_row", plan["tuning_row"]},
            {"tuning", plan["tuning"]},
            {"scratch_bytes", plan["scratch_bytes"]},
            {"time_ms", {{"median", median(ms)}, {"min", *least}, {"max", *most}, {"runs", ms.size()}}},
            {"tflops", rate},
            {"fma_tflops", ceilings.fma_tflops},
            {"copy_gbps", ceilings.copy_gbps},
            {"fma_ratio", rate / ceilings.fma_tflops}};
        fmt::print("{}\n", out.dump());
        return;
    }
    fmt::print("device   {} ({})\n", d.name, d.driver);
    fmt::print("kernel   {} ({}: {})\n", plan["kernel"].get<std::string>(),
               plan["tuning_row"].get<std::string>(), plan["tuning"].get<std::string>());
    fmt::print("time     {:.4f} ms, the median of {} runs ({:.4f} .. {:.4f})\n", median(ms), ms.size(),
               *least, *most);
    fmt::print("rate     {:.3f} TFLOP/s, {:.1f} % of the float32 FMA rate\n", rate,
               100 * rate / ceilings.fma_tflops);
    fmt::print("ceilings {:.3f} TFLOP/s float32 FMA, {:.1f} GB/s copy, both measured in this run\n",
               ceilings.fma_tflops, ceilings.copy_gbps);
}

// One line a tuning of the file, over the same tensors: how the rows of src/plan/tuning.cpp are found. All
// pipelines are built first: while one is built the device idles, and its clock drops.
void sweep(const Bench& b, Runtime& runtime, const VkattnProblem& p) {
    std::ifstream file(b.sweep);
    if (!file || file.peek() == std::ifstream::traits_type::eof())
        throw UsageError("--sweep", fmt::format("cannot read a tuning from {}", b.sweep));
    std::vector<std::pair<std::string, Plan>> plans;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        VkattnOptions o = b.attention.plan_options();
        o.tuning = line.c_str();
        try {
            plans.emplace_back(line, runtime.plan(p, o));
        } catch (const Error& error) {
            fmt::print("refused  {}: {}\n", line, error.what());
        }
    }
    Workload workload(runtime, p);
    const Ceilings ceilings = measure_ceilings(runtime);
    for (const auto& [line, plan] : plans) {
        const double rate = tflops(p, median(workload.time(plan, sweep_warm_ms, b.repeats)));
        fmt::print("{:7.3f} TFLOP/s {:5.1f} %  {}\n", rate, 100 * rate / ceilings.fma_tflops, line);
        std::fflush(stdout);
    }
}

void bench(const Bench& b) {
    if (b.repeats == 0) throw UsageError("--repeats", "is 0, at least 1 run is needed");
    VkattnProblem p = problem();
    b.attention.apply(p);
    b.shape.apply(p);
    set_dense_alignment(p);
    Runtime runtime(b.attention.runtime_options());
    if (!b.sweep.empty()) return sweep(b, runtime, p);
    Plan plan;
    try {
        plan = runtime.plan(p, b.attention.plan_options());
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
    const Ceilings ceilings = measure_ceilings(runtime);
    const std::vector<double> ms = Workload(runtime, p).time(plan, warm_ms, b.repeats);
    print_result(b, runtime, Json::parse(plan.describe()), ms, tflops(p, median(ms)), ceilings);
}

}  // namespace

void add_bench(CLI::App& app) {
    CLI::App* sub =
        app.add_subcommand("bench", "How fast a problem runs, beside the device's measured ceilings");
    auto b = std::make_shared<Bench>();
    b->shape.add_to(*sub);
    b->attention.add_to(*sub);
    sub->add_option("--repeats", b->repeats, "Timed runs; default 20");
    sub->add_option("--sweep", b->sweep, "A file of tunings, one a line: times each over the same tensors");
    sub->callback([b] { bench(*b); });
}

}  // namespace vkattn::tools
