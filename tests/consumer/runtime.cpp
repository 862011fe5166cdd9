// A program without a Vulkan of its own: one key, so that the output is its value.
// usage: consumer_runtime [KERNEL], a kernel of the backward that this build of vkattn has left out
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>
#include <vkattn/runtime.hpp>

// Says whether a backward is refused because the build has no such kernel.
static bool is_refused(const vkattn::Runtime& runtime, const VkattnProblem& problem,
                       const std::string& kernel) {
    try {
        runtime.backward_plan(problem, vkattn::backward());
    } catch (const vkattn::Error& error) {
        return std::string(error.what()).find("this build has no " + kernel) != std::string::npos;
    }
    return false;
}

int main(int argc, char** argv) {
    vkattn::Runtime runtime;
    VkattnProblem problem = vkattn::problem();
    problem.seqlen_q = problem.seqlen_kv = 1;
    problem.head_dim_qk = problem.head_dim_v = 8;
    const vkattn::Plan plan = runtime.plan(problem);
    if (argc > 1 && !is_refused(runtime, problem, argv[1]))
        return std::printf("failed: the backward is not refused\n"), 1;
    std::vector<float> value(8, 0.25f), out(8);
    const vkattn::Buffer in = runtime.allocate(32), result = runtime.allocate(32);
    runtime.upload(in, std::as_bytes(std::span(value)));
    VkattnForwardArgs args = vkattn::forward_args();
    args.query = args.key = args.value = in.address();
    args.out = result.address();
    runtime.run(plan, args);
    runtime.download(result, std::as_writable_bytes(std::span(out)));
    for (const float x : out)
        if (std::abs(x - 0.25f) > 1e-6f) return std::printf("failed: runtime: wrong\n"), 1;
    std::printf("runtime on %s: right\n", runtime.device().name.c_str());
    return 0;
}
