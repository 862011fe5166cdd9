// vkattn bench: how fast a forward problem runs, beside the device's own ceilings measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <span>

#include "ceilings.hpp"
#include "common.hpp"
#include "submission.hpp"

namespace vkattn::tools {
namespace {

struct Bench {
    AttentionOptions attention;
    ShapeOptions shape;
    uint32_t repeats = 20;
    std::string sweep, mask_fill = "visible";
};

constexpr uint64_t rotate_bytes = uint64_t{256} << 20;  // several times any last-level cache
constexpr double warm_ms = 200;                         // until clocks have settled
constexpr double sweep_warm_ms = 60;
constexpr int max_warm_runs = 1000;

struct Tensors {
    Buffer query, key, value, out, lse;
};

// A buffer of `bytes` that repeats `block`.
Buffer repeat(Runtime& runtime, uint64_t bytes, std::span<const std::byte> block) {
    Buffer b = runtime.allocate(bytes);
    for (uint64_t done = 0; done < bytes; done += block.size())
        runtime.upload(b, block.first(std::min<uint64_t>(block.size(), bytes - done)), done);
    return b;
}

constexpr uint64_t block_elements = 1 << 22;  // of random data; more is repeated

// Never zeros: they can run faster than real data.
Buffer random_buffer(Runtime& runtime, uint64_t elements, VkattnDtype dtype, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<float> values(std::min(elements, block_elements));
    for (float& x : values) x = static_cast<float>(engine()) * 0x1p-31f - 1.0f;
    const NpyArray block = from_float(values, {values.size()}, npy_dtype(dtype));
    return repeat(runtime, elements * element_bytes(dtype), block.data);
}

// Hides nothing, or half of it.
Buffer mask_buffer(Runtime& runtime, const VkattnProblem& p, bool random) {
    uint64_t elements = p.mask == VKATTN_MASK_NONE ? 0 : 1;
    for (uint32_t i = 0; i < p.mask_rank; i++) elements *= p.mask_extents[i];
    const size_t count = std::min(elements, block_elements);
    std::mt19937 engine(1);
    std::vector<float> added(count);
    std::vector<std::byte> visible(count, std::byte{1});
    for (size_t i = 0; random && i < count; i++) {
        if (engine() % 2 == 0) continue;
        added[i] = -std::numeric_limits<float>::infinity();
        visible[i] = std::byte{0};
    }
    if (p.mask == VKATTN_MASK_BOOL) return repeat(runtime, elements, visible);
    const NpyArray block = from_float(added, {count}, npy_dtype(p.dtype));
    return repeat(runtime, elements * element_bytes(p.dtype), block.data);
}

// Those of query, key, value and out: what attention must move at least.
uint64_t tensor_bytes(const VkattnProblem& p) {
    return element_bytes(p.dtype) *
           (element_count(p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk + p.head_dim_v) +
            element_count(p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk + p.head_dim_v));
}

Tensors make_tensors(Runtime& runtime, const VkattnProblem& p, uint32_t seed) {
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1),
                   keys = element_count(p.batch, p.num_heads_kv, p.seqlen_kv, 1);
    return {random_buffer(runtime, rows * p.head_dim_qk, p.dtype, seed),
            random_buffer(runtime, keys * p.head_dim_qk, p.dtype, seed + 1),
            random_buffer(runtime, keys * p.head_dim_v, p.dtype, seed + 2),
            runtime.allocate(rows * p.head_dim_v * element_bytes(p.dtype)),
            runtime.allocate(rows * sizeof(float))};
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
    Workload(Runtime& runtime, const VkattnProblem& p, bool random_mask)
        : runtime_(runtime), submitter_(runtime), mask_(mask_buffer(runtime, p, random_mask)) {
        const uint64_t sets = rotate_bytes / std::max<uint64_t>(tensor_bytes(p), 1);
        for (uint32_t i = 0; i < std::clamp<uint64_t>(sets, 1, 16); i++)
            tensors_.push_back(make_tensors(runtime, p, 3 * i + 1));
        if (p.kv_lengths == 0) return;
        const std::vector<uint32_t> lengths(p.batch, p.seqlen_kv);
        kv_lengths_ = repeat(runtime, lengths.size() * sizeof(uint32_t), std::as_bytes(std::span(lengths)));
    }

    std::vector<double> time(const Plan& plan, double warm_for_ms, uint32_t repeats) {
        const Buffer scratch = runtime_.allocate(plan.scratch().size_bytes);
        double warm = 0;
        for (int i = 0; i < max_warm_runs && warm < warm_for_ms; i++) warm += run(plan, scratch);
        std::vector<double> ms;
        for (uint32_t i = 0; i < repeats; i++) ms.push_back(run(plan, scratch));
        return ms;
    }

    uint32_t submissions() const { return submitter_.submissions(); }  // of the last run

  private:
    double run(const Plan& plan, const Buffer& scratch) {
        const Tensors& t = tensors_[next_++ % tensors_.size()];
        VkattnForwardArgs args = forward_args();
        args.query = t.query.address();
        args.key = t.key.address();
        args.value = t.value.address();
        args.out = t.out.address();
        args.lse = t.lse.address();
        args.mask = mask_.address();
        args.kv_lengths = kv_lengths_.address();
        args.scratch_buffer = scratch.handle();
        args.scratch_address = scratch.address();
        return submitter_.run(plan, args);
    }

    Runtime& runtime_;
    Submitter submitter_;
    std::vector<Tensors> tensors_;
    Buffer mask_, kv_lengths_;
    size_t next_ = 0;
};

double tflops(const VkattnProblem& p, double ms) {
    return 2.0 * p.batch * p.num_heads_q * visible_pairs(p) * (p.head_dim_qk + p.head_dim_v) / (ms * 1e-3) *
           1e-12;
}

struct Result {
    std::vector<double> ms;
    double tflops, gbps;
    uint32_t segments, submissions;
};

void print_json(const DeviceInfo& d, const VkattnProblem& p, const Json& plan, const Result& r,
                const Ceilings& ceilings) {
    const auto [least, most] = std::minmax_element(r.ms.begin(), r.ms.end());
    const Json out{
        {"device", d.name},
        {"driver", d.driver},
        {"dtype", dtype_text(p.dtype)},
        {"kernel", plan["kernel"]},
        {"tuning_row", plan["tuning_row"]},
        {"tuning", plan["tuning"]},
        {"scratch_bytes", plan["scratch_bytes"]},
        {"segments", r.segments},
        {"submissions", r.submissions},
        {"time_ms", {{"median", median(r.ms)}, {"min", *least}, {"max", *most}, {"runs", r.ms.size()}}},
        {"tflops", r.tflops},
        {"gbps", r.gbps},
        {"fma_tflops", ceilings.fma_tflops},
        {"copy_gbps", ceilings.copy_gbps},
        {"fma_ratio", r.tflops / ceilings.fma_tflops},
        {"copy_ratio", r.gbps / ceilings.copy_gbps}};
    fmt::print("{}\n", out.dump());
}

void print_text(const DeviceInfo& d, const Json& plan, const Result& r, const Ceilings& ceilings) {
    const auto [least, most] = std::minmax_element(r.ms.begin(), r.ms.end());
    fmt::print("device   {} ({})\n", d.name, d.driver);
    fmt::print("kernel   {} ({}: {})\n", plan["kernel"].get<std::string>(),
               plan["tuning_row"].get<std::string>(), plan["tuning"].get<std::string>());
    fmt::print(
        "time     {:.4f} ms, the median of {} runs ({:.4f} .. {:.4f}) of {} segments in {} submissions\n",
        median(r.ms), r.ms.size(), *least, *most, r.segments, r.submissions);
    fmt::print("rate     {:.3f} TFLOP/s, {:.1f} % of the float32 FMA rate\n", r.tflops,
               100 * r.tflops / ceilings.fma_tflops);
    fmt::print("traffic  {:.1f} GB/s of query, key, value and out, {:.1f} % of the copy bandwidth\n", r.gbps,
               100 * r.gbps / ceilings.copy_gbps);
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
    Workload workload(runtime, p, b.mask_fill == "random");
    const Ceilings ceilings = measure_ceilings(runtime);
    for (const auto& [line, plan] : plans) {
        const double rate = tflops(p, median(workload.time(plan, sweep_warm_ms, b.repeats)));
        fmt::print("{:7.3f} TFLOP/s {:5.1f} %  {}\n", rate, 100 * rate / ceilings.fma_tflops, line);
        std::fflush(stdout);
    }
}

void bench(const Bench& b) {
    if (b.repeats == 0) throw UsageError("--repeats", "is 0, at least 1 run is needed");
    if (b.mask_fill != "visible" && b.mask_fill != "random")
        throw UsageError("--mask-fill", fmt::format("'{}' is not visible or random", b.mask_fill));
    VkattnProblem p = problem();
    b.attention.apply(p);
    b.shape.apply(p);
    set_dense_layout(p, b.attention.bshd());
    Runtime runtime(b.attention.runtime_options());
    if (!b.sweep.empty()) return sweep(b, runtime, p);
    Plan plan;
    try {
        plan = runtime.plan(p, b.attention.plan_options());
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
    const Ceilings ceilings = measure_ceilings(runtime);
    Workload workload(runtime, p, b.mask_fill == "random");
    Result r{workload.time(plan, warm_ms, b.repeats), 0, 0, plan.segments(), workload.submissions()};
    r.tflops = tflops(p, median(r.ms));
    r.gbps = static_cast<double>(tensor_bytes(p)) / (median(r.ms) * 1e-3) * 1e-9;
    const Json description = Json::parse(plan.describe());
    if (b.attention.json) return print_json(runtime.device(), p, description, r, ceilings);
    print_text(runtime.device(), description, r, ceilings);
}

}  // namespace

void add_bench(CLI::App& app) {
    CLI::App* sub =
        app.add_subcommand("bench", "How fast a problem runs, beside the device's measured ceilings");
    auto b = std::make_shared<Bench>();
    b->shape.add_to(*sub);
    b->attention.add_to(*sub);
    sub->add_option("--repeats", b->repeats, "Timed runs; default 20");
    sub->add_option("--mask-fill", b->mask_fill, "visible (default): hides nothing; random: hides half")
        ->needs("--mask-shape");
    sub->add_option("--sweep", b->sweep, "A file of tunings, one a line: times each over the same tensors");
    sub->callback([b] { bench(*b); });
}

}  // namespace vkattn::tools
