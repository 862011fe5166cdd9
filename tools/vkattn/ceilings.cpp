#include "ceilings.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "own_kernel.hpp"
#include "plan/matrix.hpp"
#include "progress.hpp"
#include "shared/ceilings.h"
#include "vulkan/context.hpp"
#include "workload.hpp"

namespace vkattn::tools {
namespace {

// Records a dispatch of a kernel whose only input is CeilingPush.
void record_ceiling(const OwnKernel& kernel, VkCommandBuffer c, const shared::CeilingPush& push,
                    uint32_t groups) {
    kernel.record(c, &push, groups);
}

OwnKernel ceiling_kernel(const Runtime& runtime, const core::Frame& frame, const char* name,
                         const Specialization& given = {}) {
    return OwnKernel(runtime, frame, name, sizeof(shared::CeilingPush), given);
}

constexpr double long_enough_ms = 20;
constexpr int repeats = 7;
constexpr double ceiling_warm_ms = 200;  // an idle device needs this long to raise its clock
constexpr int max_warm_runs = 50;
// No run through memory begins after this time, so that a CPU's do not take seconds.
constexpr double long_runs_ms = 500;

// The best rate of several runs, once a run is long enough: a ceiling is what the device can reach.
template <class RunOnce>
double best_rate(uint32_t count, uint32_t max_count, double work_per_count, double warm_for_ms,
                 RunOnce run_once) {
    double ms = run_once(count);
    while (ms < long_enough_ms && count < max_count) {
        count *= 2;
        ms = run_once(count);
    }
    double warm = 0;
    for (int i = 0; i < max_warm_runs && warm < warm_for_ms; i++) warm += run_once(count);
    for (int i = 0; i < repeats; i++) ms = std::min(ms, run_once(count));
    return work_per_count * count / (ms * 1e-3);
}

// TFLOP/s of a kernel that runs rounds of `flops`.
double best_tflops(Runtime& runtime, const OwnKernel& kernel, const Buffer& sink, uint32_t groups,
                   double flops) {
    return 1e-12 *
           best_rate(1, 1u << 20, flops, warming_time(runtime, ceiling_warm_ms), [&](uint32_t rounds) {
               return runtime.submit([&](VkCommandBuffer b) {
                   record_ceiling(kernel, b, {0, sink.address(), rounds}, groups);
               });
           });
}

double measure_fma(Runtime& runtime, const Buffer& sink, uint32_t groups) {
    const double flops =
        2.0 * 4 * 4 * CEILING_CHAINS * CEILING_THREADS * groups;  // a round: 4 steps of vec4 chains
    return best_tflops(runtime, ceiling_kernel(runtime, code_ceiling_fma_f32, "ceiling_fma_f32"), sink,
                       groups, flops);
}

// By what the context knows: only what the runtime enabled, and shapes as its probe left them.
std::optional<double> measure_matrix(Runtime& runtime, const Buffer& sink, uint32_t groups) {
    const core::DeviceCaps& caps = runtime.context()->caps;
    const uint32_t subgroup_size = core::matrix_subgroup_size(caps);
    if (subgroup_size == 0) return {};
    const auto shape = std::ranges::find_if(caps.matrices, [&](const core::MatrixShape& s) {
        return s.dtype == VKATTN_DTYPE_FLOAT16 && core::is_usable(s, subgroup_size);
    });
    if (shape == caps.matrices.end()) return {};
    const OwnKernel kernel = ceiling_kernel(
        runtime, code_ceiling_matrix_f16, "ceiling_matrix_f16",
        {{shape->m, shape->n, shape->k}, caps.subgroup_size_control ? subgroup_size : 0, true});
    const double products =
        double{CEILING_STEPS} * CEILING_CHAINS * (CEILING_THREADS / subgroup_size) * groups;
    return best_tflops(runtime, kernel, sink, groups, 2.0 * shape->m * shape->n * shape->k * products);
}

// Returns the GB/s of a kernel that goes through a buffer, and moves each of its bytes so many times.
double best_gbps(Runtime& runtime, const OwnKernel& kernel, const Buffer& from, const Buffer& to, int times) {
    constexpr uint32_t vecs = 16;
    const auto groups = static_cast<uint32_t>(from.size_bytes() / (16 * vecs * CEILING_THREADS));
    double best = 1e30, all = 0;
    for (int i = 0; i < 3 + repeats && all < long_runs_ms; i++) {
        const double ms = runtime.submit([&](VkCommandBuffer b) {
            record_ceiling(kernel, b, {from.address(), to.address(), vecs}, groups);
        });
        best = std::min(best, ms);
        all += ms;
    }
    return times * static_cast<double>(from.size_bytes()) / (best * 1e-3) * 1e-9;
}

}  // namespace

Ceilings measure_ceilings(Runtime& runtime) {
    const Phase phase("measuring the device's ceilings");
    const bool cpu = runtime.device().type == "cpu";
    const uint32_t groups = cpu ? 64 : 8192;
    const uint64_t copy_bytes = uint64_t{cpu ? 64u : 1024u} << 20;
    const Buffer from = runtime.allocate(copy_bytes), to = runtime.allocate(copy_bytes);
    runtime.fill(from, 0x3f800001);
    runtime.fill(to, 0);
    Ceilings c;
    c.fma_tflops = measure_fma(runtime, to, groups);
    c.matrix_tflops = measure_matrix(runtime, to, groups);
    c.copy_gbps =
        best_gbps(runtime, ceiling_kernel(runtime, code_ceiling_copy_f32, "ceiling_copy_f32"), from, to, 2);
    c.read_gbps =
        best_gbps(runtime, ceiling_kernel(runtime, code_ceiling_read_f32, "ceiling_read_f32"), from, to, 1);
    return c;
}

std::string to_text(const Ceilings& c) {
    const std::string matrix =
        c.matrix_tflops ? fmt::format("{:.3f} TFLOP/s float16 matrix, ", *c.matrix_tflops) : "";
    return fmt::format("{:.3f} TFLOP/s float32 FMA, {}{:.1f} GB/s copy, {:.1f} GB/s read", c.fma_tflops,
                       matrix, c.copy_gbps, c.read_gbps);
}

Json to_json(const std::optional<Ceilings>& c) {
    if (!c)
        return {{"fma_tflops", nullptr},
                {"matrix_tflops", nullptr},
                {"copy_gbps", nullptr},
                {"read_gbps", nullptr}};
    return {{"fma_tflops", c->fma_tflops},
            {"matrix_tflops", c->matrix_tflops ? Json(*c->matrix_tflops) : Json()},
            {"copy_gbps", c->copy_gbps},
            {"read_gbps", c->read_gbps}};
}

RateCeiling rate_ceiling(const Ceilings& c, const std::string& kernel) {
    if (c.matrix_tflops && kernel.starts_with("matrix")) return {*c.matrix_tflops, "float16 matrix"};
    return {c.fma_tflops, "float32 FMA"};
}

}  // namespace vkattn::tools
