// The same program in C++. usage: consumer CACHE_FILE
#include <cstdio>
#include <vkattn/vkattn.hpp>

#include "scene.h"

namespace {

vkattn::Context make_context(const Gpu& gpu, const vkattn::Requirements& needed) {
    VkattnContextInfo info = vkattn::context_info();
    info.get_instance_proc_addr = gpu.get;
    info.instance = gpu.instance;
    info.physical_device = gpu.physical;
    info.device = gpu.device;
    info.api_version = VK_API_VERSION_1_2;
    info.features = needed.features();
    info.enabled_extension_count = needed.extensions(&info.enabled_extensions);
    info.pipeline_cache = gpu.cache;
    return vkattn::Context(info);
}

vkattn::Plan make_plan(const vkattn::Context& context, const VkattnProblem& problem, uint32_t parts,
                       const char* kernel) {
    VkattnOptions options = vkattn::options();
    options.num_splits = parts;
    vkattn::Plan plan(context, problem, options);
    const VkattnScratch scratch = plan.scratch();
    if (scratch.size_bytes > SCRATCH_BYTES || 4u * SCRATCH % scratch.alignment_bytes != 0)
        fail("Plan::scratch", "more than there is");
    const std::string text = plan.describe();
    scene_check_description(text.c_str(), kernel);
    std::printf("%s\n", text.c_str());
    return plan;
}

bool run(const char* cache_file) {
    Gpu gpu;
    gpu_make_instance(&gpu);
    const vkattn::Requirements needed(gpu.get, gpu.instance, gpu.physical);
    const char* const* extensions = nullptr;
    const uint32_t extension_count = needed.extensions(&extensions);
    gpu_make_device(&gpu, needed.features(), extension_count, extensions);
    const bool warm = gpu_load_cache(&gpu, cache_file) != 0;
    {
        const vkattn::Context context = make_context(gpu, needed);
        const vkattn::Plan first = make_plan(context, scene_problem(), 0, "tiles");
        const vkattn::Plan second = make_plan(context, scene_problem_2(), PARTS_2, "rows");
        gpu_make_buffer(&gpu, ALL_BYTES);
        scene_fill(&gpu);
        gpu_begin(&gpu);
        first.cmd_forward(gpu.commands, scene_args(&gpu, 0));
        scene_foreign_fill(&gpu);
        second.cmd_forward(gpu.commands, scene_args(&gpu, 1));
        scene_foreign_copy(&gpu);
        gpu_run(&gpu);
        scene_check(&gpu, 1e-5);
        scene_check_2(&gpu);
        gpu_save_cache(&gpu, cache_file);
    }
    gpu_destroy(&gpu);
    return warm;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) fail("usage", "consumer CACHE_FILE");
    try {
        const bool warm = run(argv[1]);
        std::printf("C++, vkattn %s, %s: right\n", vkattn_version(),
                    warm ? "pipelines from the cache" : "no cache yet");
    } catch (const vkattn::Error& error) {
        fail("vkattn", error.what());
    }
    return 0;
}
